// Exact sums: a thread adds its share of the values to words of its own, 560 bytes a sum, and these
// to the result's, in whatever order: integers give the same bits. Rounding, and the flag of what
// is not finite, are one thread's.
#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/exact_digits.h"

namespace overtok::cpu {
namespace {

using Words = std::array<int64_t, exact::kWords>;

void AddWords(const int64_t* from, int64_t* to) {
  for (int w = 0; w < exact::kWords; ++w) to[w] += from[w];
}

}  // namespace

void AddExact(const Context& /*context*/, const AddExactArgs& args) {
  constexpr int64_t kGrain = 16384;  // values of a sum; some 100 us
  const int64_t sums = args.words.dim(0);
  auto* words = args.words.data<int64_t>();
  if (!args.accumulate) std::fill_n(words, args.words.elements(), int64_t{0});
  if (args.values.elements() > 0) {
    const auto* values = args.values.data<double>();
    std::mutex mutex;
    ParallelFor(args.values.elements() / sums, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t s = 0; s < sums; ++s) {
        Words own{};
        for (int64_t i = begin; i < end; ++i) exact::AddTo(own.data(), values[i * sums + s]);
        const std::lock_guard<std::mutex> lock(mutex);
        AddWords(own.data(), words + s * exact::kWords);
      }
    });
  }
  for (int64_t s = 0; s < sums; ++s) exact::Carry(words + s * exact::kWords);
}

void RoundExact(const Context& /*context*/, const RoundExactArgs& args) {
  const int64_t ranks = args.words.dim(0), sums = args.words.dim(1);
  const auto* words = args.words.data<int64_t>();
  auto* out = args.out.data<double>();
  for (int64_t s = 0; s < sums; ++s) {
    Words total{};
    for (int64_t r = 0; r < ranks; ++r)
      AddWords(words + (r * sums + s) * exact::kWords, total.data());
    out[s] = exact::Round(total.data());
  }
}

// The sum is not finite where a number is not.
void HaltUnlessFinite(const Context& /*context*/, const HaltUnlessFiniteArgs& args) {
  const auto* x = args.x.data<double>();
  double sum = 0;
  for (int64_t i = 0; i < args.x.elements(); ++i) sum += x[i];
  if (!std::isfinite(sum)) args.halted.data<uint32_t>()[0] = 1;
}

}  // namespace overtok::cpu
