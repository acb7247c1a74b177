// A directory of one test, removed with it; and gtest matchers for absl::Status.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/status.h"

namespace overtok::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <class T>
absl::Status StatusOf(const absl::StatusOr<T>& status) {
  return status.status();
}

}  // namespace overtok::testing

#define OT_ASSERT_OK(expression)                                                  \
  do {                                                                            \
    const absl::Status ot_test_status = ::overtok::testing::StatusOf(expression); \
    ASSERT_TRUE(ot_test_status.ok()) << ot_test_status.ToString();                \
  } while (false)
// The expression fails, and its message contains `part`.
#define OT_EXPECT_ERROR(expression, part)                                           \
  do {                                                                              \
    const absl::Status ot_test_status = ::overtok::testing::StatusOf(expression);   \
    EXPECT_FALSE(ot_test_status.ok());                                              \
    EXPECT_THAT(std::string(ot_test_status.message()), ::testing::HasSubstr(part)); \
  } while (false)
