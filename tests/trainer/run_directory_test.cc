#include "trainer/run_directory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using testing::TemporaryDirectory;

TEST(RunDirectoryTest, OneProcessAtATime) {
  const TemporaryDirectory directory;
  const std::string run = directory.File("a/b/run");
  {
    const auto first = RunDirectory::Open(run, true);
    OT_ASSERT_OK(first);
    // flock is per open file, so a second opening in this process conflicts as another process
    // would.
    OT_EXPECT_ERROR(RunDirectory::Open(run, false),
                    absl::StrCat("another process (id ", getpid(), ")"));
  }
  OT_ASSERT_OK(RunDirectory::Open(run, false));
}

TEST(RunDirectoryTest, TheLockEndsWithTheProcess) {
  const TemporaryDirectory directory;
  const pid_t child = fork();
  if (child == 0) {
    const auto held = RunDirectory::Open(directory.path(), false);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  OT_ASSERT_OK(RunDirectory::Open(directory.path(), false));
}

TEST(RunDirectoryTest, FreshRefusesEveryPartOfARun) {
  for (const char* part : {"config.yaml", "manifest.json", "metrics.jsonl", "checkpoints/x"}) {
    const TemporaryDirectory directory;
    OT_ASSERT_OK(CreateDirectories(directory.File("checkpoints")));
    OT_ASSERT_OK(RemoveTree(directory.File("checkpoints")));
    if (std::string(part) == "checkpoints/x") {
      OT_ASSERT_OK(CreateDirectories(directory.File("checkpoints")));
    }
    OT_ASSERT_OK(WriteFileAtomically(directory.File(part), "x"));
    OT_EXPECT_ERROR(RunDirectory::Open(directory.path(), true), "holds a run already");
    OT_ASSERT_OK(RunDirectory::Open(directory.path(), false));
  }
}

TEST(RunDirectoryTest, ManifestGathersStarts) {
  const TemporaryDirectory directory;
  const auto run = RunDirectory::Open(directory.path(), false);
  OT_ASSERT_OK(run);
  OT_ASSERT_OK((*run)->WriteConfig("model: {}\n"));
  EXPECT_EQ(ReadFile(RunDirectory::ConfigOf(directory.path())).value(), "model: {}\n");
  RunFacts facts;
  facts.config_sha256 = "c0ffee";
  facts.precision = "f32";
  facts.threads = 2;
  facts.launcher = "mpirun";
  facts.data_ranks = 4;
  facts.initial_values = "0123";
  facts.data = {{"content_xxh3", "aa"}};
  OT_ASSERT_OK((*run)->RecordStart(facts));
  facts.from_step = 10;
  facts.initial_values.clear();
  OT_ASSERT_OK((*run)->RecordStart(facts));
  const auto manifest =
      nlohmann::json::parse(ReadFile(RunDirectory::ManifestOf(directory.path())).value());
  EXPECT_EQ(manifest.at("initial_values_xxh3"), "0123");
  EXPECT_EQ(manifest.at("data").at("content_xxh3"), "aa");
  ASSERT_EQ(manifest.at("starts").size(), 2u);
  EXPECT_EQ(manifest.at("starts").at(1).at("from_step"), 10);
  EXPECT_EQ(manifest.at("starts").at(1).at("launcher"), "mpirun");
  EXPECT_EQ(manifest.at("starts").at(1).at("data_ranks"), 4);
  EXPECT_EQ(manifest.at("starts").at(1).at("tensor_ranks"), 1);
  for (const auto& start : manifest.at("starts")) {
    EXPECT_EQ(start.at("binary_sha256").get<std::string>().size(), 64u);
    EXPECT_FALSE(start.at("host").at("name").get<std::string>().empty());
  }
  OT_ASSERT_OK(WriteFileAtomically(RunDirectory::ManifestOf(directory.path()), "{"));
  OT_EXPECT_ERROR((*run)->RecordStart(facts), "is not the manifest of a run");
}

}  // namespace
}  // namespace overtok
