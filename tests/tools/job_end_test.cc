// How a job of many ranks ends: with one message where all agree, at once where one rank is lost;
// never by waiting for a peer that is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class JobEnd : public ::testing::Test {
 protected:
  // The exit code of a command line; 128 + signal as a shell tells it.
  int Shell(const std::string& command) {
    const auto begin = std::chrono::steady_clock::now();
    const int status = std::system((command + " >" + Output() + " 2>&1 </dev/null").c_str());
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    output_ = ReadAll(Output());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int OnRanks(int ranks, const std::string& arguments) {
    return Shell(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 "
        "'" OVERTOK_MPIEXEC "' -n " +
        std::to_string(ranks) + " --oversubscribe --bind-to none '" OVERTOK_FAULT_PROGRAM "' " +
        arguments);
  }
  int Fault(const std::string& mode) {
    return OnRanks(2, "fault --mode " + mode + " --directory '" + directory_.path() + "'");
  }
  // Both ranks have run and neither does any more.
  void ExpectAllGone() {
    EXPECT_TRUE(seconds_ <= 10) << seconds_ << " s\n" << output_;
    for (const char* rank : {"0", "1"}) {
      const std::string text = ReadAll(directory_.File(rank));
      ASSERT_FALSE(text.empty()) << "rank " << rank << " never ran\n" << output_;
      // A process that was killed stays in the table until whoever adopted it collects it.
      const auto gone = [&] {
        const std::string stat = ReadAll("/proc/" + text + "/stat");
        const size_t name_end = stat.rfind(')');
        return name_end == std::string::npos || stat.compare(name_end, 3, ") Z") == 0;
      };
      for (int i = 0; i < 20 && !gone(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      EXPECT_TRUE(gone()) << "rank " << rank << " still runs";
    }
  }
  std::string Output() const { return directory_.File("output"); }

  testing::TemporaryDirectory directory_;
  std::string output_;
  double seconds_ = 0;
};

TEST_F(JobEnd, AnErrorThatRanksAgreedOnIsToldOnce) {
  EXPECT_EQ(Fault("agreed"), 1);
  ExpectAllGone();
  EXPECT_EQ(Count(output_, "overtok fault: rank 1: no shard 7\n"), 1) << output_;
}

TEST_F(JobEnd, AMistakeThatAllRanksMadeIsToldAsOneRankWould) {
  EXPECT_EQ(Fault("all"), 1);
  ExpectAllGone();
  EXPECT_EQ(Count(output_, "overtok fault: no key sed\n"), 1) << output_;
}

TEST_F(JobEnd, AnErrorOfOneRankAloneNamesRankAndHostAndEndsAll) {
  EXPECT_EQ(Fault("status"), 1);
  ExpectAllGone();
  EXPECT_THAT(output_, HasSubstr("overtok fault: rank 1 on "));
  EXPECT_THAT(output_, HasSubstr("ends all ranks: shard 9 is cut short"));
}

TEST_F(JobEnd, ACheckThatFailsEndsAll) {
  EXPECT_NE(Fault("check"), 0);
  ExpectAllGone();
  EXPECT_THAT(output_, HasSubstr("check failed"));
}

TEST_F(JobEnd, AnExceptionThatNobodyCatchesEndsAll) {
  EXPECT_NE(Fault("throw"), 0);
  ExpectAllGone();
  EXPECT_THAT(output_, HasSubstr("thrown"));
}

TEST_F(JobEnd, AKilledRankEndsAll) {
  EXPECT_NE(Fault("kill"), 0);
  ExpectAllGone();
}

TEST_F(JobEnd, ARankThatExitsWithoutAWordEndsAll) {
  EXPECT_EQ(Fault("exit"), 3);
  ExpectAllGone();
}

TEST_F(JobEnd, ExitCodesSurviveTheLauncher) {
  EXPECT_EQ(Fault("code"), 75);
  ExpectAllGone();
}

TEST_F(JobEnd, MessagesThatDoNotMatchEndAllAndSayWhy) {
  EXPECT_EQ(Fault("shorter"), 1);
  ExpectAllGone();
  EXPECT_THAT(output_, HasSubstr("from rank 1 does not match: expected 4 elements of f32, got 3"));
  EXPECT_EQ(Fault("longer"), 1);
  ExpectAllGone();
  EXPECT_THAT(output_, HasSubstr("from rank 1 does not match: expected 4 elements of f32"));
  EXPECT_EQ(Fault("dtype"), 1);
  ExpectAllGone();
  EXPECT_THAT(output_, ContainsRegex("expected 4 elements of f32, got message [0-9]+ of i32"));
}

TEST_F(JobEnd, UsageMistakesAreToldOnce) {
  EXPECT_NE(OnRanks(2, "fault --made-up"), 0);
  EXPECT_EQ(Count(output_, "--mode is required"), 1) << output_;
}

TEST_F(JobEnd, ACommandOfOneRankRefusesMore) {
  EXPECT_EQ(OnRanks(2, "alone"), 1);
  EXPECT_EQ(Count(output_, "overtok alone: runs on one rank, but mpirun started 2"), 1) << output_;
  EXPECT_EQ(OnRanks(1, "alone"), 0) << output_;
  EXPECT_EQ(Shell("'" OVERTOK_FAULT_PROGRAM "' alone"), 0) << output_;
  // A batch script's variables are no launcher.
  EXPECT_EQ(Shell("SLURM_NTASKS=4 SLURM_PROCID=0 '" OVERTOK_FAULT_PROGRAM "' alone"), 0) << output_;
}

TEST_F(JobEnd, LaunchersWithoutMpiAreRefused) {
  const std::string command = "'" OVERTOK_FAULT_PROGRAM "' fault --mode code --directory /";
  EXPECT_EQ(Shell("SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_PROCID=0 " + command), 1);
  EXPECT_THAT(output_, HasSubstr("srun --mpi=pmix"));
  EXPECT_EQ(Shell("RANK=0 WORLD_SIZE=2 " + command), 1);
  EXPECT_THAT(output_, HasSubstr("mpirun -n 2"));
  // Another library's launcher: MPI itself finds only this process.
  EXPECT_EQ(Shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMI_RANK=0 "
                  "PMI_SIZE=2 " +
                  command),
            1);
  EXPECT_THAT(output_, HasSubstr("sees 1"));
}

}  // namespace
}  // namespace overtok
