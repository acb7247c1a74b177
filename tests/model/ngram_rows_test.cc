// Rows of hashed tables against the published check values and against arithmetic in 128 bits.
#include "model/ngram_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace overtok {
namespace {

constexpr int64_t kLlamaVocab = 128256;

__extension__ using Wide = unsigned __int128;

// The formula as it stands: the powers are formed in full. Holds up to 2^31 * 2^62 + ... < 2^94.
uint64_t WideRow(std::span<const uint32_t> z, uint64_t vocab, uint64_t modulus) {
  Wide value = 0, power = 1;
  for (const uint32_t token : z) {
    value += power * token;
    power *= vocab;
  }
  return static_cast<uint64_t>(value % modulus);
}

struct Windows {
  int64_t length;
  std::vector<uint32_t> tokens;
  std::vector<int32_t> segments;
  BatchView view() const {
    BatchView batch;
    batch.sequences = static_cast<int64_t>(tokens.size()) / length;
    batch.length = length;
    batch.tokens = tokens.data();
    batch.segments = segments.data();
    return batch;
  }
};

std::vector<uint32_t> Rows(const NgramTable& table, uint64_t vocab, const Windows& windows,
                           const NgramHash& hash = {}) {
  std::vector<uint32_t> rows(windows.tokens.size());
  FillInputRows(table, vocab, hash, windows.view(), rows.data());
  return rows;
}

TEST(NgramTables, ThePublishedModuliAndTheirPowersOfTheVocabulary) {
  NgramEmbeddingConfig config;
  config.splits = 3;
  const std::vector<NgramTable> tables = InputTables(config, kLlamaVocab);
  ASSERT_EQ(tables.size(), 6u);
  const uint64_t squares[] = {1'601'536, 1'596'396, 1'591'256, 1'586'116, 1'580'976, 1'575'836};
  for (size_t t = 0; t < 6; ++t) {
    EXPECT_EQ(tables[t].order, t < 3 ? 2 : 3);
    EXPECT_EQ(tables[t].modulus, 12'800'000 + 4 * t);
    const uint32_t v[] = {0, 1}, v2[] = {0, 0, 1};
    EXPECT_EQ(NgramRow(v, kLlamaVocab, tables[t].modulus), 128'256u);
    EXPECT_EQ(NgramRow(v2, kLlamaVocab, tables[t].modulus), squares[t]);
  }
}

TEST(NgramTables, TheWorkedExample) {
  NgramEmbeddingConfig config;
  const std::vector<NgramTable> tables = InputTables(config, kLlamaVocab);
  const Windows windows = {3, {3, 2, 1}, {0, 0, 0}};
  EXPECT_EQ(Rows(tables[0], kLlamaVocab, windows)[2], 256'513u);
  EXPECT_EQ(Rows(tables[1], kLlamaVocab, windows)[2], 5'045'701u);
}

TEST(NgramTables, PrimeModuliAreThePrimesInTurnAndCoprimeToTheVocabulary) {
  NgramEmbeddingConfig config;
  config.moduli = NgramEmbeddingConfig::Moduli::kPrime;
  config.splits = 3;
  config.rows = 90;
  std::vector<uint64_t> moduli;
  // 101 and 107 are left out, as they divide the vocabulary.
  for (const NgramTable& table : InputTables(config, 101 * 107)) moduli.push_back(table.modulus);
  EXPECT_EQ(moduli, (std::vector<uint64_t>{97, 103, 109, 113, 127, 131}));

  config.rows = 12'800'000;
  uint64_t previous = 12'799'999;
  for (const NgramTable& table : InputTables(config, kLlamaVocab)) {
    EXPECT_EQ(std::gcd(table.modulus, uint64_t{kLlamaVocab}), 1u);
    // Every number in between shares a factor with a smaller one; this one with none.
    for (uint64_t n = previous + 1; n <= table.modulus; ++n) {
      bool prime = true;
      for (uint64_t d = 2; d * d <= n && prime; ++d) prime = n % d != 0;
      EXPECT_EQ(prime, n == table.modulus) << n;
    }
    previous = table.modulus;
  }
}

TEST(NgramTables, SmallestRows) {
  NgramEmbeddingConfig config;
  config.moduli = NgramEmbeddingConfig::Moduli::kPrime;
  config.rows = 2;
  EXPECT_EQ(InputTables(config, 10)[0].modulus, 3u);  // 2 divides the vocabulary
  EXPECT_EQ(InputTables(config, 10)[1].modulus, 7u);  // so does 5
  EXPECT_EQ(InputTables(config, 9)[0].modulus, 2u);
}

TEST(NgramTables, OutputTables) {
  NgramHeadConfig config;
  config.rows = 1000;
  EXPECT_EQ(OutputTable(config, HeadKind::kGram2).order, 2);
  EXPECT_EQ(OutputTable(config, HeadKind::kGram2).modulus, 1000u);
  EXPECT_EQ(OutputTable(config, HeadKind::kGram3).order, 3);
  EXPECT_EQ(OutputTable(config, HeadKind::kGram3).modulus, 1004u);
}

// 151,935 + 151,934 * 151,936 = 23,084,396,159: a 32-bit product would give 556,461.
TEST(NgramRows, CaseProductsDoNotWrap) {
  const uint32_t z[] = {151'935, 151'934};
  EXPECT_EQ(NgramRow(z, 151'936, 1'000'002), 349'991u);
}

TEST(NgramRows, EqualTheFormulaInWideArithmetic) {
  std::mt19937_64 random(5);
  const uint64_t vocabularies[] = {2, 257, 128'256, 151'936, (1ull << 31) - 1, 1ull << 31};
  const uint64_t moduli[] = {1, 2, 97, 1'000'002, 12'800'004, (1ull << 31) + 11, (1ull << 32) - 1};
  for (const uint64_t vocab : vocabularies) {
    for (const uint64_t modulus : moduli) {
      for (int trial = 0; trial < 200; ++trial) {
        uint32_t z[3];
        for (uint32_t& token : z) {
          // Half of the ids at the upper end, where products are largest.
          const uint64_t low = random() % vocab;
          token = static_cast<uint32_t>(trial % 2 == 0 ? low : vocab - 1 - low % 2);
        }
        for (size_t order = 2; order <= 3; ++order) {
          const std::span<const uint32_t> ngram(z, order);
          ASSERT_EQ(NgramRow(ngram, vocab, modulus), WideRow(ngram, vocab, modulus));
        }
      }
    }
  }
}

TEST(NgramRows, HistoryIsZeroOutsideTheWindowAndTheDocument) {
  // Two windows; a document border in the first, and two positions of padding at its end, each a
  // segment of its own. Nothing reaches from the first window into the second.
  const Windows windows = {
      6, {5, 6, 7, 8, 9, 9, 4, 3, 2, 1, 1, 1}, {0, 0, 1, 1, 2, 3, 0, 0, 0, 0, 0, 0}};
  const uint64_t vocab = 10;
  const NgramTable pairs = {2, 1000}, triples = {3, 1000};
  EXPECT_EQ(Rows(pairs, vocab, windows),
            (std::vector<uint32_t>{5, 56, 7, 78, 9, 9, 4, 43, 32, 21, 11, 11}));
  EXPECT_EQ(Rows(triples, vocab, windows),
            (std::vector<uint32_t>{5, 56, 7, 78, 9, 9, 4, 43, 432, 321, 211, 111}));
}

// Packed documents [5, 6] and [7, 8]: 7 is hashed with the border value, not with 6.
TEST(NgramRows, CaseNgramsDoNotCrossDocuments) {
  const Windows packed = {4, {5, 6, 7, 8}, {0, 0, 1, 1}}, alone = {2, {7, 8}, {0, 0}};
  for (const int64_t order : {2, 3}) {
    const NgramTable table = {order, 997};
    const std::vector<uint32_t> together = Rows(table, 100, packed),
                                apart = Rows(table, 100, alone);
    EXPECT_EQ(together[2], 7u);
    EXPECT_EQ(together[2], apart[0]);
    EXPECT_EQ(together[3], apart[1]);
  }
}

TEST(NgramRows, WindowsShorterThanTheNgram) {
  EXPECT_EQ(Rows({3, 1000}, 10, {1, {3, 4}, {0, 0}}), (std::vector<uint32_t>{3, 4}));
  EXPECT_EQ(Rows({3, 1000}, 10, {2, {3, 4, 5, 6}, {0, 0, 0, 0}}),
            (std::vector<uint32_t>{3, 34, 5, 56}));
}

TEST(NgramRows, ScrambleMovesEveryRowByOneShift) {
  const Windows windows = {4, {1, 9, 0, 5}, {0, 0, 0, 0}};
  for (const uint64_t modulus : {2u, 50u, 100'003u}) {
    for (const int64_t pass : {0, 2}) {
      const std::vector<uint32_t> plain = Rows({3, modulus}, 10, windows, {pass, 1, false});
      const std::vector<uint32_t> moved = Rows({3, modulus}, 10, windows, {pass, 1, true});
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(moved[i], (plain[i] + modulus / 2 + 7919) % modulus);
      }
    }
  }
}

TEST(NgramRows, RehashedTablesNameRowsAnewAtEveryPass) {
  // All pairs of 60 tokens: window i is (i / 60, i % 60).
  Windows windows = {2, {}, {}};
  for (uint32_t i = 0; i < 3600; ++i) {
    windows.tokens.insert(windows.tokens.end(), {i / 60, i % 60});
    windows.segments.insert(windows.segments.end(), {0, 0});
  }
  const NgramTable table = {2, 1009};
  const auto pairs = [&](const NgramHash& hash) {
    const std::vector<uint32_t> rows = Rows(table, 60, windows, hash);
    std::vector<uint32_t> second;
    for (size_t i = 1; i < rows.size(); i += 2) second.push_back(rows[i]);
    return second;
  };
  const auto colliding = [](const std::vector<uint32_t>& rows) {
    std::set<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (rows[i] == rows[j]) found.emplace(i, j);
      }
    }
    return found;
  };
  EXPECT_EQ(pairs({0, 5, false}), pairs({0, 6, false}))
      << "pass 0 is the formula, whatever the key";
  const std::vector<uint32_t> names[] = {pairs({0, 5, false}), pairs({1, 5, false}),
                                         pairs({2, 5, false}), pairs({1, 6, false})};
  EXPECT_EQ(names[1], pairs({1, 5, false}));
  for (size_t a = 0; a < 4; ++a) {
    for (size_t b = 0; b < a; ++b) {
      size_t same = 0;
      for (size_t i = 0; i < names[a].size(); ++i) same += names[a][i] == names[b][i] ? 1 : 0;
      // Expected 3600 / 1009 = 3.6; 20 is more than 8 standard deviations away.
      EXPECT_LE(same, 20u) << a << " " << b;
    }
  }
  // n-grams that share a row in one pass part in the next: 1 in 1009 of some 6,400 stays.
  const std::set<std::pair<size_t, size_t>> first = colliding(names[1]), then = colliding(names[2]);
  std::vector<std::pair<size_t, size_t>> both;
  std::set_intersection(first.begin(), first.end(), then.begin(), then.end(),
                        std::back_inserter(both));
  EXPECT_LE(both.size(), 30u);
  // Pairs that collide: C(3600, 2) / 1009 = 6420, deviation 80.
  EXPECT_GE(first.size(), 5900u);
  EXPECT_LE(first.size(), 6900u);
}

TEST(NgramRows, RehashedRowsOfLargeIdsStayInsideTheTable) {
  const uint64_t vocab = 1ull << 31;
  const uint32_t last = static_cast<uint32_t>(vocab - 1);
  const Windows windows = {4, {last, last, last - 1, last}, {0, 0, 0, 0}};
  for (const uint64_t modulus : {2ull, 1'000'003ull, (1ull << 32) - 1}) {
    for (const uint32_t row : Rows({3, modulus}, vocab, windows, {3, 77, true})) {
      EXPECT_LT(row, modulus);
    }
  }
}

}  // namespace
}  // namespace overtok
