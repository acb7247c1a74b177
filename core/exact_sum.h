// ExactSum: a sum of doubles that does not depend on their order or grouping: every bit of every
// addend is kept in a fixed-point number wide enough for all finite doubles (Kulisch), and rounded
// once. Norms are sums over blocks that lie on different ranks under different layouts; with it
// they are the same bits under all of them. Adding costs some nanoseconds: meant for one value per
// block or row, not per element.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace overtok {

class ExactSum {
 public:
  // The fixed-point number as integers that add up over ranks without loss (a plain integer sum of
  // up to 2^20 ranks' words).
  static constexpr int kWords = 70;
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
  // Word i < kDigits stands for multiples of 2^(32 i - 1074); carries between words are put off, so
  // that adding touches three of them. The topmost leaves room above the largest double for 2^46 of
  // them. Behind the digits: how many NaN, infinities and negative infinities were added.
  static constexpr int kDigits = 67;
  enum Special : int { kNaN = kDigits, kInfinite, kNegativeInfinite };
  static_assert(kNegativeInfinite + 1 == kWords);
  void Carry();  // brings all digits but the topmost into [0, 2^32)

  std::array<int64_t, kWords> words_{};
  int64_t added_ = 0;  // no digit's magnitude is above (added_ + 1) 2^32
};

}  // namespace overtok
