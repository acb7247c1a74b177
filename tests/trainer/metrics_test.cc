#include "trainer/metrics.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using testing::TemporaryDirectory;

TEST(MetricsLineTest, IsOneJsonObjectInOrder) {
  const std::string text = MetricsLine(12, "train")
                               .Add("train/loss", 0.1)
                               .Add("throughput/total_tokens", int64_t{1} << 60)
                               .Add("name", "a \"quoted\"\nname")
                               .AddFlag("eval/sampled_stage", true)
                               .AddHash("data/ids_hash", 0xabc)
                               .ToJson(1.5);
  EXPECT_EQ(text,
            "{\"step\":12,\"time\":1.500,\"kind\":\"train\",\"train/loss\":0.1,"
            "\"throughput/total_tokens\":1152921504606846976,"
            "\"name\":\"a \\\"quoted\\\"\\nname\",\"eval/sampled_stage\":true,"
            "\"data/ids_hash\":\"0000000000000abc\"}");
  EXPECT_TRUE(nlohmann::json::accept(text));
}

TEST(MetricsLineTest, ValuesWithoutAJsonNumberAreText) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(MetricsLine(1, "train")
                                              .Add("a", std::nan(""))
                                              .Add("b", infinity)
                                              .Add("c", -infinity)
                                              .Add("d", "\xff")
                                              .ToJson(0));
  EXPECT_EQ(json.at("a"), "NaN");
  EXPECT_EQ(json.at("b"), "Infinity");
  EXPECT_EQ(json.at("c"), "-Infinity");
  EXPECT_TRUE(json.at("d").is_string());
}

TEST(MetricsFileTest, CutsBackToTheCheckpointsLength) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("metrics.jsonl");
  int64_t after_two = 0;
  {
    auto file = MetricsFile::Open(path, 0);
    OT_ASSERT_OK(file);
    for (int64_t step = 1; step <= 3; ++step) {
      OT_ASSERT_OK((*file)->Write(MetricsLine(step, "train")));
      EXPECT_EQ(FileSize(path).value(), (*file)->bytes());
      if (step == 2) after_two = (*file)->bytes();
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\":4,\"ti";  // what a kill may leave
  {
    auto file = MetricsFile::Open(path, after_two);
    OT_ASSERT_OK(file);
    OT_ASSERT_OK((*file)->Write(MetricsLine(30, "train")));
    OT_ASSERT_OK((*file)->Sync());
  }
  std::vector<int64_t> steps;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 30));
  OT_EXPECT_ERROR(MetricsFile::Open(path, 1 << 20), "the checkpoint was written when it had");
}

TEST(MetricsFileTest, NamesTheFileWhenTheDiskIsFull) {
  const absl::StatusOr<std::unique_ptr<MetricsFile>> file = MetricsFile::Open("/dev/full", 0);
  // The device cannot be cut to a length; where it can be opened at all, writing must fail.
  if (file.ok()) OT_EXPECT_ERROR((*file)->Write(MetricsLine(1, "train")), "/dev/full");
}

}  // namespace
}  // namespace overtok
