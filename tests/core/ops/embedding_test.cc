#include "core/ops/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillIds;
using testing::FillNormal;
using testing::Role;
using testing::ScratchContext;
using testing::Storage;
using testing::ThreadScope;

struct Size {
  int64_t tokens, rows, width;
};
// Runs longer than a task's share of entries (512), columns beyond one strip (256), ids that need
// one, two and three digits of the sort.
const std::vector<Size> kSizes = {{1, 1, 1}, {7, 3, 17}, {1500, 2, 300}, {2000, 5000, 24}};

TEST(Embedding, ForwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    testing::CheckOp({.name = "embedding forward",
                      .operands = {{.name = "ids",
                                    .storage = Storage::kFixed,
                                    .shape = {s.tokens},
                                    .fill = [&](Buffer& b) { FillIds(b, 1, s.rows); },
                                    .fixed = DType::kU32},
                                   {.name = "table",
                                    .storage = Storage::kStatistic,
                                    .shape = {s.rows, s.width},
                                    .fill = [](Buffer& b) { FillNormal(b, 2, 1); }},
                                   {.name = "y",
                                    .role = Role::kOutput,
                                    .shape = {s.tokens, s.width},
                                    .value_units = 1,
                                    .tensor_units = 0}},
                      .run = [](const Context& c, const std::vector<Tensor>& t) {
                        EmbeddingForward(c, {t[0], t[1], t[2]});
                      }});
  }
}

TEST(Embedding, BackwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    // A sum of n terms in f32 one after the other errs by n roundings at most, sqrt(n) as a rule.
    const double units =
        4 + 4 * std::sqrt(static_cast<double>(s.tokens) / static_cast<double>(s.rows));
    testing::CheckOp({.name = "embedding backward",
                      .operands = {{.name = "ids",
                                    .storage = Storage::kFixed,
                                    .shape = {s.tokens},
                                    .fill = [&](Buffer& b) { FillIds(b, 1, s.rows); },
                                    .fixed = DType::kU32},
                                   {.name = "dy",
                                    .shape = {s.tokens, s.width},
                                    .fill = [](Buffer& b) { FillNormal(b, 2, 1); }},
                                   {.name = "dtable",
                                    .role = Role::kInputOutput,
                                    .storage = Storage::kStatistic,
                                    .shape = {s.rows, s.width},
                                    .fill = [](Buffer& b) { FillNormal(b, 3, 1); },
                                    .value_units = units,
                                    .tensor_units = units}},
                      .run =
                          [](const Context& c, const std::vector<Tensor>& t) {
                            EmbeddingBackward(c, {t[0], t[1], t[2]});
                          },
                      .scratch = [&](DType) { return EmbeddingBackwardScratch(s.tokens); }});
  }
}

// Each row's sum runs in order of positions: equal to the plain loop bit for bit, in f32.
TEST(Embedding, BackwardAddsInOrderOfPositions) {
  const int64_t tokens = 3000, rows = 40, width = 33;
  Buffer ids(DType::kU32, {tokens}), dy(DType::kF32, {tokens, width}),
      dtable(DType::kF32, {rows, width});
  FillIds(ids, 4, rows / 2);  // the upper half is never named
  FillNormal(dy, 5, 1);
  FillNormal(dtable, 6, 1);
  Buffer expected(dtable);
  float* sums = expected.tensor().data<float>();
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < width; ++i)
      sums[static_cast<int64_t>(ids.Get(t)) * width + i] +=
          dy.tensor().data<float>()[t * width + i];
  const ScratchContext context(EmbeddingBackwardScratch(tokens));
  const ThreadScope threads(2);
  EmbeddingBackward(*context, {ids.tensor(), dy.tensor(), dtable.tensor()});
  EXPECT_TRUE(dtable.SameBits(expected));
}

// One id for a third of all positions, as an end-of-text token may be, some for a few and many for
// one: the same chains of sums, in columns that are loaded alone (odd start) and in packs.
TEST(Embedding, BackwardAddsLongRunsInOrderOfPositions) {
  const int64_t tokens = 1500, rows = 70'000, width = 148;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Buffer::Start start : {Buffer::Start::kOdd, Buffer::Start::kAligned}) {
      Buffer ids(DType::kU32, {tokens}), dy(dtype, {tokens, width}, start),
          dtable(DType::kF32, {rows, width}, start);
      FillIds(ids, 4, rows);
      uint32_t* id = ids.tensor().data<uint32_t>();
      for (int64_t t = 0; t < tokens; t += 3) id[t] = 66'000;
      for (int64_t t = 1; t < tokens; t += 9) id[t] = static_cast<uint32_t>(rows - 1 - t % 5);
      for (int64_t t = 2; t < tokens; t += 7) id[t] = kNoRow;
      FillNormal(dy, 5, 1);
      for (int64_t i = 0; i < dtable.size(); i += 997) dtable.Set(i, 0.1);
      Buffer expected(dtable);
      float* sums = expected.tensor().data<float>();
      for (int64_t t = 0; t < tokens; ++t) {
        if (id[t] == kNoRow) continue;
        for (int64_t i = 0; i < width; ++i)
          sums[static_cast<int64_t>(id[t]) * width + i] +=
              static_cast<float>(dy.Get(t * width + i));
      }
      const ScratchContext context(EmbeddingBackwardScratch(tokens));
      EmbeddingBackward(*context, {ids.tensor(), dy.tensor(), dtable.tensor()});
      EXPECT_TRUE(dtable.SameBits(expected)) << NameOf(dtype);
      EXPECT_TRUE(dtable.GuardsIntact() && context.GuardsIntact());
    }
  }
}

TEST(Embedding, BackwardIsTheForwardsTranspose) {
  const int64_t tokens = 11, rows = 4, width = 3;
  Buffer ids(DType::kU32, {tokens}), table(DType::kF64, {rows, width}),
      y(DType::kF64, {tokens, width});
  Buffer dy(DType::kF64, {tokens, width}), dtable(DType::kF64, {rows, width});
  FillIds(ids, 7, rows);
  FillNormal(table, 8, 1);
  FillNormal(dy, 9, 1);
  const ScratchContext context(EmbeddingBackwardScratch(tokens), CpuDevice());
  EmbeddingBackward(*context, {ids.tensor(), dy.tensor(), dtable.tensor()});
  testing::CheckGradient("dtable", table, dtable, [&] {
    EmbeddingForward(*context, {ids.tensor(), table.tensor(), y.tensor()});
    return Dot(dy, y);
  });
}

TEST(Embedding, NoTokensChangeNothing) {
  Buffer ids(DType::kU32, {0}), y(DType::kF32, {0, 4}), table(DType::kF32, {3, 4});
  FillNormal(table, 1, 1);
  const Buffer before(table);
  const ScratchContext context(0);
  EmbeddingForward(*context, {ids.tensor(), table.tensor(), y.tensor()});
  EmbeddingBackward(*context, {ids.tensor(), y.tensor(), table.tensor()});
  EXPECT_TRUE(table.SameBits(before));
}

// Ids of the harness with every third position naming no row.
void FillWithGaps(Buffer& ids, int64_t rows) {
  FillIds(ids, 10, rows);
  for (int64_t t = 0; t < ids.tensor().elements(); t += 3)
    ids.tensor().data<uint32_t>()[t] = kNoRow;
}

TEST(Embedding, PositionsWithoutRowGiveZeroAndScaleIsAppliedOnce) {
  const int64_t tokens = 700, rows = 9, width = 21;
  Buffer ids(DType::kU32, {tokens}), table(DType::kF32, {rows, width}),
      y(DType::kF32, {tokens, width});
  FillWithGaps(ids, rows);
  FillNormal(table, 2, 1);
  FillNormal(y, 3, 1);  // what a skipped write would leave
  const ScratchContext context(0);
  EmbeddingForward(*context, {ids.tensor(), table.tensor(), y.tensor(), 0.2});
  const uint32_t* id = ids.tensor().data<uint32_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const float expected =
          id[t] == kNoRow ? 0 : 0.2F * table.tensor().data<float>()[id[t] * width + i];
      ASSERT_EQ(y.tensor().data<float>()[t * width + i], expected) << t << ", " << i;
    }
  }
}

// A bf16 table's rows come back as they are stored, in f32 and in bf16 alike.
TEST(Embedding, ReadsBf16Tables) {
  const int64_t tokens = 300, rows = 9, width = 21;
  Buffer ids(DType::kU32, {tokens}), table(DType::kBF16, {rows, width}),
      wide(DType::kF32, {tokens, width}), narrow(DType::kBF16, {tokens, width});
  FillWithGaps(ids, rows);
  FillNormal(table, 2, 1);
  const ScratchContext context(0);
  EmbeddingForward(*context, {ids.tensor(), table.tensor(), wide.tensor(), 0.5});
  EmbeddingForward(*context, {ids.tensor(), table.tensor(), narrow.tensor(), 0.5});
  const uint32_t* id = ids.tensor().data<uint32_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const float expected =
          id[t] == kNoRow
              ? 0
              : 0.5F * static_cast<float>(table.tensor().data<bf16>()[id[t] * width + i]);
      ASSERT_EQ(wide.tensor().data<float>()[t * width + i], expected) << t << ", " << i;
      ASSERT_EQ(static_cast<float>(narrow.tensor().data<bf16>()[t * width + i]), expected);
    }
  }
}

TEST(Embedding, BackwardSkipsPositionsWithoutRow) {
  const int64_t tokens = 1300, rows = 9, width = 21;
  Buffer ids(DType::kU32, {tokens}), dy(DType::kF64, {tokens, width}),
      dtable(DType::kF64, {rows, width});
  FillWithGaps(ids, rows);
  FillNormal(dy, 5, 1);
  FillNormal(dtable, 6, 1);
  Buffer expected(dtable);
  for (int64_t t = 0; t < tokens; ++t) {
    const uint32_t id = ids.tensor().data<uint32_t>()[t];
    if (id == kNoRow) continue;
    for (int64_t i = 0; i < width; ++i) {
      expected.tensor().data<double>()[id * width + i] +=
          0.25 * dy.tensor().data<double>()[t * width + i];  // a power of two: exact
    }
  }
  const ScratchContext context(EmbeddingBackwardScratch(tokens), CpuDevice());
  EmbeddingBackward(*context, {ids.tensor(), dy.tensor(), dtable.tensor(), 0.25});
  EXPECT_TRUE(dtable.SameBits(expected));
  // Nothing but gaps.
  std::fill_n(ids.tensor().data<uint32_t>(), tokens, kNoRow);
  EmbeddingBackward(*context, {ids.tensor(), dy.tensor(), dtable.tensor(), 0.25});
  EXPECT_TRUE(dtable.SameBits(expected));
}

}  // namespace
}  // namespace overtok
