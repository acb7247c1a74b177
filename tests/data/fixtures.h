// Small corpora for tests of the data side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/shard.h"
#include "tests/support/temporary_directory.h"

namespace overtok::testing {

// vocabulary 300, bos 256, eos 257, no pad.
ShardIdentity ByteIdentity();

// Writes `documents` (lists of ids) to `directory`.
absl::Status WriteShards(const std::string& directory, const ShardIdentity& identity,
                         const std::vector<std::vector<uint32_t>>& documents,
                         int64_t tokens_per_shard = 1 << 20, int64_t text_bytes = 0);

// One document of ids 0, 1, 2, ... (mod 256) of `tokens` ids, then EOS.
std::vector<uint32_t> CountingDocument(int64_t tokens);

}  // namespace overtok::testing
