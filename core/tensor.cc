#include "core/tensor.h"

namespace overtok {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return 1;
    case DType::kBF16:
    case DType::kU16:
      return 2;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
  }
  OT_CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return 0;
}

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return "u8";
    case DType::kBF16:
      return "bf16";
    case DType::kU16:
      return "u16";
    case DType::kF32:
      return "f32";
    case DType::kI32:
      return "i32";
    case DType::kU32:
      return "u32";
    case DType::kF64:
      return "f64";
    case DType::kI64:
      return "i64";
    case DType::kU64:
      return "u64";
  }
  return "unknown";
}

Shape::Shape(std::initializer_list<int64_t> dims) {
  OT_CHECK(dims.size() <= kMaxRank);
  for (const int64_t d : dims) {
    OT_CHECK_GE(d, 0);
    dims_[static_cast<size_t>(rank_++)] = d;
  }
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
  return n;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && dims_ == other.dims_;
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[static_cast<size_t>(i)]);
  }
  return text + "]";
}

Tensor Tensor::Reshape(Shape shape) const {
  OT_CHECK_EQ(shape.elements(), elements());
  return Tensor(data_, dtype_, shape);
}

Tensor Tensor::Rows(int64_t begin, int64_t count) const {
  OT_CHECK(rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= dim(0))
      << "rows " << begin << " + " << count << " of " << shape_.ToString();
  const int64_t row = dim(0) == 0 ? 0 : elements() / dim(0);
  char* start = static_cast<char*>(data_) + begin * row * SizeOf(dtype_);
  Shape shape;
  if (rank() == 1) shape = {count};
  if (rank() == 2) shape = {count, dim(1)};
  if (rank() == 3) shape = {count, dim(1), dim(2)};
  if (rank() == 4) shape = {count, dim(1), dim(2), dim(3)};
  return Tensor(data_ == nullptr ? nullptr : start, dtype_, shape);
}

}  // namespace overtok
