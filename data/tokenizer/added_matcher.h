// Finds added tokens in text: leftmost first, the longest of those that begin at one place.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class AddedMatcher {
 public:
  // No content is empty.
  explicit AddedMatcher(const std::vector<std::pair<std::string, uint32_t>>& tokens);

  // Cuts `text`: calls `plain` with the stretches between added tokens (none is empty) and `added`
  // with the id of each added token, from left to right. Stops at the first error.
  absl::Status Cut(absl::string_view text, absl::FunctionRef<absl::Status(absl::string_view)> plain,
                   absl::FunctionRef<void(uint32_t id)> added) const;

 private:
  struct Token {
    std::string content;
    uint32_t id;
  };
  std::array<std::vector<Token>, 256> by_first_byte_;  // longest first
};

}  // namespace overtok
