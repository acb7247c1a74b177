#include "data/text/shrink_corpus.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/io/files.h"
#include "data/shard.h"
#include "data/text/new_directory.h"
#include "data/text/small_vocabulary.h"
#include "data/tokenizer/bpe_tokenizer.h"

namespace overtok {
namespace {

class Converter {
 public:
  Converter(const ShrinkOptions& options, const SmallVocabulary& vocabulary,
            const BpeTokenizer* small, ShrinkResult* result)
      : options_(options), vocabulary_(vocabulary), small_(small), result_(result) {}

  absl::Status Run(const Corpus& corpus, ShardWriter* writer) {
    Progress progress("shrink", static_cast<double>(corpus.tokens()) / 1e6, "M ids");
    for (const auto& shard : corpus.shards()) {
      // A damaged shard would get checksums that match.
      OT_RETURN_IF_ERROR(shard->VerifyBlocks());
      const std::vector<uint64_t>& offsets = shard->document_offsets();
      const std::vector<uint64_t>& text_bytes = shard->document_text_bytes();
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        big_.resize(offsets[i + 1] - offsets[i]);
        OT_RETURN_IF_ERROR(shard->Read(static_cast<int64_t>(offsets[i]),
                                       static_cast<int64_t>(big_.size()), big_.data()));
        OT_RETURN_IF_ERROR(ExpandDocument(*shard, static_cast<int64_t>(offsets[i])));
        if (small_ != nullptr) Check(*shard, i);
        OT_RETURN_IF_ERROR(
            writer->Append(ids_.data(), static_cast<int64_t>(ids_.size()),
                           text_bytes.empty() ? 0 : static_cast<int64_t>(text_bytes[i])));
        result_->tokens_before += static_cast<int64_t>(big_.size());
        if (options_.show_progress) {
          progress.Update(static_cast<double>(result_->tokens_before) / 1e6);
        }
      }
    }
    OT_RETURN_IF_ERROR(writer->Finish());
    result_->documents = writer->documents();
    result_->tokens = writer->tokens();
    return absl::OkStatus();
  }

 private:
  absl::Status ExpandDocument(const Shard& shard, int64_t begin) {
    ids_.clear();
    for (size_t i = 0; i < big_.size(); ++i) {
      const absl::Span<const uint32_t> expansion = vocabulary_.Expand(big_[i]);
      if (expansion.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            shard.path(), ": id ", big_[i], " at position ", begin + static_cast<int64_t>(i),
            " is no token of ", options_.tokenizer.name));
      }
      ids_.insert(ids_.end(), expansion.begin(), expansion.end());
    }
    return absl::OkStatus();
  }

  // Between added tokens, which no text makes here, the ids' bytes are encoded anew.
  void Check(const Shard& shard, size_t document) {
    encoded_.clear();
    text_.clear();
    bool same = true;
    const auto flush = [&] {
      // Ids that cut a character in two have no text to encode.
      same = same && small_->Encode(text_, /*parse_added_tokens=*/false, &encoded_).ok();
      text_.clear();
    };
    for (const uint32_t id : big_) {
      const std::vector<std::string>& tokens = options_.tokenizer.tokens;
      if (id < tokens.size() && !tokens[id].empty()) {
        text_ += tokens[id];
        continue;
      }
      flush();
      encoded_.push_back(vocabulary_.Expand(id)[0]);
    }
    flush();
    if (same && encoded_ == ids_) return;
    if (result_->different_documents++ == 0) {
      result_->first_difference = absl::StrCat("document ", document, " of ", shard.path());
    }
  }

  const ShrinkOptions& options_;
  const SmallVocabulary& vocabulary_;
  const BpeTokenizer* small_;
  ShrinkResult* result_;
  std::vector<uint32_t> big_, ids_, encoded_;
  std::string text_;
};

// Where the shards came from, for people and for comparing two corpora.
absl::Status WriteSources(const ShrinkOptions& options, const Corpus& corpus,
                          const ShardIdentity& identity, const ShrinkResult& result,
                          const std::string& directory) {
  nlohmann::ordered_json json;
  json["tokenizer_name"] = identity.tokenizer_name;
  json["tokenizer_hash"] = identity.tokenizer_hash;
  json["document_form"] = identity.form.ToString();
  json["documents"] = result.documents;
  json["tokens"] = result.tokens;
  json["shrunk_to"] = options.keep;
  json["source_tokenizer_hash"] = corpus.identity().tokenizer_hash;
  json["sources"] = nlohmann::ordered_json::array();
  for (const auto& shard : corpus.shards()) {
    nlohmann::ordered_json source;
    source["name"] = shard->path();
    source["tokens"] = shard->tokens();
    source["content_hash"] = absl::StrFormat("%016x", shard->content_hash());
    json["sources"].push_back(source);
  }
  // Names of files need not be UTF-8.
  return WriteFileAtomically(
      JoinPath(directory, "sources.json"),
      json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace

absl::StatusOr<ShrinkResult> ShrinkCorpus(const ShrinkOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  OT_ASSIGN_OR_RETURN(const SmallVocabulary vocabulary,
                      SmallVocabulary::Create(options.tokenizer, options.keep,
                                              JoinPath(options.out, "tokenizer.json")));
  OT_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, Corpus::Open(options.shards));
  OT_ASSIGN_OR_RETURN(const ShardIdentity identity, vocabulary.Convert(corpus->identity()));
  std::unique_ptr<BpeTokenizer> small;
  if (options.check) {
    OT_ASSIGN_OR_RETURN(small, BpeTokenizer::Create(vocabulary.definition(), TokenizerOptions()));
  }
  ShrinkResult result;
  result.vocab_size = identity.vocab_size;
  Converter converter(options, vocabulary, small.get(), &result);
  const auto fill = [&](const std::string& partial) -> absl::Status {
    OT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardWriter> writer,
                        ShardWriter::Create(partial, identity, options.tokens_per_shard));
    OT_RETURN_IF_ERROR(converter.Run(*corpus, writer.get()));
    OT_RETURN_IF_ERROR(
        WriteFileAtomically(JoinPath(partial, "tokenizer.json"), vocabulary.tokenizer_json()));
    return WriteSources(options, *corpus, identity, result, partial);
  };
  OT_RETURN_IF_ERROR(FillNewDirectory(options.out, fill));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace overtok
