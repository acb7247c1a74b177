// OT_CHECK: an assertion about our own code that stays on in release builds. It prints file, line,
// the condition and what was streamed into it, and aborts. User mistakes are not checks: they are
// an absl::Status (core/status.h).
#pragma once

#include <sstream>

namespace overtok::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Lets the macro be an expression of type void whatever is streamed.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace overtok::internal

#define OT_CHECK(condition)                      \
  (condition) ? (void)0                          \
              : ::overtok::internal::Voidify() & \
                    ::overtok::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()
#define OT_CHECK_EQ(a, b) OT_CHECK((a) == (b)) << "(" << (a) << " against " << (b) << ") "
#define OT_CHECK_LE(a, b) OT_CHECK((a) <= (b)) << "(" << (a) << " against " << (b) << ") "
#define OT_CHECK_LT(a, b) OT_CHECK((a) < (b)) << "(" << (a) << " against " << (b) << ") "
#define OT_CHECK_GE(a, b) OT_CHECK((a) >= (b)) << "(" << (a) << " against " << (b) << ") "
