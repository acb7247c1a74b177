// Reading a piece by windows: long and short stretches, near and far apart, with and without its
// checksum, are the bytes that were written.
#include "trainer/checkpoint_file.h"

#include <numeric>
#include <vector>

#include "core/io/hdf5.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using testing::TemporaryDirectory;

// What a region holds of a tensor whose elements are their own numbers.
std::vector<uint32_t> Numbers(const Region& region) {
  std::vector<uint32_t> values(static_cast<size_t>(region.count));
  ForEachRun(region, [&](int64_t logical, int64_t place, int64_t count) {
    std::iota(values.begin() + place, values.begin() + place + count,
              static_cast<uint32_t>(logical));
  });
  return values;
}

class CheckpointFileTest : public ::testing::Test {
 protected:
  StoredPiece Write(const Region& region) {
    std::vector<uint32_t> values = Numbers(region);
    const ShardedTensor entry{"x", region, Tensor(values.data(), {region.count})};
    const StoredFile file = WriteRankFile(directory_.path(), 3, 1, {entry}, {}).value();
    EXPECT_EQ(file.name, "rank-00003.h5");
    return file.pieces.at(0);
  }
  void ExpectReads(const StoredPiece& piece, const Region& wanted) {
    const InputFile file = InputFile::Open(directory_.File("rank-00003.h5")).value();
    const std::vector<PieceCopy> copies = Overlap(RunsOf(piece.region), RunsOf(wanted), 4);
    std::vector<uint32_t> expected = Numbers(wanted);
    // What the piece lacks stays as it was.
    std::vector<bool> there(static_cast<size_t>(wanted.logical.elements()));
    for (const ElementRun& run : RunsOf(piece.region)) {
      std::fill_n(there.begin() + run.logical, run.count, true);
    }
    for (uint32_t& value : expected) {
      if (!there[value]) value = 0xffffffff;
    }
    for (const bool verify : {false, true}) {
      std::vector<uint32_t> found(expected.size(), 0xffffffff);
      OT_ASSERT_OK(ReadPiece(file, piece, copies, found.data(), verify));
      EXPECT_TRUE(found == expected) << "with checksum: " << verify;
    }
  }
  TemporaryDirectory directory_;
};

TEST_F(CheckpointFileTest, ReadsEveryDivisionFromEveryOther) {
  // 2.2 MB in all: pieces of many windows.
  const Shape shape = {700, 800};
  std::vector<Region> regions;
  for (const Split split : {Split::kWhole, Split::kRows, Split::kColumns, Split::kScattered}) {
    const Sharding sharding{split, split == Split::kWhole ? 1 : 3, split == Split::kWhole ? 0 : 1,
                            1};
    regions.push_back(Region::Part(shape, sharding));
    Region range = regions.back();
    range.begin = 12345;
    range.count -= 23456;
    regions.push_back(range);
  }
  for (const Region& stored : regions) {
    const StoredPiece piece = Write(stored);
    for (const Region& wanted : regions) ExpectReads(piece, wanted);
  }
}

TEST_F(CheckpointFileTest, SkipsWhatLiesFarBetween) {
  // Stretches of 400 bytes, 400 kB apart: each is read alone.
  const Shape shape = {9, 100000};
  const StoredPiece piece = Write(Region::Part(shape, {}));
  ExpectReads(piece, Region::Part(shape, {Split::kColumns, 1000, 7, 1}));
  ExpectReads(piece, Region::Part(shape, {Split::kColumns, 5, 4, 1}));
}

TEST_F(CheckpointFileTest, JoinsWhatIsContiguousInBoth) {
  const Region scattered = Region::Part({1000, 8}, {Split::kScattered, 3, 1, 1});
  EXPECT_GT(RunsOf(scattered).size(), 4u);
  const std::vector<PieceCopy> copies = Overlap(RunsOf(scattered), RunsOf(scattered), 2);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].bytes, scattered.count * 2);
  EXPECT_TRUE(Overlap(RunsOf(scattered), {}, 2).empty());
  const Region other = Region::Part({1000, 8}, {Split::kScattered, 3, 2, 1});
  EXPECT_TRUE(Overlap(RunsOf(scattered), RunsOf(other), 2).empty());
}

TEST_F(CheckpointFileTest, OtherProgramsSeeTensorsInTheirShape) {
  std::vector<float> values(6, 1.5f);
  const Tensor tensor(values.data(), {6});
  const Region whole = Region::Part({2, 3}, {});
  Region first = whole, second = whole;
  first.count = 2;
  second.begin = 2;
  second.count = 4;
  const auto stored = WriteRankFile(directory_.path(), 0, 1, {{"a.weight", whole, tensor}},
                                    {{"adam.m/a.weight", first, tensor.Rows(0, 2)},
                                     {"adam.m/a.weight", second, tensor.Rows(2, 4)}});
  OT_ASSERT_OK(stored.status());
  const Hdf5File file = Hdf5File::OpenRead(directory_.File("rank-00000.h5")).value();
  EXPECT_EQ(file.Info("/model/a.weight").value().shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.Info("/optimizer/adam.m/a.weight").value().shape, std::vector<int64_t>{2});
  EXPECT_EQ(file.Info("/optimizer/adam.m/a.weight~1").value().shape, std::vector<int64_t>{4});
}

TEST_F(CheckpointFileTest, FindsAFileThatEnds) {
  StoredPiece piece = Write(Region::Part({700, 800}, {}));
  piece.offset += 4096;
  const InputFile file = InputFile::Open(directory_.File("rank-00003.h5")).value();
  OT_EXPECT_ERROR(ReadPiece(file, piece, {}, nullptr, true), "rank-00003.h5 ends at byte");
  OT_EXPECT_ERROR(InputFile::Open(directory_.File("none")).status(), "none: No such file");
}

}  // namespace
}  // namespace overtok
