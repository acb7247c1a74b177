// The byte-level BPE tokenizer: added tokens (when asked for), normalisation, pre-tokenization,
// merges. Built from a definition, whatever file that came from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/added_matcher.h"
#include "data/tokenizer/bpe_definition.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace overtok {

class BpeTokenizer : public Tokenizer {
 public:
  // `definition` has passed FinishDefinition. BOS and EOS are the added tokens of `options`, or the
  // first of the well-known names that the definition has (docs/tokenizers.md); a name in `options`
  // that is not an added token is an error that lists the special ones.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Create(BpeDefinition definition,
                                                              const TokenizerOptions& options);

  std::string name() const override { return definition_.name; }
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<uint32_t> bos() const override { return bos_; }
  std::optional<uint32_t> eos() const override { return eos_; }
  std::string hash() const override { return hash_; }
  absl::Status Encode(absl::string_view text, bool parse_added_tokens,
                      std::vector<uint32_t>* ids) const override;
  absl::string_view TokenBytes(uint32_t id) const override;
  bool IsSpecial(uint32_t id) const override;

  const BpeDefinition& definition() const { return definition_; }

 private:
  BpeTokenizer(BpeDefinition definition, PreTokenizer pre_tokenizer);
  const AddedToken* FindAdded(uint32_t id) const;
  absl::Status EncodeParsed(absl::string_view text, std::vector<uint32_t>* ids) const;
  absl::Status EncodePlain(absl::string_view text, std::vector<uint32_t>* ids) const;
  absl::Status EncodeNormalized(absl::string_view text, std::vector<uint32_t>* ids) const;

  const BpeDefinition definition_;
  const BpeModel model_;
  const PreTokenizer pre_tokenizer_;
  AddedMatcher raw_added_, normalized_added_;
  std::string hash_;
  int64_t vocab_size_ = 0;
  std::optional<uint32_t> bos_, eos_;
  uint64_t cache_owner_ = 0;
};

}  // namespace overtok
