// What a mistyped key probably meant.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace overtok {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int EditDistance(absl::string_view a, absl::string_view b);

// The choice nearest to `text`, empty when none is near.
std::string Nearest(absl::string_view text, const std::vector<std::string>& choices);

// The valid key or section that `path` comes to when every misspelt part is taken for the nearest
// name; empty when a part is near nothing.
std::string NearestPath(absl::string_view path, const std::vector<std::string>& keys);

// A sentence for the unknown dotted key `path`, given all valid dotted keys: the same key in its
// right section, the name this project uses for another framework's, the nearest name, or else what
// the section has.
std::string SuggestKey(absl::string_view path, const std::vector<std::string>& keys);

}  // namespace overtok
