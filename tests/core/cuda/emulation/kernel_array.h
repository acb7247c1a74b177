// Host memory that kernels under test may touch, whatever way they are compiled.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/cuda/emulation/known_memory.h"

namespace overtok::testing {

// Values between two others of the same vector, which kernels may not touch. 16-byte aligned.
template <class T>
class KernelArray {
 public:
  KernelArray(const char* name, const std::vector<T>& values)
      : size_(static_cast<int64_t>(values.size())) {
    constexpr size_t kBeside = 64 / sizeof(T);
    room_.resize(values.size() + 2 * kBeside);
    const auto base = reinterpret_cast<uintptr_t>(room_.data());
    data_ = room_.data() + ((base + 79) / 16 * 16 - base) / sizeof(T) - 16 / sizeof(T);
    for (size_t i = 0; i < values.size(); ++i) data_[i] = values[i];
    emulation::AddMemory(data_, bytes(), name, sizeof(T));
  }
  KernelArray(const char* name, int64_t size)
      : KernelArray(name, std::vector<T>(static_cast<size_t>(size))) {}
  ~KernelArray() { emulation::RemoveMemory(data_); }
  KernelArray(const KernelArray&) = delete;
  KernelArray& operator=(const KernelArray&) = delete;

  T* data() { return data_; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }

 private:
  int64_t size_;
  std::vector<T> room_;
  T* data_;
};

}  // namespace overtok::testing
