#include "core/io/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

class FilesTest : public ::testing::Test {
 protected:
  ~FilesTest() override { SetFileFaultHook(nullptr); }
  testing::TemporaryDirectory directory_;
};

TEST_F(FilesTest, WritesReadsAndReplaces) {
  const std::string path = directory_.File("a.txt");
  OT_ASSERT_OK(WriteFileAtomically(path, "one"));
  OT_ASSERT_OK(WriteFileAtomically(path, absl::string_view("t\0o", 3)));
  EXPECT_EQ(*ReadFile(path), std::string("t\0o", 3));
  EXPECT_EQ(*FileSize(path), 3);
  EXPECT_EQ(*ListDirectory(directory_.path()), std::vector<std::string>{"a.txt"});
}

TEST_F(FilesTest, MissingAndOversizedFilesAreNamed) {
  OT_EXPECT_ERROR(ReadFile(directory_.File("absent")), "absent: No such file");
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("big"), "12345"));
  OT_EXPECT_ERROR(ReadFile(directory_.File("big"), 4), "larger than 4 bytes");
  OT_EXPECT_ERROR(ReadFile(directory_.path()), "is a directory");
}

// A failure at any point leaves the old contents and no other file.
TEST_F(FilesTest, FailureAtEveryPointKeepsTheOldFile) {
  const std::string path = directory_.File("state");
  OT_ASSERT_OK(WriteFileAtomically(path, "old"));
  for (const char* point : {"open", "write", "fsync", "rename"}) {
    SetFileFaultHook([&](absl::string_view operation, absl::string_view) {
      return operation == point ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
    });
    OT_EXPECT_ERROR(WriteFileAtomically(path, "new"), "no space");
    SetFileFaultHook(nullptr);
    EXPECT_EQ(*ReadFile(path), "old") << point;
    EXPECT_EQ(ListDirectory(directory_.path())->size(), 1u) << point;
  }
}

TEST_F(FilesTest, NaturalOrderComparesNumbersByValue) {
  EXPECT_TRUE(NaturalLess("shard_2.h5", "shard_10.h5"));
  EXPECT_FALSE(NaturalLess("shard_10.h5", "shard_2.h5"));
  EXPECT_TRUE(NaturalLess("a", "b"));
  EXPECT_TRUE(NaturalLess("a", "a1"));
  EXPECT_TRUE(NaturalLess("v99999999999999999999998", "v99999999999999999999999"));
  EXPECT_FALSE(NaturalLess("x", "x"));
  EXPECT_NE(NaturalLess("x01", "x1"), NaturalLess("x1", "x01"));
}

TEST_F(FilesTest, GlobMatchesInNaturalOrder) {
  for (const char* name : {"s_10.h5", "s_2.h5", "s_1.h5", "other", "odd[1].h5"}) {
    OT_ASSERT_OK(WriteFileAtomically(directory_.File(name), ""));
  }
  const auto found = Glob(directory_.File("s_*.h5"));
  OT_ASSERT_OK(found);
  EXPECT_EQ(*found, (std::vector<std::string>{directory_.File("s_1.h5"), directory_.File("s_2.h5"),
                                              directory_.File("s_10.h5")}));
  EXPECT_EQ(Glob(directory_.File("odd[1].h5"))->size(), 1u);
  OT_EXPECT_ERROR(Glob(directory_.File("*.bin")), "no file matches");
}

TEST_F(FilesTest, DirectoriesAreCreatedAndRemoved) {
  OT_ASSERT_OK(CreateDirectories(directory_.File("a/b/c")));
  OT_ASSERT_OK(CreateDirectories(directory_.File("a/b/c")));
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("a/b/file"), "x"));
  EXPECT_TRUE(IsDirectory(directory_.File("a/b/c")));
  OT_EXPECT_ERROR(CreateDirectories(directory_.File("a/b/file/c")), "a/b/file");
  OT_ASSERT_OK(RemoveTree(directory_.File("a")));
  EXPECT_FALSE(PathExists(directory_.File("a")));
  OT_ASSERT_OK(RemoveTree(directory_.File("a")));
}

TEST_F(FilesTest, RemoveTreeDoesNotFollowLinks) {
  OT_ASSERT_OK(CreateDirectories(directory_.File("kept")));
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("kept/x"), "x"));
  OT_ASSERT_OK(CreateDirectories(directory_.File("gone")));
  ASSERT_EQ(symlink(directory_.File("kept").c_str(), directory_.File("gone/link").c_str()), 0);
  OT_ASSERT_OK(RemoveTree(directory_.File("gone")));
  EXPECT_TRUE(PathExists(directory_.File("kept/x")));
}

TEST_F(FilesTest, FreeSpaceErrorNamesBothNumbers) {
  OT_ASSERT_OK(CheckFreeSpace(directory_.File("not/yet/there"), 1));
  OT_EXPECT_ERROR(CheckFreeSpace(directory_.File("x"), int64_t{1} << 62),
                  "4611686018427387904 bytes are needed");
}

TEST_F(FilesTest, JoinsPaths) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
}

}  // namespace
}  // namespace overtok
