// The head on two streams of a device: whatever order the streams allow, the bits are those of one
// tile after the other. The emulated device runs the side stream as early and as late as it may, so
// that an order that is needed and not said shows as other numbers. Nothing of speed is checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bf16.h"
#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/queues.h"
#include "core/memory.h"
#include "losses/linear_cross_entropy.h"
#include "tests/losses/head_reference.h"

namespace overtok {
namespace {

using emulation::Schedule;
using emulation::ScopedSchedule;
using testing::HeadProblem;

constexpr int64_t kHidden = 16, kMostClasses = 97, kTileRows = 64;
constexpr int64_t kTileBytes = kTileRows * kMostClasses * 4;

struct Call {
  int64_t tokens = 0, classes = kMostClasses;
  DType act = DType::kF32;
  bool accumulate = false, gradients = true;
};

// Bytes of everything that a caller sees, after two calls without a wait between them.
struct Seen {
  std::string losses, d_hidden, d_weight;
  std::string sums;
  bool operator==(const Seen&) const = default;
};

class DeviceHead {
 public:
  explicit DeviceHead(const Call& call)
      : call_(call),
        problem_(call.tokens, kHidden, call.classes, 1.0F),
        memory_(Memory::Mode::kReal, EmulatedDevice()),
        context_(EmulatedDevice()),
        head_(&memory_, kMostTokens, kHidden, kMostClasses, call.act, nullptr, kTileBytes) {
    const int64_t t = call.tokens, v = call.classes;
    args_.hidden = Take(call.act, {t, kHidden});
    args_.weight = Take(call.act, {v, kHidden});
    args_.targets = Take(DType::kU32, {t});
    args_.loss_weight = Take(DType::kF32, {t});
    args_.bias = Take(DType::kF32, {v});
    args_.z_loss = 1e-2;
    sums_ = Take(DType::kF64, {3});
    if (call.gradients) {
      args_.gradient_weight = Take(DType::kF32, {t});
      args_.d_hidden = Take(call.act, {t, kHidden});
      args_.d_weight = Take(DType::kF32, {v, kHidden});
    }
    memory_.Commit(&context_);
    Write(problem_.h, args_.hidden);
    Write(problem_.w, args_.weight);
    Write(problem_.weight, args_.loss_weight);
    context_.Write(problem_.targets.data(), args_.targets);
    Write(std::vector<float>(problem_.w.begin(), problem_.w.begin() + v), args_.bias);
    if (!call.gradients) return;
    Write(problem_.gradient_weight, args_.gradient_weight);
    Write(std::vector<float>(problem_.w.size(), 0.5F), args_.d_weight);
  }

  // In one call each time.
  Seen RunAtOnce() {
    for (const bool accumulate : {call_.accumulate, true}) {
      args_.accumulate_d_weight = accumulate;
      head_.Run(context_, args_, sums_);
    }
    Seen seen = Gradients();
    seen.losses = Bytes(head_.token_losses().Rows(0, call_.tokens));
    seen.sums = Bytes(sums_);
    return seen;
  }

  // Every tile in a call of its own; without the sums.
  Seen RunTileByTile() {
    std::string losses;
    const int64_t step = head_.tile_rows(call_.classes);
    for (const bool accumulate : {call_.accumulate, true}) {
      losses.clear();
      for (int64_t begin = 0; begin < call_.tokens; begin += step) {
        const int64_t rows = std::min(step, call_.tokens - begin);
        LinearCrossEntropyArgs part = args_;
        for (Tensor* tensor : {&part.hidden, &part.targets, &part.loss_weight,
                               &part.gradient_weight, &part.d_hidden}) {
          if (tensor->defined()) *tensor = tensor->Rows(begin, rows);
        }
        part.accumulate_d_weight = accumulate || begin > 0;
        head_.Run(context_, part, sums_);
        losses += Bytes(head_.token_losses().Rows(0, rows));
      }
    }
    Seen seen = Gradients();
    seen.losses = losses;
    return seen;
  }
  int64_t tile_rows() const { return head_.tile_rows(call_.classes); }

 private:
  static constexpr int64_t kMostTokens = 400;
  Tensor Take(DType dtype, Shape shape) {
    return memory_.Take(Purpose::kActivations, "of the test", dtype, shape);
  }
  void Write(const std::vector<float>& values, const Tensor& tensor) {
    if (tensor.dtype() == DType::kF32) {
      context_.Write(values.data(), tensor);
    } else {
      const std::vector<bf16> rounded(values.begin(), values.end());
      context_.Write(rounded.data(), tensor);
    }
  }
  std::string Bytes(const Tensor& tensor) {
    std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
    context_.Read(tensor, bytes.data());
    return bytes;
  }
  Seen Gradients() {
    Seen seen;
    if (!call_.gradients) return seen;
    seen.d_hidden = Bytes(args_.d_hidden);
    seen.d_weight = Bytes(args_.d_weight);
    return seen;
  }

  Call call_;
  HeadProblem problem_;
  Memory memory_;
  Context context_;
  LinearCrossEntropy head_;
  LinearCrossEntropyArgs args_;
  Tensor sums_;
};

Seen RunUnder(Schedule schedule, const Call& call) {
  const ScopedSchedule scoped(schedule);
  DeviceHead head(call);
  return head.RunAtOnce();
}

void ExpectSameBits(const Call& call, int64_t tiles) {
  SCOPED_TRACE(::testing::Message()
               << call.tokens << " tokens, " << call.classes << " classes, " << NameOf(call.act)
               << (call.accumulate ? ", accumulated" : "") << (call.gradients ? "" : ", losses"));
  Seen expected;
  {
    const ScopedSchedule in_order(Schedule::kInOrder);
    DeviceHead head(call);
    ASSERT_EQ((call.tokens + head.tile_rows() - 1) / head.tile_rows(), tiles);
    expected = head.RunTileByTile();
  }
  const Seen in_order = RunUnder(Schedule::kInOrder, call);
  expected.sums = in_order.sums;  // of other parts there, and so of other bits
  EXPECT_TRUE(in_order == expected) << "in order";
  EXPECT_TRUE(RunUnder(Schedule::kSideFirst, call) == expected) << "side stream first";
  EXPECT_TRUE(RunUnder(Schedule::kMainFirst, call) == expected) << "main stream first";
}

void ExpectSameBitsInAllWays(int64_t tokens, int64_t classes, int64_t tiles) {
  ExpectSameBits({tokens, classes, DType::kF32, /*accumulate=*/false, /*gradients=*/true}, tiles);
  ExpectSameBits({tokens, classes, DType::kBF16, /*accumulate=*/true, /*gradients=*/true}, tiles);
  ExpectSameBits({tokens, classes, DType::kBF16, /*accumulate=*/false, /*gradients=*/false}, tiles);
}

TEST(OverlappedHead, OneTile) {
  ExpectSameBitsInAllWays(64, kMostClasses, 1);
  ExpectSameBitsInAllWays(37, kMostClasses, 1);
}
TEST(OverlappedHead, TwoTiles) { ExpectSameBitsInAllWays(128, kMostClasses, 2); }
TEST(OverlappedHead, ThreeTiles) { ExpectSameBitsInAllWays(192, kMostClasses, 3); }
TEST(OverlappedHead, SeveralTilesWithAShortOneAtTheEnd) {
  ExpectSameBitsInAllWays(257, kMostClasses, 5);
}
TEST(OverlappedHead, FewerClassesInTilesOfMoreRows) { ExpectSameBitsInAllWays(300, 40, 3); }

TEST(OverlappedHead, TakesTwoTilesWhereTheTokensNeedThem) {
  const auto bytes = [](int64_t tokens, Device* device) {
    Memory memory(Memory::Mode::kDry, device);
    const LinearCrossEntropy head(&memory, tokens, kHidden, kMostClasses, DType::kBF16, nullptr,
                                  kTileBytes);
    return memory.bytes(Purpose::kHead);
  };
  // f32 and bf16 logits of a tile; two fp32 numbers a token, three sums.
  constexpr int64_t kTile = kTileRows * kMostClasses * (4 + 2);
  EXPECT_EQ(bytes(200, EmulatedDevice()), 2 * kTile + 200 * 8 + 24);
  EXPECT_EQ(bytes(64, EmulatedDevice()), kTile + 64 * 8 + 24);
  EXPECT_EQ(bytes(200, CpuDevice()), kTile + 200 * 8 + 24);
}

}  // namespace
}  // namespace overtok
