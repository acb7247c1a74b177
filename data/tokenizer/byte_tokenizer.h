// Raw bytes as tokens: ids 0-255 are the bytes, 256 is BOS, 257 is EOS.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace overtok {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr uint32_t kBos = 256;
  static constexpr uint32_t kEos = 257;

  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 258; }
  std::optional<uint32_t> bos() const override { return kBos; }
  std::optional<uint32_t> eos() const override { return kEos; }
  std::string hash() const override;
  // BOS and EOS have no text, so there is nothing that `parse_added_tokens` could find.
  absl::Status Encode(absl::string_view text, bool parse_added_tokens,
                      std::vector<uint32_t>* ids) const override;
  absl::string_view TokenBytes(uint32_t id) const override;
  bool IsSpecial(uint32_t id) const override { return id == kBos || id == kEos; }
};

}  // namespace overtok
