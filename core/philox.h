// Philox4x32-10 (Salmon et al. 2011, from Random123) for the host and for kernels alike.
#pragma once

#include <Random123/philox.h>

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace overtok {

// The four words at counter (low, high) under `key`.
OT_HOST_DEVICE inline std::array<uint32_t, 4> PhiloxWords(uint64_t key, uint64_t low,
                                                          uint64_t high) {
  using Generator = r123::Philox4x32;
  const Generator::ctr_type counter = {
      {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
       static_cast<uint32_t>(high >> 32)}};
  const Generator::key_type words = {
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
  Generator generator;
  const Generator::ctr_type out = generator(counter, words);
  return {out.v[0], out.v[1], out.v[2], out.v[3]};
}

}  // namespace overtok
