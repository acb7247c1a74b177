// TF32, what tensor cores read of a float: its sign, its exponent and the upper 10 bits of its
// mantissa. There is no storage of that width: a TF32 value is a float whose lower 13 bits are 0.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace overtok {

// The TF32 value nearest to `value`, ties to even, as IEEE 754 rounds: a carry may raise the
// exponent, up to infinity; subnormal values keep 2^-136 and more. A NaN stays one, also where only
// bits that go tell it from infinity.
OT_HOST_DEVICE inline float ToTF32(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return std::bit_cast<float>((u | 0x00400000u) & ~0x1fffu);
  return std::bit_cast<float>((u + 0x0fffu + ((u >> 13) & 1u)) & ~0x1fffu);
}

}  // namespace overtok
