#include "data/tokenizer/byte_tokenizer.h"

#include <array>

#include "core/io/hash.h"
#include "data/tokenizer/utf8.h"

namespace overtok {

std::string ByteTokenizer::hash() const { return Sha256Hex("overtok raw bytes 1"); }

absl::Status ByteTokenizer::Encode(absl::string_view text, bool /*parse_added_tokens*/,
                                   std::vector<uint32_t>* ids) const {
  OT_RETURN_IF_ERROR(CheckUtf8(text));
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(text.data());
  ids->insert(ids->end(), bytes, bytes + text.size());
  return absl::OkStatus();
}

absl::string_view ByteTokenizer::TokenBytes(uint32_t id) const {
  static const std::array<char, 256> all = [] {
    std::array<char, 256> values{};
    for (int i = 0; i < 256; ++i) values[i] = static_cast<char>(i);
    return values;
  }();
  if (id > 255) return absl::string_view();
  return absl::string_view(all.data() + id, 1);
}

}  // namespace overtok
