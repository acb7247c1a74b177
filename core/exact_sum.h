// ExactSum: a sum of doubles that does not depend on their order or grouping: every bit of every
// addend is kept in a fixed-point number wide enough for all finite doubles (Kulisch), and rounded
// once. Norms are sums over blocks that lie on different ranks under different layouts; with it
// they are the same bits under all of them. Adding costs some nanoseconds: meant for one value per
// block or row, not per element. The arithmetic is core/exact_digits.h's, which kernels share
// (core/ops/exact_sum.h): the words of a sum may come from there and go there.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/exact_digits.h"

namespace overtok {

class ExactSum {
 public:
  // The fixed-point number as integers that add up over ranks without loss (a plain integer sum of
  // up to 2^20 ranks' words).
  static constexpr int kWords = exact::kWords;
  void Clear() { *this = ExactSum(); }
  void Add(double value);  // NaN and infinities are remembered and decide Round()
  void Add(const ExactSum& other);
  void Add(std::span<const double> values) {
    for (const double value : values) Add(value);
  }
  // Nearest double, ties to even; infinite where the sum is beyond the largest double.
  double Round() const;
  // For a reduction over ranks: Communicator::AllReduceSum over the words, which may be read and
  // written until the next Add or Clear.
  std::span<int64_t> words();

 private:
  void Carry();  // puts an end to carries put off: adding touches three words only

  std::array<int64_t, kWords> words_{};
  int64_t added_ = 0;  // no digit's magnitude is above (added_ + 1) 2^32
};

}  // namespace overtok
