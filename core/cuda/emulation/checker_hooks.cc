// What the compiler's instrumentation for data races (-fsanitize=thread) calls at every memory
// access, in place of its library: the checker. Host code that was compiled with it (inline
// functions that kernel sources include) calls them too, outside kernels, where they do nothing.
//
// Copies that the compiler leaves to memcpy, memmove and memset are not reported by it; programs
// with checked kernels are linked with these names wrapped (CMakeLists.txt).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/cuda/emulation/checker.h"

using overtok::emulation::Access;
using overtok::emulation::Touch;
using overtok::emulation::TouchAligned;

#define OT_PLAIN_HOOKS(size)                                                                \
  void __tsan_read##size(void* at) { TouchAligned(at, size, Access::kRead); }               \
  void __tsan_write##size(void* at) { TouchAligned(at, size, Access::kWrite); }             \
  void __tsan_unaligned_read##size(void* at) { Touch(at, size, Access::kRead); }            \
  void __tsan_unaligned_write##size(void* at) { Touch(at, size, Access::kWrite); }          \
  void __tsan_volatile_read##size(void* at) { TouchAligned(at, size, Access::kRead); }      \
  void __tsan_volatile_write##size(void* at) { TouchAligned(at, size, Access::kWrite); }    \
  void __tsan_unaligned_volatile_read##size(void* at) { Touch(at, size, Access::kRead); }   \
  void __tsan_unaligned_volatile_write##size(void* at) { Touch(at, size, Access::kWrite); } \
  void __tsan_read_write##size(void* at) {                                                  \
    Touch(at, size, Access::kRead);                                                         \
    Touch(at, size, Access::kWrite);                                                        \
  }                                                                                         \
  void __tsan_unaligned_read_write##size(void* at) {                                        \
    Touch(at, size, Access::kRead);                                                         \
    Touch(at, size, Access::kWrite);                                                        \
  }

// Orders are ignored: kernels run one fiber at a time, and host code gets the strongest.
#define OT_FETCH_HOOK(bits, type, name)                                               \
  type __tsan_atomic##bits##_fetch_##name(volatile type* at, type x, int /*order*/) { \
    TouchAligned(at, sizeof(type), Access::kAtomic);                                  \
    return __atomic_fetch_##name(at, x, __ATOMIC_SEQ_CST);                            \
  }
#define OT_ATOMIC_HOOKS(bits, type)                                                                \
  type __tsan_atomic##bits##_load(const volatile type* at, int /*order*/) {                        \
    TouchAligned(at, sizeof(type), Access::kAtomic);                                               \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile type* at, type x, int /*order*/) {                     \
    TouchAligned(at, sizeof(type), Access::kAtomic);                                               \
    __atomic_store_n(at, x, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                \
  type __tsan_atomic##bits##_exchange(volatile type* at, type x, int /*order*/) {                  \
    TouchAligned(at, sizeof(type), Access::kAtomic);                                               \
    return __atomic_exchange_n(at, x, __ATOMIC_SEQ_CST);                                           \
  }                                                                                                \
  OT_FETCH_HOOK(bits, type, add)                                                                   \
  OT_FETCH_HOOK(bits, type, sub)                                                                   \
  OT_FETCH_HOOK(bits, type, and)                                                                   \
  OT_FETCH_HOOK(bits, type, or)                                                                    \
  OT_FETCH_HOOK(bits, type, xor)                                                                   \
  OT_FETCH_HOOK(bits, type, nand)                                                                  \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected, type x,     \
                                                    int /*order*/, int /*failure*/) {              \
    TouchAligned(at, sizeof(type), Access::kAtomic);                                               \
    return __atomic_compare_exchange_n(at, expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) \
               ? 1                                                                                 \
               : 0;                                                                                \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected, type x,       \
                                                  int order, int failure) {                        \
    return __tsan_atomic##bits##_compare_exchange_strong(at, expected, x, order, failure);         \
  }                                                                                                \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* at, type expected, type x,        \
                                                  int order, int failure) {                        \
    __tsan_atomic##bits##_compare_exchange_strong(at, &expected, x, order, failure);               \
    return expected;                                                                               \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** at) { Touch(at, sizeof(void*), Access::kRead); }
void __tsan_vptr_update(void** at, void* /*value*/) { Touch(at, sizeof(void*), Access::kWrite); }
void __tsan_read_range(void* at, size_t bytes) {
  Touch(at, static_cast<int64_t>(bytes), Access::kRead);
}
void __tsan_write_range(void* at, size_t bytes) {
  Touch(at, static_cast<int64_t>(bytes), Access::kWrite);
}
OT_PLAIN_HOOKS(1)
OT_PLAIN_HOOKS(2)
OT_PLAIN_HOOKS(4)
OT_PLAIN_HOOKS(8)
OT_PLAIN_HOOKS(16)
OT_ATOMIC_HOOKS(8, uint8_t)
OT_ATOMIC_HOOKS(16, uint16_t)
OT_ATOMIC_HOOKS(32, uint32_t)
OT_ATOMIC_HOOKS(64, uint64_t)
void __tsan_atomic_thread_fence(int /*order*/) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int /*order*/) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memmove(void* to, const void* from, size_t bytes);
void* __real_memset(void* to, int value, size_t bytes);

void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    Touch(from, static_cast<int64_t>(bytes), Access::kRead);
    Touch(to, static_cast<int64_t>(bytes), Access::kWrite);
  }
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    Touch(from, static_cast<int64_t>(bytes), Access::kRead);
    Touch(to, static_cast<int64_t>(bytes), Access::kWrite);
  }
  return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int value, size_t bytes) {
  if (bytes > 0) Touch(to, static_cast<int64_t>(bytes), Access::kWrite);
  return __real_memset(to, value, bytes);
}

}  // extern "C"
