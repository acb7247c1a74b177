// Tensor: a non-owning, contiguous, row-major view of device memory with a dtype and up to four
// dimensions. Who owns the bytes is core/memory.h's business; every op takes Tensors and checks
// them at its entry point.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/bf16.h"
#include "core/check.h"

namespace overtok {

enum class DType : uint8_t { kF32, kF64, kBF16, kI32, kU32, kU16, kU8, kI64, kU64 };

int64_t SizeOf(DType dtype);      // bytes of one element
const char* NameOf(DType dtype);  // "f32", "bf16", ...

template <class T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<double>() {
  return DType::kF64;
}
template <>
constexpr DType DTypeOf<bf16>() {
  return DType::kBF16;
}
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType DTypeOf<uint32_t>() {
  return DType::kU32;
}
template <>
constexpr DType DTypeOf<uint16_t>() {
  return DType::kU16;
}
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType DTypeOf<uint64_t>() {
  return DType::kU64;
}

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const {
    OT_CHECK(i >= 0 && i < rank_);
    return dims_[static_cast<size_t>(i)];
  }
  int64_t elements() const;  // 1 for rank 0; 64-bit from the first product
  bool operator==(const Shape& other) const;
  std::string ToString() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}
  template <class T>
  Tensor(T* data, Shape shape) : data_(data), dtype_(DTypeOf<T>()), shape_(shape) {}

  bool defined() const { return shape_.rank() > 0; }  // a default-constructed Tensor is "not given"
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t elements() const { return defined() ? shape_.elements() : 0; }
  int64_t bytes() const { return elements() * SizeOf(dtype_); }
  void* raw() const { return data_; }

  // The elements; a dtype other than T is a bug and aborts.
  template <class T>
  T* data() const {
    OT_CHECK(dtype_ == DTypeOf<T>())
        << "tensor is " << NameOf(dtype_) << ", asked for as " << NameOf(DTypeOf<T>());
    return static_cast<T*>(data_);
  }

  // The same elements under another shape of equal size.
  Tensor Reshape(Shape shape) const;
  // Rows [begin, begin + count) of dimension 0.
  Tensor Rows(int64_t begin, int64_t count) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace overtok
