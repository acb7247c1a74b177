// The text of one line of a .jsonl corpus. Strict: a line that is not one JSON object with the text
// as a string under the field is an error that says what is wrong with it.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class JsonLineParser {
 public:
  JsonLineParser();
  ~JsonLineParser();
  // The value of `field`, valid until the next call. Valid UTF-8 by construction.
  absl::StatusOr<absl::string_view> Text(absl::string_view line, absl::string_view field);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace overtok
