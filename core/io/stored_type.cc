// Conversions element by element through memcpy, because nothing promises alignment; compilers turn
// the loops into vector code.
#include "core/io/stored_type.h"

#include <bit>
#include <cstring>

#include "core/bf16.h"
#include "core/check.h"

namespace overtok {
namespace {

static_assert(std::endian::native == std::endian::little, "stored bytes are taken as they are");

struct TypeFacts {
  StoredType type;
  const char* name;
  int64_t size;
};
constexpr TypeFacts kTypes[] = {
    {StoredType::kF64, "F64", 8},        {StoredType::kF32, "F32", 4},
    {StoredType::kF16, "F16", 2},        {StoredType::kBF16, "BF16", 2},
    {StoredType::kI64, "I64", 8},        {StoredType::kU64, "U64", 8},
    {StoredType::kI32, "I32", 4},        {StoredType::kU32, "U32", 4},
    {StoredType::kI16, "I16", 2},        {StoredType::kU16, "U16", 2},
    {StoredType::kI8, "I8", 1},          {StoredType::kU8, "U8", 1},
    {StoredType::kF8E4M3, "F8_E4M3", 1}, {StoredType::kF8E5M2, "F8_E5M2", 1},
    {StoredType::kBool, "BOOL", 1},
};

const TypeFacts& Facts(StoredType type) {
  const TypeFacts& facts = kTypes[static_cast<size_t>(type)];
  OT_CHECK(facts.type == type);
  return facts;
}

// IEEE binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits.
float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fU, fraction = half & 0x3ffU;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t widened = exponent == 0x1f ? 0xffU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);   // NaN
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65536 and more
  if (magnitude < 0x38800000U) {  // below 2^-14: a multiple of 2^-24, rounded by the addition
    // Adding 1/2 leaves the multiple of 2^-24 in the low bits of the sum's fraction.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t rebiased = magnitude - (uint32_t{127 - 15} << 23);
  const uint32_t rounded = rebiased + 0xfffU + ((rebiased >> 13) & 1U);
  return static_cast<uint16_t>(sign | rounded >> 13);  // a carry may reach infinity, as it should
}

template <class T, class F>
void Widen(const char* stored, int64_t count, float* out, F convert) {
  for (int64_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, stored + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = convert(element);
  }
}

template <class T, class F>
void Narrow(const float* values, int64_t count, char* stored, F convert) {
  for (int64_t i = 0; i < count; ++i) {
    const T element = convert(values[i]);
    std::memcpy(stored + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
  }
}

}  // namespace

int64_t SizeOf(StoredType type) { return Facts(type).size; }
const char* NameOf(StoredType type) { return Facts(type).name; }

std::optional<StoredType> StoredTypeNamed(absl::string_view name) {
  for (const TypeFacts& facts : kTypes) {
    if (name == facts.name) return facts.type;
  }
  return std::nullopt;
}

bool IsReadableFloat(StoredType type) {
  return type == StoredType::kF64 || type == StoredType::kF32 || type == StoredType::kF16 ||
         type == StoredType::kBF16;
}

void StoredToF32(StoredType type, const char* stored, int64_t count, float* out) {
  switch (type) {
    case StoredType::kF64:
      return Widen<double>(stored, count, out, [](double x) { return static_cast<float>(x); });
    case StoredType::kF32:
      if (count > 0) std::memcpy(out, stored, static_cast<size_t>(count) * sizeof(float));
      return;
    case StoredType::kF16:
      return Widen<uint16_t>(stored, count, out, HalfToFloat);
    case StoredType::kBF16:
      return Widen<bf16>(stored, count, out, [](bf16 x) { return static_cast<float>(x); });
    default:
      OT_CHECK(IsReadableFloat(type)) << NameOf(type);
  }
}

void F32ToStored(StoredType type, const float* values, int64_t count, char* stored) {
  switch (type) {
    case StoredType::kF64:
      return Narrow<double>(values, count, stored, [](float x) { return static_cast<double>(x); });
    case StoredType::kF32:
      if (count > 0) std::memcpy(stored, values, static_cast<size_t>(count) * sizeof(float));
      return;
    case StoredType::kF16:
      return Narrow<uint16_t>(values, count, stored, FloatToHalf);
    case StoredType::kBF16:
      return Narrow<bf16>(values, count, stored, [](float x) { return bf16(x); });
    default:
      OT_CHECK(IsReadableFloat(type)) << NameOf(type);
  }
}

}  // namespace overtok
