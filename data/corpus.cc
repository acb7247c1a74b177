// Several shards as one stream of ids (shard.h).
#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "data/shard.h"
#include "data/shard_format.h"

namespace overtok {
namespace {

std::string Shown(const std::optional<uint32_t>& id) {
  return id.has_value() ? absl::StrCat(*id) : "none";
}

}  // namespace

std::string DocumentForm::ToString() const {
  return absl::StrCat(bos ? "bos+" : "", "text", space_before_eos ? "+space" : "",
                      eos ? "+eos" : "", added_tokens ? ", added tokens" : "");
}

std::optional<DocumentForm> shard_format::ParseDocumentForm(absl::string_view text) {
  for (int bits = 0; bits < 16; ++bits) {
    const DocumentForm form{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
    if (form.ToString() == text) return form;
  }
  return std::nullopt;
}

std::string DescribeDifference(const ShardIdentity& a, const ShardIdentity& b) {
  if (a.tokenizer_hash != b.tokenizer_hash) {
    return absl::StrCat("tokenizer ", a.tokenizer_name, " (", a.tokenizer_hash, ") against ",
                        b.tokenizer_name, " (", b.tokenizer_hash, ")");
  }
  if (a.vocab_size != b.vocab_size) {
    return absl::StrCat("vocabulary size ", a.vocab_size, " against ", b.vocab_size);
  }
  if (a.bos != b.bos) return absl::StrCat("bos id ", Shown(a.bos), " against ", Shown(b.bos));
  if (a.eos != b.eos) return absl::StrCat("eos id ", Shown(a.eos), " against ", Shown(b.eos));
  if (a.pad != b.pad) return absl::StrCat("pad id ", Shown(a.pad), " against ", Shown(b.pad));
  if (!(a.form == b.form)) {
    return absl::StrCat("documents as ", a.form.ToString(), " against ", b.form.ToString());
  }
  return "";
}

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::Open(
    const std::vector<std::string>& patterns) {
  auto corpus = std::make_shared<Corpus>();
  corpus->begins_ = {0};
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                        Glob(IsDirectory(pattern) ? JoinPath(pattern, "*.h5") : pattern));
    for (const std::string& path : paths) {
      if (!seen.insert(path).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, " is named twice in the list of shards (again by ", pattern,
                         "); its ids would be read twice in one pass"));
      }
      OT_ASSIGN_OR_RETURN(std::shared_ptr<const Shard> shard, Shard::Open(path));
      if (!corpus->shards_.empty()) {
        const Shard& first = *corpus->shards_.front();
        const std::string difference = DescribeDifference(shard->identity(), first.identity());
        if (!difference.empty()) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, " does not belong to the same corpus as ", first.path(), ": ",
                           difference, "; tokenize both with one tokenizer"));
        }
      }
      corpus->begins_.push_back(corpus->begins_.back() + shard->tokens());
      corpus->shards_.push_back(std::move(shard));
    }
  }
  if (corpus->shards_.empty()) {
    return absl::InvalidArgumentError(
        "the list of shards is empty; name files, patterns such as "
        "corpus/train/*.h5, or directories");
  }
  corpus->identity_ = corpus->shards_.front()->identity();
  return std::shared_ptr<const Corpus>(std::move(corpus));
}

int64_t Corpus::documents() const {
  int64_t n = 0;
  for (const auto& shard : shards_) n += shard->documents();
  return n;
}

uint64_t Corpus::content_hash() const {
  uint64_t hash = 0;
  for (const auto& shard : shards_) {
    const uint64_t content = shard->content_hash();
    hash = Xxh3(&content, sizeof(content), hash);
  }
  return hash;
}

uint32_t Corpus::max_id() const {
  uint32_t largest = 0;
  for (const auto& shard : shards_) largest = std::max(largest, shard->max_id());
  return largest;
}

absl::Status Corpus::Read(int64_t begin, int64_t count, uint32_t* out) const {
  OT_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count)
      << "[" << begin << ", " << begin << " + " << count << ") of " << tokens();
  size_t s = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                 begins_.begin() - 1);
  while (count > 0) {
    const int64_t n = std::min(count, begins_[s + 1] - begin);
    OT_RETURN_IF_ERROR(shards_[s]->Read(begin - begins_[s], n, out));
    begin += n;
    count -= n;
    out += n;
    ++s;
  }
  return absl::OkStatus();
}

}  // namespace overtok
