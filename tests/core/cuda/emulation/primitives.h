// Kernels that use each function of core/cuda/kernel.h as it is meant to be used, for each way they
// are compiled. All but kAtomics' take one block.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/context.h"

namespace overtok::testing {

struct PrimitiveKernels {
  // 64 threads; in, xor, from, up: 64 elements. ShuffleXor(x, 5), Shuffle(x, 3 lane + 1 mod 32),
  // ShuffleUp(x, 4).
  void (*shuffle_floats)(const Context&, const float* in, float* by_xor, float* from, float* up);
  void (*shuffle_doubles)(const Context&, const double* in, double* by_xor, double* from,
                          double* up);
  // 64 threads: the ballot of in[i] > 0 and the number of its bits.
  void (*vote)(const Context&, const float* in, unsigned* ballots, int* bits);
  // 160 threads; sums: of the warp, of the block; the same of the largest.
  void (*sums)(const Context&, const float* in, float* warp_sum, float* block_sum, float* warp_max,
               float* block_max);
  // Blocks of 64 threads: histogram of in[i] % 16 by atomics on shared memory, then on global;
  // `sums` gets the sum as int and uint64, `bits` the or of 1 << in[i].
  void (*atomics)(const Context&, const uint32_t* in, int64_t blocks, unsigned* histogram, int* sum,
                  uint64_t* wide_sum, unsigned* bits);
  // d [16, 16] = a [16, 16] times b, b [16, 16] as [k, n], or as [n, k] when transposed.
  void (*product)(const Context&, const bf16* a, const bf16* b, bool transposed, float* d);
  // 32 threads: sums over rows of 128 by a pipeline of two groups; rows >= valid_rows are zeros.
  void (*pipeline)(const Context&, const float* rows, int64_t count, int64_t valid_rows,
                   float* sums);
  // 32 threads: what lanes write in shared memory, others read after SyncWarp; 100 times.
  void (*warp_exchange)(const Context&, const int* in, int* out);
  // 32 threads: pairs of in rounded to bf16, in one word.
  void (*pack_pairs)(const Context&, const float* in, uint32_t* out);
};

}  // namespace overtok::testing

namespace overtok::emulated {
const testing::PrimitiveKernels& Primitives();
}
namespace overtok::checked {
const testing::PrimitiveKernels& Primitives();
}
namespace overtok::cuda {
const testing::PrimitiveKernels& Primitives();
}
