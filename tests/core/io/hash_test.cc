#include "core/io/hash.h"

#include <gtest/gtest.h>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

// The test vectors of FIPS 180-4.
TEST(HashTest, Sha256OfKnownInputs) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HashTest, FileIsHashedLikeItsBytes) {
  const testing::TemporaryDirectory directory;
  const std::string bytes(3'000'001, 'x');  // more than one read
  OT_ASSERT_OK(WriteFileAtomically(directory.File("f"), bytes));
  EXPECT_EQ(*Sha256HexOfFile(directory.File("f")), Sha256Hex(bytes));
  OT_EXPECT_ERROR(Sha256HexOfFile(directory.File("absent")), "absent");
}

TEST(HashTest, Xxh3DependsOnBytesAndSeed) {
  EXPECT_EQ(Xxh3("", 0), 0x2d06800538d394c2u);  // XXH3 of nothing, from xxHash's own test vectors
  EXPECT_NE(Xxh3("abc", 3), Xxh3("abd", 3));
  EXPECT_NE(Xxh3("abc", 3, 0), Xxh3("abc", 3, 1));
}

}  // namespace
}  // namespace overtok
