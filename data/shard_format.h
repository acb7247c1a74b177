// Names and constants of the shard format (docs/formats/shard.md), shared by writer and reader.
#pragma once

#include <cstdint>
#include <vector>

#include "core/io/hash.h"
#include "core/tensor.h"
#include "data/shard.h"

namespace overtok::shard_format {

inline constexpr char kFormat[] = "overtok-shard";
inline constexpr int64_t kVersion = 1;
inline constexpr int64_t kChecksumBlock = int64_t{1} << 20;  // ids per checksum
inline constexpr int64_t kLargestU16Vocabulary = 65536;

inline DType IdType(int64_t vocab_size) {
  return vocab_size <= kLargestU16Vocabulary ? DType::kU16 : DType::kU32;
}

// Checksum of what indexes the ids; continues over both arrays.
inline uint64_t IndexChecksum(const std::vector<uint64_t>& offsets,
                              const std::vector<uint64_t>& text_bytes) {
  const uint64_t first = Xxh3(offsets.data(), static_cast<int64_t>(offsets.size()) * 8);
  return Xxh3(text_bytes.data(), static_cast<int64_t>(text_bytes.size()) * 8, first);
}

// The inverse of DocumentForm::ToString; nullopt for other text.
std::optional<DocumentForm> ParseDocumentForm(absl::string_view text);

// An error for identities that no shard may have.
absl::Status CheckIdentity(const ShardIdentity& identity);

}  // namespace overtok::shard_format
