// Element types of safetensors files, and the exact or rounded way from a stored float to f32 and
// back. Stored bytes are little-endian and need not be aligned.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace overtok {

enum class StoredType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kU64,
  kI32,
  kU32,
  kI16,
  kU16,
  kI8,
  kU8,
  kF8E4M3,
  kF8E5M2,
  kBool,
};

int64_t SizeOf(StoredType type);      // bytes of one element
const char* NameOf(StoredType type);  // as the files spell it: "F32", "BF16", ...
std::optional<StoredType> StoredTypeNamed(absl::string_view name);
// F64, F32, F16, BF16: what weights are kept in.
bool IsReadableFloat(StoredType type);

// `count` stored elements of a readable type as f32: F32, F16 and BF16 exactly (subnormal numbers,
// infinities and NaN included), F64 rounded to nearest even.
void StoredToF32(StoredType type, const char* stored, int64_t count, float* out);
// The way back, for F32 and F64 (exact) and for F16 and BF16 (rounded to nearest even; beyond their
// largest number: infinity).
void F32ToStored(StoredType type, const float* values, int64_t count, char* stored);

}  // namespace overtok
