// Attention over packed documents (core/cuda/packed_attention.h) with a stand-in for the packed
// implementation, which computes each listed document by the definition: the lists, which windows
// are left to the kernels, the log-sum-exp's two layouts, scratch. On the emulated device where no
// other is named.
#include "core/cuda/packed_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/known_memory.h"
#include "tests/core/ops/attention_reference.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::AttentionShape;
using testing::AttentionValues;
using testing::Buffer;
using testing::ScratchContext;

Device* DeviceOfKernels() {
  return testing::TestsCpu() ? EmulatedDevice() : testing::TestedDevice();
}

const PackedKernels& TestedKernels() {
#if defined(OVERTOK_TEST_CUDA)
  if (DeviceOfKernels()->kind() == DeviceKind::kCuda) return cuda::KernelsOfPacked();
#endif
#if defined(OVERTOK_TEST_CHECKED)
  if (DeviceOfKernels() == CheckedDevice()) return checked::KernelsOfPacked();
#endif
  return emulated::KernelsOfPacked();
}

int calls = 0;  // of the stand-in

template <class T>
T* At(const void* data, int64_t element) {
  return const_cast<T*>(static_cast<const T*>(data)) + element;
}

// Rows [L, heads, width] of a document, to and from bf16.
std::vector<double> Take(const void* rows, int64_t first, int64_t count) {
  std::vector<double> values;
  for (int64_t e = 0; e < count; ++e)
    values.push_back(static_cast<double>(static_cast<float>(*At<bf16>(rows, first + e))));
  return values;
}
void Put(const std::vector<double>& values, int64_t first, void* rows) {
  for (size_t e = 0; e < values.size(); ++e)
    *At<bf16>(rows, first + static_cast<int64_t>(e)) = bf16(static_cast<float>(values[e]));
  emulation::MarkWritten(At<bf16>(rows, first), static_cast<int64_t>(values.size()) * 2);
}

// Calls f(shape, n) for every document that is there.
void ForEachDocument(const Context& context, const PackedSizes& s, const DocumentLists& lists,
                     double scale, const std::function<void(const AttentionShape&, int64_t)>& f) {
  context.Wait();
  ++calls;
  for (int64_t n = 0; n < lists.documents; ++n) {
    const int64_t length = lists.lengths[n];
    ASSERT_GE(length, 0);
    if (length == 0) {
      EXPECT_EQ(lists.query_places[n], s.tokens() * s.heads * s.width);
      continue;
    }
    const std::vector<int32_t> one_document(static_cast<size_t>(length), 0);
    f({1, length, s.heads, s.kv_heads, s.width, one_document, scale}, n);
  }
}

AttentionValues Operands(const PackedSizes& s, const DocumentLists& lists, int64_t n, const void* q,
                         const void* k, const void* v) {
  const int64_t rows = lists.lengths[n];
  AttentionValues values;
  values.q = Take(q, lists.query_places[n], rows * s.heads * s.width);
  values.k = Take(k, lists.key_places[n], rows * s.kv_heads * s.width);
  values.v = Take(v, lists.key_places[n], rows * s.kv_heads * s.width);
  return values;
}

void StandInForward(const Context& context, const PackedForward& call) {
  const PackedSizes& s = call.sizes;
  ForEachDocument(context, s, call.lists, call.scale, [&](const AttentionShape& shape, int64_t n) {
    AttentionValues values = Operands(s, call.lists, n, call.q, call.k, call.v);
    values.dout.assign(values.q.size(), 0);
    ReferenceAttention(shape, &values);
    Put(values.o, call.lists.query_places[n], call.o);
    float* const statistics = call.statistics + call.lists.statistic_places[n];
    for (int64_t i = 0; i < shape.length; ++i) {
      for (int64_t h = 0; h < s.heads; ++h) {
        statistics[i * s.heads + h] =
            static_cast<float>(values.lse[static_cast<size_t>(h * shape.length + i)]);
      }
    }
    emulation::MarkWritten(statistics, shape.length * s.heads * 4);
  });
}

void StandInBackward(const Context& context, const PackedBackward& call) {
  const PackedSizes& s = call.sizes;
  ForEachDocument(context, s, call.lists, call.scale, [&](const AttentionShape& shape, int64_t n) {
    AttentionValues values = Operands(s, call.lists, n, call.q, call.k, call.v);
    values.dout = Take(call.dout, call.lists.query_places[n], shape.length * s.heads * s.width);
    ReferenceAttention(shape, &values);
    for (int64_t i = 0; i < shape.length; ++i) {
      for (int64_t h = 0; h < s.heads; ++h) {
        // Kept in f32, of order 10: off by at most a few 2^-24 * 10.
        const double lse = values.lse[static_cast<size_t>(h * shape.length + i)];
        const double kept = call.statistics[call.lists.statistic_places[n] + i * s.heads + h];
        EXPECT_TRUE(std::abs(kept - lse) <= 1e-5 * (1 + std::abs(lse))) << kept << " " << lse;
      }
    }
    Put(values.dq, call.lists.query_places[n], call.dq);
    Put(values.dk, call.lists.key_places[n], call.dk);
    Put(values.dv, call.lists.key_places[n], call.dv);
  });
}

// Ids of windows whose documents have these lengths; the last one goes on to the window's end.
std::vector<int32_t> Segments(int64_t length, const std::vector<std::vector<int64_t>>& windows) {
  std::vector<int32_t> ids;
  for (const std::vector<int64_t>& documents : windows) {
    int32_t id = 5;
    int64_t i = 0;
    for (const int64_t document : documents) {
      for (int64_t j = 0; j < document && i < length; ++j, ++i) ids.push_back(id);
      id += 2;
    }
    for (; i < length; ++i) ids.push_back(id);
  }
  return ids;
}

std::vector<std::vector<int64_t>> EachPositionAlone(int64_t length) {
  return {std::vector<int64_t>(static_cast<size_t>(length), 1)};
}

struct Case {
  std::string name;
  int64_t length, heads, kv_heads, width;
  std::vector<std::vector<int64_t>> windows;
  std::vector<int> taken;  // what is expected
};

std::vector<Case> Cases() {
  return {
      {"one document", 70, 2, 1, 16, {{70}}, {1}},
      {"three windows, the second has no room",
       40,
       4,
       2,
       64,
       {{3, 20}, EachPositionAlone(40)[0], {1, 1, 30}},
       {1, 0, 1}},
      {"as many documents as there is room", 30, 2, 2, 32, {{1, 2, 3, 4, 5, 6, 7}}, {1}},
      {"one more", 30, 2, 2, 32, {{1, 2, 3, 4, 5, 6, 6, 1}}, {0}},
      {"a later window fits where an earlier one did not",
       24,
       2,
       1,
       16,
       {{1, 1, 1, 1, 1}, {1, 1, 1}, {10}},
       {1, 0, 1}},
      {"documents across pieces of 256 positions", 300, 1, 1, 16, {{250, 20}, {256}}, {1, 1}},
  };
}

struct Problem {
  explicit Problem(const Case& c, DType dtype = DType::kBF16)
      : shape{static_cast<int64_t>(c.windows.size()),
              c.length,
              c.heads,
              c.kv_heads,
              c.width,
              Segments(c.length, c.windows),
              1 / std::sqrt(static_cast<double>(c.width))},
        q(dtype, {shape.batch * c.length, c.heads, c.width}, Buffer::Start::kAligned),
        k(dtype, {shape.batch * c.length, c.kv_heads, c.width}, Buffer::Start::kAligned),
        v(k),
        dout(q),
        o(q),
        dq(q),
        dk(k),
        dv(k),
        segments(DType::kI32, {shape.batch, c.length},
                 std::vector<double>(shape.segments.begin(), shape.segments.end())),
        lse(DType::kF32, {shape.batch, c.heads, c.length}) {
    FillNormal(q, 1, 1);
    FillNormal(k, 2, 1);
    FillNormal(v, 3, 1);
    FillNormal(dout, 4, 1);
    for (Buffer* output : {&o, &lse, &dq, &dk, &dv}) output->Poison();
  }
  int64_t Scratch() const {
    return AttentionScratch(shape.batch, shape.length, shape.heads, shape.kv_heads, shape.width,
                            q.dtype(), AttentionKind::kCudnn);
  }
  AttentionForwardArgs Forward() const {
    return {q.tensor(), k.tensor(),   v.tensor(), segments.tensor(),
            o.tensor(), lse.tensor(), shape.scale};
  }
  AttentionBackwardArgs Backward() const {
    return {dout.tensor(), q.tensor(),  k.tensor(),  v.tensor(),  segments.tensor(), o.tensor(),
            lse.tensor(),  dq.tensor(), dk.tensor(), dv.tensor(), shape.scale};
  }
  void Run() const {
    const ScratchContext context(Scratch(), DeviceOfKernels());
    AttendPacked(*context, Forward(), TestedKernels(), StandInForward);
    AttendPacked(*context, Backward(), TestedKernels(), StandInBackward);
    EXPECT_TRUE(context.GuardsIntact());
  }

  AttentionShape shape;
  Buffer q, k, v, dout, o, dq, dk, dv, segments, lse;
};

TEST(PackedAttention, IsAttention) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c);
    problem.Run();
    AttentionValues expected;
    expected.q = problem.q.Values();
    expected.k = problem.k.Values();
    expected.v = problem.v.Values();
    expected.dout = problem.dout.Values();
    ReferenceAttention(problem.shape, &expected);
    // The kernels' windows as in attention_test.cc, one unit of bf16 of the largest value with
    // room; the stand-in's are rounded once.
    const auto check = [&](const char* name, const Buffer& actual,
                           const std::vector<double>& values, double relative) {
      ExpectClose(name, actual, values, {.absolute = relative * testing::MaxAbs(values)});
      EXPECT_EQ(actual.FirstUnwritten(), -1) << name;
    };
    check("o", problem.o, expected.o, 0x1p-7);
    check("lse", problem.lse, expected.lse, 1e-5);
    check("dq", problem.dq, expected.dq, 0x1p-7);
    check("dk", problem.dk, expected.dk, 0x1p-7);
    check("dv", problem.dv, expected.dv, 0x1p-7);
  }
}

// Lists, byte for byte, and which windows they hold.
TEST(PackedAttention, ListsTheDocumentsOfTakenWindowsInOrder) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c);
    const PackedSizes s = {problem.shape.batch, c.length, c.heads, c.kv_heads, c.width};
    const PackedLayout layout = LayoutOf(s);
    const ScratchContext context(problem.Scratch(), DeviceOfKernels());
    auto* const base = static_cast<char*>((*context).Scratch(layout.bytes));
    const auto i64 = [&](int64_t at) { return reinterpret_cast<int64_t*>(base + at); };
    const auto i32 = [&](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
    const DocumentLists lists = {
        layout.documents,       i32(layout.lengths),          i64(layout.query_places),
        i64(layout.key_places), i64(layout.statistic_places), i32(layout.counts),
        i32(layout.taken)};
    TestedKernels().list(*context, problem.segments.tensor(), s, lists);
    (*context).Wait();
    int64_t n = 0;
    const auto expect = [&](int64_t length, int64_t position) {
      if (n < layout.documents) {
        EXPECT_EQ(lists.lengths[n], length) << n;
      }
      EXPECT_EQ(lists.query_places[n], position * s.heads * s.width) << n;
      EXPECT_EQ(lists.key_places[n], position * s.kv_heads * s.width) << n;
      EXPECT_EQ(lists.statistic_places[n], position * s.heads) << n;
      ++n;
    };
    for (int64_t b = 0; b < s.batch; ++b) {
      const bool taken = c.taken[static_cast<size_t>(b)] == 1;
      EXPECT_EQ(lists.taken[b], taken ? 1 : 0) << b;
      const int32_t* const ids = problem.shape.segments.data() + b * c.length;
      for (int64_t i = 0, end = 0; i < c.length && taken; i = end) {
        while (end < c.length && ids[end] == ids[i]) ++end;
        expect(end - i, b * c.length + i);
      }
    }
    while (n <= layout.documents) expect(0, s.tokens());
  }
}

// Calls that a packed implementation does not take are the kernels', whole.
TEST(PackedAttention, LeavesOtherCallsToTheKernels) {
  const Case other_width = {"", 20, 2, 1, 24, {{10}}, {}},
             one_position = {"", 1, 2, 1, 16, {{1}}, {}};
  Problem f32({"", 20, 2, 1, 16, {{10}}, {}}, DType::kF32);
  for (const Problem* problem : {&f32}) {
    calls = 0;
    EXPECT_FALSE(TakesPacked(problem->Forward()));
    problem->Run();
    EXPECT_EQ(calls, 0);
  }
  for (const Case& c : {other_width, one_position}) {
    const Problem problem(c);
    calls = 0;
    EXPECT_FALSE(TakesPacked(problem.Forward()));
    EXPECT_FALSE(TakesPacked(problem.Backward()));
    problem.Run();
    EXPECT_EQ(calls, 0);
    EXPECT_TRUE(testing::MaxAbs(problem.o.Values()) > 0);
  }
  const Problem taken({"", 20, 2, 1, 16, {{10}}, {}});
  EXPECT_TRUE(TakesPacked(taken.Forward()));
  EXPECT_TRUE(TakesPacked(taken.Backward()));
  const Buffer odd(DType::kBF16, taken.q.shape());
  AttentionForwardArgs unaligned = taken.Forward();
  unaligned.o = odd.tensor();
  EXPECT_FALSE(TakesPacked(unaligned));
}

// The sizes of a recipe: what is planned is what cuDNN 9.28's plans for sm_90 were seen to ask for,
// with room (made without a GPU, from the device's properties), and little more.
TEST(PackedAttention, PlansTheWorkspaceOfTheRecipes) {
  struct Seen {
    PackedSizes sizes;
    int64_t documents, forward, backward;
  };
  for (const Seen& seen : {Seen{{32, 4096, 8, 8, 64}, 288, 75648, 273940736},
                           Seen{{32, 4096, 12, 12, 64}, 288, 75648, 410845440},
                           Seen{{32, 4096, 16, 8, 64}, 288, 75648, 1621491968},
                           Seen{{16, 4096, 16, 8, 128}, 144, 38272, 1616052992}}) {
    EXPECT_EQ(PackedDocuments(seen.sizes.batch, seen.sizes.length), seen.documents);
    const int64_t planned = PackedWorkspaceBytes(seen.sizes, seen.documents);
    EXPECT_GE(planned, seen.forward);
    EXPECT_GE(planned, seen.backward + seen.backward / 1000);
    EXPECT_LE(planned, seen.backward + seen.backward / 50);
  }
}

}  // namespace
}  // namespace overtok
