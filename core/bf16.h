// bfloat16 as storage: the upper 16 bits of a float, rounded to nearest even on the way in.
// Arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace overtok {

struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  OT_HOST_DEVICE explicit bf16(float value) : bits(Round(value)) {}
  OT_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

 private:
  OT_HOST_DEVICE static uint16_t Round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      return static_cast<uint16_t>((u >> 16) | 0x0040u);  // a NaN stays one
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bf16) == 2);

}  // namespace overtok
