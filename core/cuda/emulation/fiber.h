// A stack of execution and the switch to another, with what the sanitizers have to be told of it.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OT_FIBERS_ADDRESS 1
#endif
#if __has_feature(thread_sanitizer)
#define OT_FIBERS_THREAD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define OT_FIBERS_ADDRESS 1
#endif
#if defined(__SANITIZE_THREAD__)
#define OT_FIBERS_THREAD 1
#endif

#if defined(OT_FIBERS_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(OT_FIBERS_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

namespace overtok::emulation {

struct Stack {
  boost::context::detail::fcontext_t resume = nullptr;
  const void* low = nullptr;
  size_t bytes = 0;
  void* fake = nullptr;       // the address sanitizer's
  void* sanitizer = nullptr;  // the thread sanitizer's
};

// One OS thread's stacks: which of them runs.
class StackSwitch {
 public:
  // A stack of its own, whose first switch-to calls entry, which never returns. Call Arrived first
  // thing there.
  static void Make(Stack& stack, char* low, size_t bytes,
                   void (*entry)(boost::context::detail::transfer_t)) {
    stack.low = low;
    stack.bytes = bytes;
    stack.resume = boost::context::detail::make_fcontext(low + bytes, bytes, entry);
#if defined(OT_FIBERS_THREAD)
    stack.sanitizer = __tsan_create_fiber(0);
#endif
  }
  // Before the stack's memory goes.
  static void Unmake([[maybe_unused]] Stack& stack) {
#if defined(OT_FIBERS_THREAD)
    __tsan_destroy_fiber(stack.sanitizer);
#endif
#if defined(OT_FIBERS_ADDRESS)
    __asan_unpoison_memory_region(stack.low, stack.bytes);
#endif
  }

  // Runs `to` until something switches back to `from`, the running one. `data` is for an entry.
  void Switch(Stack& from, Stack& to, void* data) {
    left_ = &from;
#if defined(OT_FIBERS_THREAD)
    from.sanitizer = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.sanitizer, 0);
#endif
#if defined(OT_FIBERS_ADDRESS)
    __sanitizer_start_switch_fiber(&from.fake, to.low, to.bytes);
#endif
    Arrived(boost::context::detail::jump_fcontext(to.resume, data), from.fake);
  }
  void Arrived(const boost::context::detail::transfer_t& back, [[maybe_unused]] void* fake) {
    left_->resume = back.fctx;
#if defined(OT_FIBERS_ADDRESS)
    // Tells where the stack that was left lies: that of the OS thread is known no other way.
    __sanitizer_finish_switch_fiber(fake, &left_->low, &left_->bytes);
#endif
  }

 private:
  Stack* left_ = nullptr;  // by the latest switch
};

}  // namespace overtok::emulation
