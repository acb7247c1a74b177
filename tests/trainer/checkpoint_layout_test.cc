// tensors.json: what is written is read back; what cannot be a checkpoint is named.
#include "trainer/checkpoint_layout.h"

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

// Elements [begin, begin + count) of part `part` of two, each of 32 elements.
StoredPiece Piece(int64_t part, int64_t begin, int64_t count) {
  StoredPiece piece;
  piece.kind = CheckpointKind::kOptimizer;
  piece.name = "adamh.m/\"lm_head\".weight";
  piece.dtype = DType::kF64;
  piece.region = {{4, 16}, {Split::kColumns, 2, part, 8}, begin, count};
  piece.offset = 4096 + part;
  piece.xxh3 = 0xfedcba9876543210u;
  piece.sum = 17;
  return piece;
}

absl::StatusOr<CheckpointLayout> Parse(const std::vector<StoredPiece>& pieces) {
  StoredFile file{"rank-00000.h5", 1 << 20, pieces};
  return ParseLayout("tensors.json", LayoutText(12, {ToText(file)}));
}

TEST(CheckpointLayoutTest, IsReadAsWritten) {
  StoredFile first{"rank-00000.h5", 5000, {Piece(0, 0, 20), Piece(1, 0, 32)}};
  StoredFile second{"rank-00001.h5", 6000, {Piece(0, 20, 12)}};
  StoredFile third{"rank-00002.h5", 7000, {}};
  const auto layout =
      ParseLayout("tensors.json", LayoutText(12, {ToText(first), ToText(second), ToText(third)}));
  OT_ASSERT_OK(layout.status());
  EXPECT_EQ(layout->step, 12);
  ASSERT_EQ(layout->files.size(), 3u);
  EXPECT_EQ(layout->files[1].name, "rank-00001.h5");
  EXPECT_EQ(layout->files[1].bytes, 6000);
  const StoredPiece& piece = layout->files[1].pieces.at(0);
  EXPECT_EQ(ToText(layout->files[1]), ToText(second));
  EXPECT_EQ(piece.bytes(), 96);
  EXPECT_EQ(piece.xxh3, 0xfedcba9876543210u);
  ASSERT_EQ(layout->tensors.size(), 1u);
  EXPECT_EQ(layout->tensors[0].name, "adamh.m/\"lm_head\".weight");
  EXPECT_TRUE(layout->tensors[0].shape == (Shape{4, 16}));
  EXPECT_EQ(layout->tensors[0].pieces.size(), 3u);
  EXPECT_EQ(layout->Hash(CheckpointKind::kModel), 0u);
  EXPECT_NE(layout->Hash(CheckpointKind::kOptimizer), 0u);
}

TEST(CheckpointLayoutTest, RefusesGapsAndOverlaps) {
  const std::string part_of = "\"lm_head\".weight are not every element once: part ";
  OT_ASSERT_OK(Parse({Piece(0, 0, 20), Piece(0, 20, 12), Piece(1, 0, 32)}).status());
  // A gap of the size of an overlap.
  OT_EXPECT_ERROR(
      Parse({Piece(0, 0, 20), Piece(0, 18, 12), Piece(1, 0, 32)}).status(),
      part_of + "0 of 2 has 32 elements, its pieces go up to 20, where another does not go on");
  OT_EXPECT_ERROR(Parse({Piece(0, 0, 20), Piece(0, 22, 10), Piece(1, 0, 32)}).status(), part_of);
  OT_EXPECT_ERROR(Parse({Piece(0, 0, 32)}).status(), part_of + "1 of 2");
  OT_EXPECT_ERROR(Parse({Piece(0, 0, 32), Piece(1, 0, 32), Piece(1, 0, 32)}).status(), part_of);
}

TEST(CheckpointLayoutTest, RefusesPiecesThatDisagree) {
  StoredPiece other = Piece(1, 0, 32);
  other.dtype = DType::kF32;
  OT_EXPECT_ERROR(Parse({Piece(0, 0, 32), other}).status(), "disagree in dtype, shape or division");
  other = Piece(1, 0, 32);
  other.region.sharding.unit = 4;
  OT_EXPECT_ERROR(Parse({Piece(0, 0, 32), other}).status(), "disagree in dtype, shape or division");
}

TEST(CheckpointLayoutTest, RefusesImpossiblePieces) {
  const auto refused = [](const auto& change) {
    StoredPiece piece = Piece(1, 0, 32);
    change(piece);
    OT_EXPECT_ERROR(Parse({Piece(0, 0, 32), piece}).status(), "impossible piece of adamh.m");
  };
  refused([](StoredPiece& piece) { piece.region.begin = 1; });
  refused([](StoredPiece& piece) { piece.region.count = -1; });
  refused([](StoredPiece& piece) { piece.region.sharding.part = 2; });
  refused([](StoredPiece& piece) { piece.region.sharding.unit = 3; });
  refused([](StoredPiece& piece) { piece.region.sharding.split = Split::kWhole; });
  refused([](StoredPiece& piece) { piece.region.logical = {64}; });
  refused([](StoredPiece& piece) { piece.offset = 1 << 20; });
  refused([](StoredPiece& piece) { piece.offset = -1; });
}

TEST(CheckpointLayoutTest, RefusesOtherVersionsAndFiles) {
  std::string text = LayoutText(12, {});
  text.replace(text.find("\"version\":2"), 11, "\"version\":3");
  OT_EXPECT_ERROR(ParseLayout("x/tensors.json", text).status(),
                  "x/tensors.json has version 3 of the checkpoint format, this program reads and "
                  "writes 2");
  for (const char* other :
       {"", "[]", "{\"version\":2}", "{\"version\":2,\"step\":1,\"files\":3}"}) {
    OT_EXPECT_ERROR(ParseLayout("x/tensors.json", other).status(),
                    "x/tensors.json does not describe the tensors of a checkpoint");
  }
}

}  // namespace
}  // namespace overtok
