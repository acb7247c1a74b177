// The config.json beside a Hugging Face checkpoint, compared with the section `model` of a
// configuration: weights of equal shapes under another rotary base or epsilon are another model.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "model/config.h"

namespace overtok {

// Reads the file and lists all differences, each as "model.hidden_size is 48, hidden_size in the
// file is 64"; none: an empty list. An error when the file cannot be read or is no JSON object.
// docs/initial_weights.md lists what is compared.
absl::StatusOr<std::vector<std::string>> CompareWithHfConfig(absl::string_view path,
                                                             const ModelConfig& model);

}  // namespace overtok
