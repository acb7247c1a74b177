// Shards that other programs made or rewrote: chunked, big-endian, without our attributes. They are
// built with the HDF5 library itself, which the project's wrapper would not let us do.
#include <gtest/gtest.h>
#include <hdf5.h>

#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "data/shard.h"
#include "tests/data/fixtures.h"

namespace overtok {
namespace {

// Writes `count` ids of value i % 256 in type `stored` as `name`, chunked when `chunk` > 0.
void WriteForeign(hid_t file, const char* name, hid_t stored, hsize_t count, hsize_t chunk) {
  const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
  if (chunk > 0) H5Pset_chunk(create, 1, &chunk);
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t set = H5Dcreate2(file, name, stored, space, H5P_DEFAULT, create, H5P_DEFAULT);
  std::vector<uint32_t> ids(count);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i % 256);
  H5Dwrite(set, H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.data());
  H5Dclose(set);
  H5Sclose(space);
  H5Pclose(create);
}

TEST(ForeignShardTest, FilesOfOthersAreNamedWithAdvice) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("foreign.h5");
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  WriteForeign(file, "input_ids", H5T_STD_I32LE, 100, 10);
  H5Fclose(file);
  OT_EXPECT_ERROR(Shard::Open(path), "foreign.h5 is not a shard of overtok");
  OT_EXPECT_ERROR(Shard::Open(path), "/input_ids may hold ids");
}

// A shard of ours whose ids were repacked in chunks and swapped reads as before.
TEST(ForeignShardTest, RepackedShardsAreReadThroughTheLibrary) {
  const testing::TemporaryDirectory directory;
  std::vector<uint32_t> document(5000);
  for (size_t i = 0; i < document.size(); ++i) document[i] = static_cast<uint32_t>(i % 256);
  for (const int64_t vocabulary : {int64_t{300}, int64_t{100'000}}) {
    ShardIdentity identity = testing::ByteIdentity();
    identity.vocab_size = vocabulary;
    const std::string folder = directory.File(std::to_string(vocabulary));
    OT_ASSERT_OK(testing::WriteShards(folder, identity, {document}));
    const std::string path = folder + "/shard_00000.h5";
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Ldelete(file, "tokens", H5P_DEFAULT);
    WriteForeign(file, "tokens", vocabulary == 300 ? H5T_STD_U16BE : H5T_STD_U32BE, 5000, 512);
    H5Fclose(file);
    ::testing::internal::CaptureStderr();
    const auto shard = Shard::Open(path, true);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("h5repack"));
    OT_ASSERT_OK(shard);
    std::vector<uint32_t> ids(1000);
    OT_ASSERT_OK((*shard)->Read(3700, 1000, ids.data()));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), document.begin() + 3700));
  }
}

// Case 69: u32 data where the vocabulary asks for u16 is not guessed at.
TEST(ForeignShardTest, WrongIdTypeIsRefused) {
  const testing::TemporaryDirectory directory;
  OT_ASSERT_OK(testing::WriteShards(directory.path(), testing::ByteIdentity(), {{1, 2, 3, 4}}));
  const std::string path = directory.File("shard_00000.h5");
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, "tokens", H5P_DEFAULT);
  WriteForeign(file, "tokens", H5T_STD_U32LE, 4, 0);
  H5Fclose(file);
  OT_EXPECT_ERROR(Shard::Open(path), "expected u16 [4]");
}

// Case 70: positions beyond 2^31 and 2^32 bytes. Only the last chunk of the dataset exists.
TEST(ForeignShardTest, OffsetsAreSixtyFourBits) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("large.h5");
  constexpr hsize_t kCount = 3'000'000'000, kChunk = 1000, kLast = kCount - 100;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t create = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(create, 1, &kChunk);
  const hid_t space = H5Screate_simple(1, &kCount, nullptr);
  const hid_t set =
      H5Dcreate2(file, "tokens", H5T_STD_U32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
  std::vector<uint32_t> ids(100);
  for (uint32_t i = 0; i < 100; ++i) ids[i] = 1000 + i;
  const hsize_t hundred = 100;
  const hid_t memory = H5Screate_simple(1, &hundred, nullptr);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &kLast, nullptr, &hundred, nullptr);
  H5Dwrite(set, H5T_NATIVE_UINT32, memory, space, H5P_DEFAULT, ids.data());
  H5Sclose(memory);
  H5Dclose(set);
  H5Sclose(space);
  H5Pclose(create);
  H5Fclose(file);
  const auto opened = Hdf5File::OpenRead(path);
  OT_ASSERT_OK(opened);
  EXPECT_EQ(opened->Info("/tokens")->shape, std::vector<int64_t>{3'000'000'000});
  std::vector<uint32_t> read(100);
  OT_ASSERT_OK(opened->ReadRange("/tokens", 2'999'999'900, Tensor(read.data(), {100})));
  EXPECT_EQ(read, ids);
}

}  // namespace
}  // namespace overtok
