// Comparisons are exact: elements tell their sender, receiver and number.
#include "tests/core/comm/exchange_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/mesh.h"

namespace overtok::testing {
namespace {

using Message = Communicator::Message;

thread_local Device* the_device = nullptr;

// Some elements where the checks' tensors lie, while they are given as host values and read back as
// such.
template <class T>
class Placed {
 public:
  explicit Placed(std::vector<T> values)
      : device_(the_device), values_(std::move(values)), bytes_(size() * int64_t{sizeof(T)}) {
    if (device_ == nullptr) return;
    data_ = device_->Allocate(bytes_, "elements of a check");
    const Device::Piece piece{data_, values_.data(), bytes_};
    if (bytes_ > 0) device_->Send({&piece, 1}, StreamName::kMain);
  }
  Placed(Placed&& other) noexcept
      : device_(other.device_),
        values_(std::move(other.values_)),
        bytes_(other.bytes_),
        data_(std::exchange(other.data_, nullptr)) {}
  Placed& operator=(Placed&&) = delete;
  ~Placed() {
    if (data_ != nullptr) device_->Free(data_, bytes_);
  }
  Tensor tensor() { return Tensor(device_ == nullptr ? values_.data() : data(), {size()}); }
  Tensor tensor(int64_t begin, int64_t count) { return tensor().Rows(begin, count); }
  // What they are now.
  const std::vector<T>& values() {
    if (data_ != nullptr) device_->Read({values_.data(), data_, bytes_});
    return values_;
  }

 private:
  T* data() const { return static_cast<T*>(data_); }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  Device* device_;
  std::vector<T> values_;
  int64_t bytes_;
  void* data_ = nullptr;
};

// An element that tells who sent it to whom, and which one it is.
float Mark(int from, int to, int64_t i) {
  return static_cast<float>(from * 1000000 + to * 10000 + i);
}

}  // namespace

TensorsOn::TensorsOn(Device* device) {
  OT_CHECK(the_device == nullptr);
  the_device = device;
}
TensorsOn::~TensorsOn() { the_device = nullptr; }

void CheckUnevenAndEmptyMessages(Communicator& world) {
  const int n = world.size(), me = world.rank();
  // From r to s: none where r + s is a multiple of 3, else 1 + 5 r + s elements; to itself too.
  const auto count = [](int from, int to) -> int64_t {
    return (from + to) % 3 == 0 ? 0 : 1 + 5 * from + to;
  };
  std::vector<Placed<float>> out, in;
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    std::vector<float> to;
    for (int64_t i = 0; i < count(me, peer); ++i) to.push_back(Mark(me, peer, i));
    out.emplace_back(std::move(to));
    in.emplace_back(std::vector<float>(static_cast<size_t>(count(peer, me)), -1.0F));
    sends.push_back({peer, out.back().tensor()});
    receives.push_back({peer, in.back().tensor()});
  }
  world.Exchange(sends, receives, Traffic::kTables);
  for (int peer = 0; peer < n; ++peer) {
    const std::vector<float>& values = in[static_cast<size_t>(peer)].values();
    for (int64_t i = 0; i < count(peer, me); ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], Mark(peer, me, i))
          << "from " << peer << " to " << me;
    }
  }
}

void CheckGuardsBesideOneFloat(Communicator& world) {
  const int n = world.size(), me = world.rank();
  using ::testing::ElementsAre;
  Placed<float> in({-7, -7, -7}), out({100, static_cast<float>(me), 300});
  const Message send{(me + 1) % n, out.tensor(1, 1)};
  const Message receive{(me + n - 1) % n, in.tensor(1, 1)};
  world.Exchange({&send, 1}, {&receive, 1}, Traffic::kWeights);
  EXPECT_THAT(in.values(), ElementsAre(-7, static_cast<float>((me + n - 1) % n), -7));
  double sum[3] = {-7, 1, -7};
  world.AllReduceSum(std::span<double>(sum + 1, 1), Traffic::kControl);
  EXPECT_EQ(sum[0], -7);
  EXPECT_EQ(sum[1], n);
  EXPECT_EQ(sum[2], -7);
  Placed<float> share({-7, me == n - 1 ? 5.0F : 0.0F, -7});
  world.Broadcast(share.tensor(1, 1), n - 1, Traffic::kWeights);
  EXPECT_THAT(share.values(), ElementsAre(-7, 5, -7));
}

void CheckEveryDType(Communicator& world) {
  const int n = world.size(), me = world.rank();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kU32,
                            DType::kU16, DType::kU8, DType::kI64, DType::kU64}) {
    const int64_t count = 13, bytes = count * SizeOf(dtype);
    // Every bit pattern has to arrive, NaNs included.
    const auto byte = [&](int from, int64_t i) {
      return static_cast<uint8_t>(0xf1 + 31 * from + 7 * i);
    };
    std::vector<uint8_t> values(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) values[static_cast<size_t>(i)] = byte(me, i);
    Placed<uint8_t> all(std::vector<uint8_t>(values.size() * size_t(n))), mine(std::move(values));
    world.AllGather(Tensor(mine.tensor().raw(), dtype, {count}),
                    Tensor(all.tensor().raw(), dtype, {n, count}), Traffic::kWeights);
    const std::vector<uint8_t>& gathered = all.values();
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(gathered[static_cast<size_t>(r * bytes + i)], byte(r, i)) << NameOf(dtype);
      }
    }
  }
}

void CheckOrderOfExchangesInFlight(Communicator& world) {
  const int n = world.size(), me = world.rank();
  const int64_t rounds = 6;
  // Sizes differ by round and several are waited for in reverse; between them goes a reduction.
  std::vector<Placed<float>> out, in;
  std::vector<Request> requests;
  for (int64_t k = 0; k < rounds; ++k) {
    const auto count = static_cast<size_t>(k + 1);
    out.emplace_back(std::vector<float>(count, static_cast<float>(10 * me + k)));
    in.emplace_back(std::vector<float>(count, -1.0F));
  }
  for (int64_t k = 0; k < rounds; ++k) {
    const Message send{(me + 1) % n, out[static_cast<size_t>(k)].tensor()};
    const Message receive{(me + n - 1) % n, in[static_cast<size_t>(k)].tensor()};
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
    for (const float x : in[static_cast<size_t>(k)].values()) {
      ASSERT_EQ(x, static_cast<float>(10 * ((me + n - 1) % n) + k));
    }
  }
  // Several messages of one exchange to one peer, and a ping-pong after them.
  Placed<float> pair({static_cast<float>(me), static_cast<float>(me) + 0.5F}), found({-1, -1});
  const int next = (me + 1) % n, last = (me + n - 1) % n;
  const Message sends[] = {{next, pair.tensor(0, 1)}, {next, pair.tensor(1, 1)}};
  const Message receives[] = {{last, found.tensor(0, 1)}, {last, found.tensor(1, 1)}};
  world.Exchange(sends, receives, Traffic::kTables);
  EXPECT_THAT(found.values(),
              ::testing::ElementsAre(static_cast<float>(last), static_cast<float>(last) + 0.5F));
}

void CheckGatherInPlace(Communicator& world) {
  const int n = world.size(), me = world.rank();
  std::vector<int64_t> values(static_cast<size_t>(3 * n), -1);
  for (int i = 0; i < 3; ++i) values[static_cast<size_t>(3 * me + i)] = 3 * me + i;
  Placed<int64_t> all(std::move(values));
  const Tensor whole = all.tensor().Reshape({n, 3});
  world.AllGather(whole.Rows(me, 1), whole, Traffic::kActivations);
  const std::vector<int64_t>& gathered = all.values();
  for (int64_t i = 0; i < 3 * n; ++i) EXPECT_EQ(gathered[static_cast<size_t>(i)], i);
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
    Placed<uint16_t> values(std::vector<uint16_t>(5, static_cast<uint16_t>(me)));
    world.Broadcast(values.tensor(), root, Traffic::kFiles);
    for (const uint16_t value : values.values()) EXPECT_EQ(value, root);
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
  Placed<float> mine({me}), all({-1, -1, -1, -1}), pair({-1, -1}), column({-1, -1});
  Request of_world = world.StartAllGather(mine.tensor(), all.tensor(), Traffic::kLoss);
  Request of_tensor = mesh.tensor().StartAllGather(mine.tensor(), pair.tensor(), Traffic::kLoss);
  Request of_data = mesh.data().StartAllGather(mine.tensor(), column.tensor(), Traffic::kLoss);
  of_data.Wait();
  of_tensor.Wait();
  of_world.Wait();
  const auto data = static_cast<float>(world.rank() / 2),
             tensor = static_cast<float>(world.rank() % 2);
  EXPECT_THAT(all.values(), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(pair.values(), ::testing::ElementsAre(2 * data, 2 * data + 1));
  EXPECT_THAT(column.values(), ::testing::ElementsAre(tensor, tensor + 2));
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
  Placed<bf16> half(std::vector<bf16>(9)), all(std::vector<bf16>(static_cast<size_t>(9 * n)));
  Placed<float> own({1}), own_in({0});
  const Message to_self{me, own.tensor()}, from_self{me, own_in.tensor()};
  world.Exchange({&to_self, 1}, {&from_self, 1}, Traffic::kGradients);
  EXPECT_EQ(own_in.values()[0], 1);
  EXPECT_EQ(sent(Traffic::kGradients), 0);
  world.AllGather(half.tensor(), all.tensor(), Traffic::kWeights);
  EXPECT_EQ(sent(Traffic::kWeights), 18 * (n - 1));
  double values[4] = {};
  world.AllReduceSum(values, Traffic::kLoss);
  world.AllReduceMax(values, Traffic::kLoss);
  EXPECT_EQ(sent(Traffic::kLoss), 2 * 32 * (n - 1));
  world.Broadcast(half.tensor(), 0, Traffic::kFiles);
  EXPECT_EQ(sent(Traffic::kFiles), me == 0 ? 18 * (n - 1) : 0);
  world.Any(false);
  EXPECT_EQ(sent(Traffic::kControl), 8 * (n - 1));
}

}  // namespace overtok::testing
