#include "trainer/checkpoint_hash.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/io/hash.h"

namespace overtok {
namespace {

constexpr int64_t kBlock = 256;  // elements that share a block's factor

// Finalizer of SplitMix64 (Steele et al. 2014), on its n-th state.
constexpr uint64_t Mix(uint64_t n) {
  uint64_t x = (n + 1) * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// c(p) = (Mix(p / 256 + 256) | 1) * (Mix(p % 256) | 1): the factor of a block leaves the inner sum,
// which is a product with a table. Halves apart, because machines multiply 32 by 32 bits fast.
struct Factors {
  std::array<uint32_t, kBlock> low{}, high{};
};
constexpr Factors MakeFactors() {
  Factors factors;
  for (size_t i = 0; i < kBlock; ++i) {
    const uint64_t factor = Mix(i) | 1;
    factors.low[i] = static_cast<uint32_t>(factor);
    factors.high[i] = static_cast<uint32_t>(factor >> 32);
  }
  return factors;
}
constexpr Factors kFactors = MakeFactors();

uint64_t BlockFactor(int64_t block) { return Mix(static_cast<uint64_t>(block + kBlock)) | 1; }

// `values`: elements of the size of T, of any type.
template <class T>
uint64_t Inner(const char* values, const uint32_t* low, const uint32_t* high, int64_t n) {
  uint64_t low_sum = 0, high_sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, values + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    low_sum += static_cast<uint64_t>(value) * low[i];
    high_sum += static_cast<uint64_t>(value) * high[i];
  }
  return low_sum + (high_sum << 32);
}

template <class T>
uint64_t SumOfRun(const char* values, int64_t position, int64_t count) {
  uint64_t sum = 0;
  while (count > 0) {
    const int64_t at = position % kBlock, n = std::min(kBlock - at, count);
    sum += BlockFactor(position / kBlock) *
           Inner<T>(values, kFactors.low.data() + at, kFactors.high.data() + at, n);
    values += n * static_cast<int64_t>(sizeof(T));
    position += n;
    count -= n;
  }
  return sum;
}

template <class T>
uint64_t SumOf(const Region& region, const Tensor& tensor, int64_t per_element) {
  uint64_t sum = 0;
  const char* values = static_cast<const char*>(tensor.raw());
  ForEachRun(region, [&](int64_t logical, int64_t place, int64_t count) {
    sum += SumOfRun<T>(values + place * SizeOf(tensor.dtype()), logical * per_element,
                       count * per_element);
  });
  return sum;
}

}  // namespace

uint64_t PositionHash(const Region& region, const Tensor& tensor) {
  OT_CHECK_EQ(region.count, tensor.elements());
  switch (SizeOf(tensor.dtype())) {
    case 1:
      return SumOf<uint8_t>(region, tensor, 1);
    case 2:
      return SumOf<uint16_t>(region, tensor, 1);
    case 4:
      return SumOf<uint32_t>(region, tensor, 1);
    default:
      return SumOf<uint32_t>(region, tensor, SizeOf(tensor.dtype()) / 4);
  }
}

uint64_t TensorHash(absl::string_view name, DType dtype, const Shape& shape, uint64_t sum) {
  const std::string text = absl::StrCat(name, " ", NameOf(dtype), " ", shape.ToString(), " ",
                                        absl::Hex(sum, absl::kZeroPad16));
  return Xxh3(text.data(), static_cast<int64_t>(text.size()));
}

}  // namespace overtok
