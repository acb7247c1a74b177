#include "data/tokenizer/added_matcher.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "core/check.h"

namespace overtok {

AddedMatcher::AddedMatcher(const std::vector<std::pair<std::string, uint32_t>>& tokens) {
  for (const auto& [content, id] : tokens) {
    OT_CHECK(!content.empty()) << "added token " << id;
    by_first_byte_[static_cast<uint8_t>(content[0])].push_back({content, id});
  }
  for (std::vector<Token>& bucket : by_first_byte_) {
    std::stable_sort(bucket.begin(), bucket.end(), [](const Token& a, const Token& b) {
      return a.content.size() > b.content.size();
    });
  }
}

absl::Status AddedMatcher::Cut(absl::string_view text,
                               absl::FunctionRef<absl::Status(absl::string_view)> plain,
                               absl::FunctionRef<void(uint32_t id)> added) const {
  size_t done = 0, at = 0;
  while (at < text.size()) {
    const Token* found = nullptr;
    for (const Token& token : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      if (absl::StartsWith(text.substr(at), token.content)) {
        found = &token;
        break;
      }
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (at > done) OT_RETURN_IF_ERROR(plain(text.substr(done, at - done)));
    added(found->id);
    at += found->content.size();
    done = at;
  }
  if (done < text.size()) return plain(text.substr(done));
  return absl::OkStatus();
}

}  // namespace overtok
