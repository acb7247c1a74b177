// The real cuBLASLt, where it is installed: it opens without a device and has every function that
// the backend takes from it.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/cuda/libraries.h"
#include "core/cuda/matmul.h"

namespace overtok {
namespace {

TEST(CublasLtLibrary, HasEveryFunction) {
  const auto library = cuda::OpenLibrary(cuda::CublasLtRequest());
  if (!library.ok()) GTEST_SKIP() << library.status();
  const absl::Status status = cuda::OpenCublasLt();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GE(cuda::CublasLtVersion(), 120000) << cuda::LibraryFile(*library);
  std::printf("cuBLASLt %lld: %s\n", static_cast<long long>(cuda::CublasLtVersion()),
              cuda::LibraryFile(*library).c_str());
}

}  // namespace
}  // namespace overtok
