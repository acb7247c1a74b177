// Products under the emulation: the CPU backend's, in place of cuBLASLt. Checked, operands must
// have been written; the result then is.
#include "core/cpu/kernels.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/emulation/known_memory.h"
#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

#if defined(OT_CHECKED)
namespace {

void CheckWritten(const Tensor& x, const char* name) {
  const int64_t unwritten = emulation::FirstUnwritten(x.raw(), x.bytes());
  OT_CHECK(unwritten < 0) << "Matmul: nobody has written byte " << unwritten << " of operand "
                          << name;
}

}  // namespace
#endif

void Matmul(const Context& context, const MatmulArgs& args) {
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

}  // namespace overtok::OT_BACKEND
