// Output directories that appear whole or not at all.
#pragma once

#include <functional>
#include <string>

#include "core/status.h"

namespace overtok {

// Calls `fill` with the path `out`.partial, which does not exist (what a killed run left is
// removed), and renames it to `out` when that succeeds; after an error nothing is left. `out` may
// not exist, or be an empty directory.
absl::Status FillNewDirectory(std::string out,
                              const std::function<absl::Status(const std::string&)>& fill);

}  // namespace overtok
