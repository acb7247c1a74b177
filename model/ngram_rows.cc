// Rows of hashed n-gram tables. Horner's rule modulo the table's modulus: no power of V is ever
// formed, and the largest intermediate is (modulus - 1) V + V - 1 < 2^63.
#include "model/ngram_rows.h"

#include "core/check.h"

namespace overtok {
namespace {

constexpr uint64_t kMaxVocabSize = uint64_t{1} << 31;
constexpr uint64_t kMaxModulus = uint64_t{1} << 32;
constexpr uint64_t kScrambleShift = 7919;

// Trial division: at most 2^15 steps below 2^32, once for each table of a run.
bool IsPrime(uint64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (uint64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

// A bijection of 64 bits in which every input bit reaches every output bit: the output function of
// the SplitMix64 generator (Steele, Lea, Flood, 2014). Its products wrap by definition.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The tokens one after another through the mix, so that different n-grams of one table meet by
// chance alone, and other ones at every pass.
uint64_t MixedRow(std::span<const uint32_t> z, uint64_t keyed, uint64_t modulus) {
  uint64_t state = keyed;
  for (const uint32_t token : z) state = Mix(state ^ token);
  return state % modulus;
}

}  // namespace

std::vector<NgramTable> InputTables(const NgramEmbeddingConfig& config, int64_t vocab_size) {
  OT_CHECK(config.rows >= 2 && config.splits >= 1 && vocab_size >= 1)
      << "unchecked n-gram configuration";
  std::vector<NgramTable> tables;
  uint64_t next = static_cast<uint64_t>(config.rows);
  for (const int64_t order : config.orders) {
    for (int64_t split = 0; split < config.splits; ++split) {
      NgramTable table;
      table.order = order;
      table.modulus = static_cast<uint64_t>(config.rows) + 4 * tables.size();
      if (config.moduli == NgramEmbeddingConfig::Moduli::kPrime) {
        while (!IsPrime(next) || static_cast<uint64_t>(vocab_size) % next == 0) ++next;
        table.modulus = next++;
      }
      OT_CHECK_LT(table.modulus, kMaxModulus) << "rows do not fit 32 bits";
      tables.push_back(table);
    }
  }
  return tables;
}

NgramTable OutputTable(const NgramHeadConfig& config, HeadKind kind) {
  OT_CHECK(IsHashed(kind)) << NameOf(kind);
  NgramTable table;
  table.order = kind == HeadKind::kGram2 ? 2 : 3;
  table.modulus = static_cast<uint64_t>(config.rows) + (kind == HeadKind::kGram2 ? 0 : 4);
  OT_CHECK_LT(table.modulus, kMaxModulus) << "rows do not fit 32 bits";
  return table;
}

uint64_t NgramRow(std::span<const uint32_t> z, uint64_t vocab_size, uint64_t modulus) {
  uint64_t row = 0;
  for (size_t i = z.size(); i-- > 0;) row = (row * vocab_size + z[i]) % modulus;
  return row;
}

void FillInputRows(const NgramTable& table, uint64_t vocab_size, const NgramHash& hash,
                   const BatchView& batch, uint32_t* rows) {
  OT_CHECK(table.order == 2 || table.order == 3) << "an n-gram of " << table.order;
  OT_CHECK(table.modulus >= 1 && table.modulus < kMaxModulus && vocab_size <= kMaxVocabSize)
      << "modulus " << table.modulus << ", vocabulary " << vocab_size;
  const uint64_t keyed = Mix(Mix(hash.key) + static_cast<uint64_t>(hash.pass));
  const uint64_t shift = hash.scramble ? (table.modulus / 2 + kScrambleShift) % table.modulus : 0;
  const size_t order = static_cast<size_t>(table.order);
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const uint32_t* tokens = batch.tokens + b * batch.length;
    const int32_t* segments = batch.segments + b * batch.length;
    uint32_t* out = rows + b * batch.length;
    for (int64_t t = 0; t < batch.length; ++t) {
      std::array<uint32_t, 3> z = {tokens[t], 0, 0};
      for (int64_t back = 1; back < table.order; ++back) {
        if (t < back || segments[t - back] != segments[t]) break;  // segments never fall
        z[static_cast<size_t>(back)] = tokens[t - back];
      }
      const std::span<const uint32_t> ngram(z.data(), order);
      const uint64_t row = hash.pass > 0 ? MixedRow(ngram, keyed, table.modulus)
                                         : NgramRow(ngram, vocab_size, table.modulus);
      out[t] = static_cast<uint32_t>((row + shift) % table.modulus);
    }
  }
}

}  // namespace overtok
