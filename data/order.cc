// The order of windows (order.h; explained in docs/data.md). Nothing is stored: permutations are
// evaluated at one index at a time.
#include "data/order.h"

#include <algorithm>
#include <numeric>

#include "absl/numeric/int128.h"
#include "core/check.h"
#include "data/permutation.h"

namespace overtok {
namespace {

using Type = OrderOptions::Type;

// Uniform in [0, n) from a 64-bit word, by the high half of the product.
int64_t Below(uint64_t word, int64_t n) {
  const absl::uint128 product = absl::uint128(word) * static_cast<uint64_t>(n);
  return static_cast<int64_t>(absl::Uint128High64(product));
}

int64_t DrawMultiplier(uint64_t seed, int64_t n) {
  for (uint64_t draw = 0;; ++draw) {
    const int64_t a = 1 + Below(RandomWord(seed, RandomPurpose::kMultiplier, 0, draw),
                                std::max<int64_t>(n - 1, 1));
    if (std::gcd(a, n) == 1) return a;
  }
}

int64_t DrawOffset(uint64_t seed, int64_t n) {
  return Below(RandomWord(seed, RandomPurpose::kOffset, 0, 0), n);
}

}  // namespace

int64_t LinearPermutation(int64_t a, int64_t b, int64_t n, int64_t i) {
  const absl::int128 value = absl::int128(a) * i + b;
  return static_cast<int64_t>(value % n);
}

absl::StatusOr<Order> Order::Create(const OrderOptions& options, int64_t windows, int64_t prefix) {
  if (windows < 1) {
    return absl::InvalidArgumentError(
        "the corpus holds no whole window: it has fewer ids than one sequence; shorten the "
        "sequences or add data");
  }
  if (prefix < 0 || prefix > windows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pass of ", prefix, " windows: the corpus has only ", windows));
  }
  if (options.block < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("order.block is ", options.block, ", expected at least 1"));
  }
  if (options.type != Type::kLinear && (options.a.has_value() || options.b.has_value())) {
    return absl::InvalidArgumentError(
        "order.a and order.b have no effect unless order.type is "
        "linear; remove them or choose linear");
  }
  if (options.type == Type::kSequential && options.reshuffle) {
    return absl::InvalidArgumentError("order.reshuffle has no effect with order.type sequential");
  }
  Order order;
  order.options_ = options;
  order.windows_ = windows;
  order.length_ = prefix == 0 ? windows : prefix;
  order.block_ = std::min(options.block, windows);
  if (options.type == Type::kLinear) {
    const int64_t a = options.a.value_or(DrawMultiplier(options.seed, windows));
    const int64_t b = options.b.value_or(DrawOffset(options.seed, windows));
    if (a < 1 || std::gcd(a, windows) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "order.a is ", a, ", expected a positive number without a factor in common with the ",
          windows, " windows (greatest common divisor ", std::gcd(a, windows), ")"));
    }
    if (b < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("order.b is ", b, ", expected a number of at least 0"));
    }
    order.a_ = a % windows;
    order.b_ = b % windows;
    if (windows == 1) order.a_ = 1;
  }
  return order;
}

// Linear, as the recipe has it: sequence s takes place P[s mod block] of its block, and what lies
// beyond the end of a pass wraps. The blocks are those of the whole order whatever the prefix is,
// so a repeated run reads what the unrepeated one does until a position beyond the prefix comes up;
// that one wraps to the start of the order, and its window is the first that is read again. This
// needs the start to have been read by then: prefixes shorter than one block, and passes that are
// shuffled anew, are cut at their ends instead. They keep the first `length` sequences of the order
// (the last block of all is shorter there), and each later pass permutes those afresh.
Order::Place Order::PlaceOf(int64_t s) const {
  OT_CHECK_GE(s, 0);
  const auto block_permutation = [this](int64_t block, int64_t size, int64_t i) {
    return block * block_ + FeistelPermutation(options_.seed, RandomPurpose::kBlock,
                                               static_cast<uint64_t>(block), size, i);
  };
  const bool linear = options_.type == Type::kLinear;
  const bool short_prefix = linear && length_ < block_;
  if (linear && !options_.reshuffle && !short_prefix) {
    const int64_t position = block_permutation(s / block_, block_, s % block_);
    return {position / length_, position % length_};
  }
  Place place{s / length_, s % length_};
  if (place.pass > 0 && (options_.reshuffle || short_prefix)) {
    place.index = FeistelPermutation(options_.seed, RandomPurpose::kPass,
                                     static_cast<uint64_t>(place.pass), length_, place.index);
  }
  if (linear) {
    const int64_t block = place.index / block_;
    const int64_t size = std::min(block_, windows_ - block * block_);
    place.index = block_permutation(block, size, place.index % block_);
  }
  return place;
}

int64_t Order::Pass(int64_t s) const { return PlaceOf(s).pass; }

int64_t Order::Window(int64_t s) const {
  const int64_t index = PlaceOf(s).index;
  switch (options_.type) {
    case Type::kSequential:
      return index;
    case Type::kFeistel:
      return FeistelPermutation(options_.seed, RandomPurpose::kWindows, 0, windows_, index);
    case Type::kLinear:
      return LinearPermutation(a_, b_, windows_, index);
  }
  OT_CHECK(false) << "order type " << static_cast<int>(options_.type);
  return 0;
}

}  // namespace overtok
