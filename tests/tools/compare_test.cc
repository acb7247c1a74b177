// `overtok compare` on small traces: passes equal ones and ones within the bounds, and fails each
// kind of difference, NaN among them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io/hdf5.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

// What one step left; a change to any part is a difference of one kind.
struct Trace {
  double loss = 4;
  uint32_t token = 5, candidate = 9;
  float initial = 1, gradient = 2, after = 0.5;
};

absl::Status WriteTrace(const std::string& path, const Trace& trace) {
  OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(path));
  const auto floats = [&](const std::string& name, float first) {
    std::vector<float> values = {first, 3, -4};
    return file.Write(name, Tensor(values.data(), {3}));
  };
  const auto ids = [&](const std::string& name, uint32_t first) {
    std::vector<uint32_t> values = {first, 11};
    return file.Write(name, Tensor(values.data(), {2}));
  };
  OT_RETURN_IF_ERROR(floats("/init/w", trace.initial));
  OT_RETURN_IF_ERROR(ids("/step_000000/tokens", trace.token));
  OT_RETURN_IF_ERROR(ids("/step_000000/segments", 0));
  OT_RETURN_IF_ERROR(ids("/step_000000/block", 0));
  OT_RETURN_IF_ERROR(floats("/step_000000/loss_weight", 1));
  OT_RETURN_IF_ERROR(ids("/step_000000/candidates/main/0", trace.candidate));
  OT_RETURN_IF_ERROR(floats("/step_000000/grads/w", trace.gradient));
  OT_RETURN_IF_ERROR(floats("/step_000000/params/w", trace.after));
  OT_RETURN_IF_ERROR(file.SetAttribute("/step_000000", "loss", trace.loss));
  return file.Close();
}

class Compare : public ::testing::Test {
 protected:
  // The program's exit code on an unchanged trace and `other`.
  int Run(const Trace& other, const std::string& options = "") {
    ExpectWritten(WriteTrace(directory_.File("a.h5"), {}));
    ExpectWritten(WriteTrace(directory_.File("b.h5"), other));
    const int status = std::system(
        absl::StrCat(OVERTOK_PROGRAM, " compare ", directory_.File("a.h5"), " ",
                     directory_.File("b.h5"), " ", options, " > ", directory_.File("out"))
            .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static void ExpectWritten(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  testing::TemporaryDirectory directory_;
};

TEST_F(Compare, PassesWhatIsEqualOrWithinTheBounds) {
  EXPECT_EQ(Run({}), 0);
  EXPECT_EQ(Run({.loss = 4.001}), 0);
  EXPECT_EQ(Run({.gradient = 2.1F}), 0);  // 0.1 / |(2, 3, -4)| = 0.019 of 0.03
  EXPECT_EQ(Run({.after = 0.51F}), 0);    // 0.01 / 0.5 = 0.02 of 0.1
}

TEST_F(Compare, FailsEachKindOfDifference) {
  EXPECT_EQ(Run({.loss = 4.01}), 1);
  EXPECT_EQ(Run({.token = 6}), 1);
  EXPECT_EQ(Run({.candidate = 8}), 1);
  EXPECT_EQ(Run({.initial = 1.0000001F}), 1);
  EXPECT_EQ(Run({.gradient = 2.3F}), 1);  // 0.056
  EXPECT_EQ(Run({.after = 0.6F}), 1);     // 0.2
}

TEST_F(Compare, FailsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Run({.loss = nan}), 1);
  EXPECT_EQ(Run({.gradient = nan}), 1);
  EXPECT_EQ(Run({.after = nan}), 1);
}

TEST_F(Compare, BoundsAreTheCallers) {
  EXPECT_EQ(Run({.gradient = 2.1F}, "--gradient 0.01"), 1);
  EXPECT_EQ(Run({.loss = 4.01}, "--loss 0.01"), 0);
  EXPECT_EQ(Run({.after = 0.6F}, "--update 0.3"), 0);
}

}  // namespace
}  // namespace overtok
