// File name patterns and natural order (files.h): numbers inside names compare by value, because
// alphabetical order puts shard_10 before shard_2 and so changes the order of a corpus.
#include <glob.h>

#include <algorithm>

#include "core/io/files.h"

namespace overtok {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool NaturalLess(absl::string_view a, absl::string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      size_t x = i, y = j;
      while (x < a.size() && a[x] == '0') ++x;
      while (y < b.size() && b[y] == '0') ++y;
      size_t x_end = x, y_end = y;
      while (x_end < a.size() && IsDigit(a[x_end])) ++x_end;
      while (y_end < b.size() && IsDigit(b[y_end])) ++y_end;
      // Without leading zeros the longer run of digits is the larger number, of any length.
      if (x_end - x != y_end - y) return x_end - x < y_end - y;
      const int order = a.substr(x, x_end - x).compare(b.substr(y, y_end - y));
      if (order != 0) return order < 0;
      i = x_end;
      j = y_end;
      continue;
    }
    if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    ++i;
    ++j;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // equal but for leading zeros: any fixed order will do
}

absl::StatusOr<std::vector<std::string>> Glob(absl::string_view pattern) {
  const std::string text(pattern);
  if (PathExists(text)) return std::vector<std::string>{text};  // names may hold [ or ]
  glob_t found{};
  const int code = glob(text.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths;
  for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  if (code == GLOB_NOMATCH || (code == 0 && paths.empty())) {
    return absl::NotFoundError(absl::StrCat("no file matches ", pattern));
  }
  if (code != 0) return absl::UnavailableError(absl::StrCat("cannot list files for ", pattern));
  std::sort(paths.begin(), paths.end(),
            [](const std::string& a, const std::string& b) { return NaturalLess(a, b); });
  return paths;
}

}  // namespace overtok
