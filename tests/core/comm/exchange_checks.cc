// Comparisons are exact: elements tell their sender, receiver and number.
#include "tests/core/comm/exchange_checks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/comm/mesh.h"

namespace overtok::testing {
namespace {

using Message = Communicator::Message;

// An element that tells who sent it to whom, and which one it is.
float Mark(int from, int to, int64_t i) {
  return static_cast<float>(from * 1000000 + to * 10000 + i);
}

}  // namespace

void CheckUnevenAndEmptyMessages(Communicator& world) {
  const int n = world.size(), me = world.rank();
  // From r to s: none where r + s is a multiple of 3, else 1 + 5 r + s elements; to itself too.
  const auto count = [](int from, int to) -> int64_t {
    return (from + to) % 3 == 0 ? 0 : 1 + 5 * from + to;
  };
  std::vector<std::vector<float>> out(static_cast<size_t>(n)), in(static_cast<size_t>(n));
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    auto& to = out[static_cast<size_t>(peer)];
    for (int64_t i = 0; i < count(me, peer); ++i) to.push_back(Mark(me, peer, i));
    auto& from = in[static_cast<size_t>(peer)];
    from.assign(static_cast<size_t>(count(peer, me)), -1.0F);
    sends.push_back({peer, Tensor(to.data(), {count(me, peer)})});
    receives.push_back({peer, Tensor(from.data(), {count(peer, me)})});
  }
  world.Exchange(sends, receives, Traffic::kTables);
  for (int peer = 0; peer < n; ++peer) {
    for (int64_t i = 0; i < count(peer, me); ++i) {
      ASSERT_EQ(in[static_cast<size_t>(peer)][static_cast<size_t>(i)], Mark(peer, me, i))
          << "from " << peer << " to " << me;
    }
  }
}

void CheckGuardsBesideOneFloat(Communicator& world) {
  const int n = world.size(), me = world.rank();
  float in[3] = {-7, -7, -7}, out[3] = {100, static_cast<float>(me), 300};
  const Message send{(me + 1) % n, Tensor(out + 1, {1})};
  const Message receive{(me + n - 1) % n, Tensor(in + 1, {1})};
  world.Exchange({&send, 1}, {&receive, 1}, Traffic::kWeights);
  EXPECT_EQ(in[0], -7);
  EXPECT_EQ(in[1], static_cast<float>((me + n - 1) % n));
  EXPECT_EQ(in[2], -7);
  double sum[3] = {-7, 1, -7};
  world.AllReduceSum(std::span<double>(sum + 1, 1), Traffic::kControl);
  EXPECT_EQ(sum[0], -7);
  EXPECT_EQ(sum[1], n);
  EXPECT_EQ(sum[2], -7);
  float share[3] = {-7, me == n - 1 ? 5.0F : 0.0F, -7};
  world.Broadcast(Tensor(share + 1, {1}), n - 1, Traffic::kWeights);
  EXPECT_EQ(share[0], -7);
  EXPECT_EQ(share[1], 5);
  EXPECT_EQ(share[2], -7);
}

void CheckEveryDType(Communicator& world) {
  const int n = world.size(), me = world.rank();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kU32,
                            DType::kU16, DType::kU8, DType::kI64, DType::kU64}) {
    const int64_t count = 13, bytes = count * SizeOf(dtype);
    // Every bit pattern has to arrive, NaNs included.
    const auto byte = [&](int from, int64_t i) {
      return static_cast<unsigned char>(0xf1 + 31 * from + 7 * i);
    };
    std::vector<unsigned char> mine(static_cast<size_t>(bytes)), all(mine.size() * size_t(n));
    for (int64_t i = 0; i < bytes; ++i) mine[static_cast<size_t>(i)] = byte(me, i);
    world.AllGather(Tensor(mine.data(), dtype, {count}), Tensor(all.data(), dtype, {n, count}),
                    Traffic::kWeights);
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(all[static_cast<size_t>(r * bytes + i)], byte(r, i)) << NameOf(dtype);
      }
    }
  }
}

void CheckOrderOfExchangesInFlight(Communicator& world) {
  const int n = world.size(), me = world.rank();
  const int64_t rounds = 6;
  // Sizes differ by round and several are waited for in reverse; between them goes a reduction.
  std::vector<std::vector<float>> out, in;
  std::vector<Request> requests;
  for (int64_t k = 0; k < rounds; ++k) {
    out.emplace_back(static_cast<size_t>(k + 1), static_cast<float>(10 * me + k));
    in.emplace_back(static_cast<size_t>(k + 1), -1.0F);
  }
  for (int64_t k = 0; k < rounds; ++k) {
    const Message send{(me + 1) % n, Tensor(out[static_cast<size_t>(k)].data(), {k + 1})};
    const Message receive{(me + n - 1) % n, Tensor(in[static_cast<size_t>(k)].data(), {k + 1})};
    requests.push_back(world.StartExchange({&send, 1}, {&receive, 1}, Traffic::kGradients));
    if (k == 2) {
      double one = 1;
      world.AllReduceSum(std::span<double>(&one, 1), Traffic::kControl);
      EXPECT_EQ(one, n);
    }
  }
  for (int64_t k = rounds - 1; k >= 0; --k) {
    requests[static_cast<size_t>(k)].Wait();
    requests[static_cast<size_t>(k)].Wait();  // harmless
    for (const float x : in[static_cast<size_t>(k)]) {
      ASSERT_EQ(x, static_cast<float>(10 * ((me + n - 1) % n) + k));
    }
  }
  // Several messages of one exchange to one peer, and a ping-pong after them.
  float a = static_cast<float>(me), b = static_cast<float>(me) + 0.5F, c = -1, d = -1;
  const int next = (me + 1) % n, last = (me + n - 1) % n;
  const Message sends[] = {{next, Tensor(&a, {1})}, {next, Tensor(&b, {1})}};
  const Message receives[] = {{last, Tensor(&c, {1})}, {last, Tensor(&d, {1})}};
  world.Exchange(sends, receives, Traffic::kTables);
  EXPECT_EQ(c, static_cast<float>(last));
  EXPECT_EQ(d, static_cast<float>(last) + 0.5F);
}

void CheckGatherInPlace(Communicator& world) {
  const int n = world.size(), me = world.rank();
  std::vector<int64_t> all(static_cast<size_t>(3 * n), -1);
  for (int i = 0; i < 3; ++i) all[static_cast<size_t>(3 * me + i)] = 3 * me + i;
  const Tensor whole(all.data(), {n, 3});
  world.AllGather(whole.Rows(me, 1), whole, Traffic::kActivations);
  for (int64_t i = 0; i < 3 * n; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
}

void CheckSumsAreEqualBits(Communicator& world) {
  const int n = world.size(), me = world.rank();
  // Terms whose sum depends on its order: 1, 1e16, -1e16, 1, ... by rank, and inexact fractions.
  const auto term = [](int r, int64_t i) {
    if (i % 2 == 0) return r % 3 == 0 ? 1.0 : (r % 3 == 1 ? 1e16 : -1e16);
    return 0.1 * (r + 1) / (3 + static_cast<double>(i));
  };
  std::vector<double> values(37), expected(37, 0.0);
  for (int64_t i = 0; i < 37; ++i) {
    values[static_cast<size_t>(i)] = term(me, i);
    expected[static_cast<size_t>(i)] = term(0, i);
    for (int r = 1; r < n; ++r) expected[static_cast<size_t>(i)] += term(r, i);
  }
  world.AllReduceSum(std::span<double>(values), Traffic::kControl);
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(double)), 0);
  int64_t big[2] = {(int64_t{1} << 53) + me, -me};
  world.AllReduceSum(std::span<int64_t>(big), Traffic::kControl);
  EXPECT_EQ(big[0], n * (int64_t{1} << 53) + n * (n - 1) / 2);
  EXPECT_EQ(big[1], -n * (n - 1) / 2);
  world.AllReduceSum(std::span<double>(), Traffic::kControl);
}

void CheckMaximaAndFlags(Communicator& world) {
  const int n = world.size(), me = world.rank();
  double values[3] = {static_cast<double>(me), static_cast<double>(-me), -1e300};
  world.AllReduceMax(values, Traffic::kControl);
  EXPECT_EQ(values[0], n - 1);
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[2], -1e300);
  for (int r = 0; r < n; ++r) {
    double value = me == r ? std::numeric_limits<double>::quiet_NaN() : 5.0;
    world.AllReduceMax(std::span<double>(&value, 1), Traffic::kControl);
    EXPECT_TRUE(std::isnan(value)) << "NaN of rank " << r;
    EXPECT_TRUE(world.Any(me == r));
  }
  EXPECT_FALSE(world.Any(false));
}

void CheckBroadcasts(Communicator& world) {
  const int n = world.size(), me = world.rank();
  for (int root = 0; root < n; ++root) {
    std::vector<uint16_t> values(5, static_cast<uint16_t>(me));
    world.Broadcast(Tensor(values.data(), {5}), root, Traffic::kFiles);
    for (const uint16_t value : values) EXPECT_EQ(value, root);
    const std::string text =
        world.BroadcastText(std::string(size_t(me * 100), char('a' + me)), root);
    EXPECT_EQ(text, std::string(size_t(root * 100), char('a' + root)));
  }
  world.Barrier();
}

void CheckGroupsOfAMesh(Communicator& world) {
  ASSERT_EQ(world.size(), 4);
  const Mesh mesh(&world, 2);
  if (world.rank() == 2) {
    EXPECT_EQ(mesh.tensor().rank(), 0);
    EXPECT_EQ(mesh.data().rank(), 1);
  }
  // Both groups and the world in flight at once: their messages do not mix.
  const auto me = static_cast<float>(world.rank());
  float mine = me, all[4], pair[2], column[2];
  Request of_world = world.StartAllGather(Tensor(&mine, {1}), Tensor(all, {4}), Traffic::kLoss);
  Request of_tensor =
      mesh.tensor().StartAllGather(Tensor(&mine, {1}), Tensor(pair, {2}), Traffic::kLoss);
  Request of_data =
      mesh.data().StartAllGather(Tensor(&mine, {1}), Tensor(column, {2}), Traffic::kLoss);
  of_data.Wait();
  of_tensor.Wait();
  of_world.Wait();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(all[r], static_cast<float>(r));
  const int data = world.rank() / 2, tensor = world.rank() % 2;
  EXPECT_EQ(pair[0], static_cast<float>(2 * data));
  EXPECT_EQ(pair[1], static_cast<float>(2 * data + 1));
  EXPECT_EQ(column[0], static_cast<float>(tensor));
  EXPECT_EQ(column[1], static_cast<float>(tensor + 2));
  // Groups of one and of uneven size.
  const auto part = world.Divide(world.rank() == 3 ? 7 : -1);
  EXPECT_EQ(part->size(), world.rank() == 3 ? 1 : 3);
  double one = 1;
  part->AllReduceSum(std::span<double>(&one, 1), Traffic::kControl);
  EXPECT_EQ(one, part->size());
}

void CheckBytesSent(Communicator& world) {
  const int n = world.size(), me = world.rank();
  const auto before = world.bytes_sent();
  const auto sent = [&](Traffic kind) {
    return world.bytes_sent()[static_cast<size_t>(kind)] - before[static_cast<size_t>(kind)];
  };
  std::vector<bf16> half(9), all(static_cast<size_t>(9 * n));
  float own = 1, own_in = 0;
  const Message to_self{me, Tensor(&own, {1})}, from_self{me, Tensor(&own_in, {1})};
  world.Exchange({&to_self, 1}, {&from_self, 1}, Traffic::kGradients);
  EXPECT_EQ(own_in, 1);
  EXPECT_EQ(sent(Traffic::kGradients), 0);
  world.AllGather(Tensor(half.data(), {9}), Tensor(all.data(), {n, 9}), Traffic::kWeights);
  EXPECT_EQ(sent(Traffic::kWeights), 18 * (n - 1));
  double values[4] = {};
  world.AllReduceSum(values, Traffic::kLoss);
  world.AllReduceMax(values, Traffic::kLoss);
  EXPECT_EQ(sent(Traffic::kLoss), 2 * 32 * (n - 1));
  world.Broadcast(Tensor(half.data(), {9}), 0, Traffic::kFiles);
  EXPECT_EQ(sent(Traffic::kFiles), me == 0 ? 18 * (n - 1) : 0);
  world.Any(false);
  EXPECT_EQ(sent(Traffic::kControl), 8 * (n - 1));
}

}  // namespace overtok::testing
