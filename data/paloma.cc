#include "data/paloma.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "data/text/byte_source.h"
#include "data/text/encode_files.h"
#include "data/token_bytes.h"

namespace overtok {
namespace {

std::string LastPart(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

struct SubsetFiles {
  std::string directory;  // its name
  std::vector<std::string> text, shards;
};

// The subsets of a collection: directories with a folder `split` that holds files we read.
absl::StatusOr<std::vector<SubsetFiles>> FindSubsets(const std::string& root,
                                                     const std::string& split) {
  if (!IsDirectory(root)) {
    return absl::NotFoundError(absl::StrCat("the evaluation set ", root, " is not a directory"));
  }
  OT_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(root));
  std::sort(names.begin(), names.end());
  std::vector<SubsetFiles> subsets;
  for (const std::string& name : names) {
    const std::string folder = JoinPath(JoinPath(root, name), split);
    if (!IsDirectory(folder)) continue;
    SubsetFiles subset;
    subset.directory = name;
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> files, ListDirectory(folder));
    for (const std::string& file : files) {
      if (absl::EndsWith(StripCompression(file), ".jsonl")) {
        subset.text.push_back(JoinPath(folder, file));
      } else if (absl::EndsWith(file, ".h5")) {
        subset.shards.push_back(JoinPath(folder, file));
      }
    }
    if (!subset.text.empty() && !subset.shards.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, " holds text (*.jsonl) and token shards (*.h5); keep one of them"));
    }
    subsets.push_back(std::move(subset));
  }
  if (subsets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the evaluation set ", root, " holds no subset: expected <subset>/", split,
                     "/*.jsonl.gz with text, or <subset>/", split, "/*.h5 with tokens"));
  }
  return subsets;
}

absl::Status OtherTokenizer(absl::string_view what, const std::string& difference) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " does not fit the training data: ", difference,
                   "; evaluate with the tokenizer that the training data was made with"));
}

class CollectionLoader {
 public:
  CollectionLoader(const Tokenizer* tokenizer, const EvalOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  absl::StatusOr<EvalCollection> Load(const std::string& root) {
    OT_ASSIGN_OR_RETURN(const std::vector<SubsetFiles> subsets, FindSubsets(root, options_.split));
    collection_.set = LastPart(root);
    bool any_text = false, any_shards = false;
    for (const SubsetFiles& subset : subsets) {
      any_text = any_text || !subset.text.empty();
      any_shards = any_shards || !subset.shards.empty();
    }
    if (any_text && any_shards) {
      return absl::InvalidArgumentError(
          absl::StrCat("the evaluation set ", root,
                       " mixes subsets of text and of token shards; keep one kind"));
    }
    OT_RETURN_IF_ERROR(SetIdentity(root, any_text));
    for (const SubsetFiles& subset : subsets) {
      EvalSubset loaded;
      loaded.name = SubsetTag(subset.directory);
      absl::StrAppend(&fingerprint_, subset.directory, "\n");
      if (any_text) {
        OT_RETURN_IF_ERROR(LoadText(subset, &loaded));
      } else if (!subset.shards.empty()) {
        OT_RETURN_IF_ERROR(LoadShards(subset, &loaded));
      }
      if (loaded.ids.empty()) {
        collection_.empty.push_back(loaded.name);
      } else {
        collection_.subsets.push_back(std::move(loaded));
      }
    }
    if (collection_.subsets.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the evaluation set ", root,
                                                     " holds no document: its subsets are empty (",
                                                     absl::StrJoin(collection_.empty, ", "), ")"));
    }
    CompareWithPaloma(subsets);
    FinishBytes();
    collection_.content_hash = Sha256Hex(fingerprint_);
    return std::move(collection_);
  }

 private:
  absl::Status SetIdentity(const std::string& root, bool text) {
    ShardIdentity& identity = collection_.identity;
    identity = options_.identity;
    if (tokenizer_ == nullptr) {
      if (text) {
        return absl::InvalidArgumentError(
            absl::StrCat("the evaluation set ", root,
                         " holds text, and there is no tokenizer to encode it: "
                         "name the one that the training data was made with"));
      }
      return absl::OkStatus();
    }
    if (identity.vocab_size == 0) {
      OT_ASSIGN_OR_RETURN(identity, IdentityOf(*tokenizer_, DocumentForm()));
    }
    // Which ids begin and end a document is the training data's choice, not the file's.
    ShardIdentity own = identity;
    own.tokenizer_name = tokenizer_->name();
    own.tokenizer_hash = tokenizer_->hash();
    own.vocab_size = tokenizer_->vocab_size();
    const std::string difference = DescribeDifference(own, identity);
    if (!difference.empty()) return OtherTokenizer("the tokenizer", difference);
    bytes_ = std::make_unique<TokenBytes>(*tokenizer_);
    return absl::OkStatus();
  }

  absl::Status LoadText(const SubsetFiles& files, EvalSubset* subset) {
    if (files.text.empty()) return absl::OkStatus();
    EncodeOptions options;
    options.tokenizer = tokenizer_;
    options.identity = collection_.identity;
    options.field = options_.field;
    options.threads = options_.threads;
    options.largest_bad_count = 0;
    const auto consume = [&](const EncodedDocument& document) {
      AppendWithTokenizer(document.ids, subset);
      subset->text_bytes += static_cast<int64_t>(document.text.size());
      ++subset->documents;
      return absl::OkStatus();
    };
    OT_RETURN_IF_ERROR(EncodeFiles(files.text, options, consume).status());
    for (const std::string& path : files.text) {
      OT_ASSIGN_OR_RETURN(const std::string sha256, Sha256HexOfFile(path));
      absl::StrAppend(&fingerprint_, LastPart(path), " ", sha256, "\n");
    }
    return absl::OkStatus();
  }

  absl::Status LoadShards(const SubsetFiles& files, EvalSubset* subset) {
    OT_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, Corpus::Open(files.shards));
    ShardIdentity& identity = collection_.identity;
    if (identity.vocab_size == 0) identity = corpus->identity();
    const std::string difference = DescribeDifference(corpus->identity(), identity);
    if (!difference.empty()) return OtherTokenizer(files.shards.front(), difference);
    absl::StrAppend(&fingerprint_, absl::StrFormat("%016x\n", corpus->content_hash()));
    subset->documents = corpus->documents();
    for (const auto& shard : corpus->shards()) {
      for (const uint64_t bytes : shard->document_text_bytes()) {
        subset->text_bytes += static_cast<int64_t>(bytes);
      }
      std::vector<uint32_t> ids(static_cast<size_t>(shard->tokens()));
      OT_RETURN_IF_ERROR(shard->Read(0, shard->tokens(), ids.data()));
      const std::vector<uint64_t>& offsets = shard->document_offsets();
      const std::vector<uint64_t>& text_bytes = shard->document_text_bytes();
      for (size_t d = 0; d + 1 < offsets.size(); ++d) {
        const absl::Span<const uint32_t> document =
            absl::MakeConstSpan(ids).subspan(offsets[d], offsets[d + 1] - offsets[d]);
        if (bytes_ != nullptr) {
          AppendWithTokenizer(document, subset);
        } else {
          AppendSpread(document, text_bytes.empty() ? 0 : text_bytes[d], subset);
        }
      }
    }
    return absl::OkStatus();
  }

  void AppendWithTokenizer(absl::Span<const uint32_t> ids, EvalSubset* subset) const {
    for (const uint32_t id : ids) {
      OT_CHECK_LT(id, bytes_->exact.size());
      subset->ids.push_back(id);
      subset->exact_bytes.push_back(bytes_->exact[id]);
      subset->levanter_bytes.push_back(bytes_->levanter[id]);
    }
    // What frames a document is no text of it, even where an ordinary token was chosen for that.
    const DocumentForm& form = collection_.identity.form;
    const size_t first = subset->ids.size() - ids.size();
    size_t last = subset->ids.size();
    if (form.bos) subset->exact_bytes[first] = subset->levanter_bytes[first] = 0;
    if (form.eos) subset->exact_bytes[last - 1] = subset->levanter_bytes[last - 1] = 0;
    if (!form.space_before_eos) return;
    // The space is the last byte of the last token that has bytes.
    while (last > first && subset->exact_bytes[last - 1] == 0) --last;
    if (last > first) --subset->exact_bytes[last - 1];
  }

  void AppendSpread(absl::Span<const uint32_t> ids, uint64_t text_bytes, EvalSubset* subset) const {
    const uint64_t count = ids.size();
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t share = text_bytes * (i + 1) / count - text_bytes * i / count;
      subset->ids.push_back(ids[i]);
      subset->exact_bytes.push_back(static_cast<uint16_t>(std::min<uint64_t>(share, 65535)));
    }
  }

  void CompareWithPaloma(const std::vector<SubsetFiles>& subsets) {
    size_t found = 0;
    std::vector<std::string> missing;
    for (const std::string& name : PalomaSubsets()) {
      const bool here = std::any_of(subsets.begin(), subsets.end(), [&name](const auto& subset) {
        return subset.directory == name;
      });
      const std::string tag = SubsetTag(name);
      const bool filled = std::any_of(collection_.subsets.begin(), collection_.subsets.end(),
                                      [&tag](const auto& subset) { return subset.name == tag; });
      if (here && filled) ++found;
      if (!here) missing.push_back(tag);
    }
    // A collection of other subsets is no incomplete Paloma: nothing is missing there.
    if (missing.size() < PalomaSubsets().size()) collection_.missing = missing;
    collection_.is_paloma =
        found == PalomaSubsets().size() && subsets.size() == PalomaSubsets().size();
  }

  void FinishBytes() {
    bool known = true;
    for (const EvalSubset& subset : collection_.subsets) known = known && subset.text_bytes > 0;
    collection_.has_levanter_bytes = bytes_ != nullptr;
    collection_.has_exact_bytes = bytes_ != nullptr || known;
    collection_.exact_bytes_are_spread = bytes_ == nullptr && known;
    if (collection_.has_exact_bytes) return;
    for (EvalSubset& subset : collection_.subsets) subset.exact_bytes.clear();
  }

  const Tokenizer* tokenizer_;
  const EvalOptions& options_;
  std::unique_ptr<TokenBytes> bytes_;  // with a tokenizer
  std::string fingerprint_;
  EvalCollection collection_;
};

}  // namespace

absl::StatusOr<EvalCollection> LoadEvalCollection(absl::string_view directory,
                                                  const Tokenizer* tokenizer,
                                                  const EvalOptions& options) {
  return CollectionLoader(tokenizer, options).Load(std::string(directory));
}

const std::vector<std::string>& PalomaSubsets() {
  static const auto* names = new std::vector<std::string>{"4chan_meta_sep",
                                                          "c4_100_domains",
                                                          "c4_en",
                                                          "dolma-v1_5",
                                                          "dolma_100_programing_languages",
                                                          "dolma_100_subreddits",
                                                          "falcon-refinedweb",
                                                          "gab",
                                                          "m2d2_s2orc_unsplit",
                                                          "m2d2_wikipedia_unsplit",
                                                          "manosphere_meta_sep",
                                                          "mc4",
                                                          "ptb",
                                                          "redpajama",
                                                          "twitterAAE_HELM_fixed",
                                                          "wikitext_103"};
  return *names;
}

std::string SubsetTag(absl::string_view directory_name) {
  return directory_name == "4chan_meta_sep" ? "4chan" : std::string(directory_name);
}

}  // namespace overtok
