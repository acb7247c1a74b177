// Which row of a hashed table an n-gram has: exact 64-bit arithmetic, no wrap-around for any
// vocabulary below 2^31 (docs/methods/ngram_embedding.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch_view.h"
#include "model/config.h"

namespace overtok {

struct NgramTable {
  int64_t order = 0;     // tokens in the n-gram: 2 or 3
  uint64_t modulus = 0;  // rows that can be named; below 2^32
};

// The input tables in their order: all tables of the lower order first.
std::vector<NgramTable> InputTables(const NgramEmbeddingConfig& config, int64_t vocab_size);
// The output table of a hashed n-gram head.
NgramTable OutputTable(const NgramHeadConfig& config, HeadKind kind);

// (z_0 + z_1 V + z_2 V^2 ...) mod modulus, z_0 the token nearest in reading order of the caller.
uint64_t NgramRow(std::span<const uint32_t> z, uint64_t vocab_size, uint64_t modulus);

// How rows are named besides the formula above.
struct NgramHash {
  int64_t pass = 0;       // > 0 with re-hashed tables: the n-gram's tokens through a keyed mix
  uint64_t key = 0;       // of that mix; one for each table
  bool scramble = false;  // diagnostic: every row moves by modulus / 2 + 7919
};

// Row of every position of an input table, [B, S]: x_t, x_{t-1} (, x_{t-2}); a token before the
// window's start or of another document counts as 0.
void FillInputRows(const NgramTable& table, uint64_t vocab_size, const NgramHash& hash,
                   const BatchView& batch, uint32_t* rows);

}  // namespace overtok
