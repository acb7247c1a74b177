#include "tests/data/fixtures.h"

namespace overtok::testing {

ShardIdentity ByteIdentity() {
  ShardIdentity identity;
  identity.tokenizer_name = "fake";
  identity.tokenizer_hash = "f00d";
  identity.vocab_size = 300;
  identity.bos = 256;
  identity.eos = 257;
  return identity;
}

absl::Status WriteShards(const std::string& directory, const ShardIdentity& identity,
                         const std::vector<std::vector<uint32_t>>& documents,
                         int64_t tokens_per_shard, int64_t text_bytes) {
  OT_ASSIGN_OR_RETURN(auto writer, ShardWriter::Create(directory, identity, tokens_per_shard));
  for (const std::vector<uint32_t>& document : documents) {
    OT_RETURN_IF_ERROR(
        writer->Append(document.data(), static_cast<int64_t>(document.size()), text_bytes));
  }
  return writer->Finish();
}

std::vector<uint32_t> CountingDocument(int64_t tokens) {
  std::vector<uint32_t> ids;
  for (int64_t i = 0; i + 1 < tokens; ++i) ids.push_back(static_cast<uint32_t>(i % 256));
  ids.push_back(257);
  return ids;
}

}  // namespace overtok::testing
