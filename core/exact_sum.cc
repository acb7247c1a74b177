#include "core/exact_sum.h"

namespace overtok {

void ExactSum::Add(double value) {
  exact::AddTo(words_.data(), value);
  if (++added_ >= exact::kMostAdded) Carry();
}

void ExactSum::Add(const ExactSum& other) {
  for (size_t i = 0; i < kWords; ++i) words_[i] += other.words_[i];
  added_ += other.added_ + 1;
  if (added_ >= exact::kMostAdded) Carry();
}

void ExactSum::Carry() {
  exact::Carry(words_.data());
  added_ = 0;
}

std::span<int64_t> ExactSum::words() {
  Carry();
  added_ = exact::kMostRanks;  // what a reduction can make of them
  return words_;
}

double ExactSum::Round() const {
  std::array<int64_t, kWords> words = words_;
  return exact::Round(words.data());
}

}  // namespace overtok
