// Products under the emulation: the CPU backend's, in place of cuBLASLt. Checked, operands must
// have been written; the result then is.
#include "core/cpu/kernels.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/emulation/known_memory.h"
#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {
namespace {

#if defined(OT_CHECKED)
void CheckWritten(const Tensor& x, const char* name) {
  const int64_t unwritten = emulation::FirstUnwritten(x.raw(), x.bytes());
  OT_CHECK(unwritten < 0) << "Matmul: nobody has written byte " << unwritten << " of operand "
                          << name;
}
#endif

void Multiply(const Context& context, const MatmulArgs& args) {
  const emulation::DeviceAccess access;
#if defined(OT_CHECKED)
  CheckWritten(args.a, "a");
  CheckWritten(args.b, "b");
  if (args.accumulate) CheckWritten(args.c, "c");
#endif
  cpu::Matmul(context, args);
#if defined(OT_CHECKED)
  emulation::MarkWritten(args.c.raw(), args.c.bytes());
#endif
}

}  // namespace

void Matmul(const Context& context, const MatmulArgs& args) {
  OT_CHECK(context.stream_name() == StreamName::kMain)
      << "products run on the main stream, whose workspace they share";
  if (emulation::Delays()) {
    emulation::Enqueue(StreamName::kMain, [context, args] { Multiply(context, args); });
  } else {
    Multiply(context, args);
  }
}

}  // namespace overtok::OT_BACKEND
