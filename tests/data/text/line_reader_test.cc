#include "data/text/line_reader.h"

#include <gtest/gtest.h>

#include "core/io/files.h"
#include "data/text/gzip_writer.h"
#include "tests/data/text/compress.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using testing::Gzip;
using testing::Zstd;

class LineReaderTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    EXPECT_TRUE(WriteFileAtomically(directory_.File(name), bytes).ok());
    return directory_.File(name);
  }
  static absl::StatusOr<std::vector<std::string>> Lines(const std::string& path,
                                                        int64_t longest = 1 << 30) {
    OT_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path, longest));
    std::vector<std::string> lines;
    absl::string_view line;
    while (true) {
      OT_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
      if (!more) return lines;
      lines.emplace_back(line);
      EXPECT_EQ(reader.line(), static_cast<int64_t>(lines.size()));
    }
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(LineReaderTest, LineEnds) {
  EXPECT_EQ(*Lines(Write("a", "one\ntwo\r\n\nfour")),
            (std::vector<std::string>{"one", "two", "", "four"}));
  EXPECT_EQ(*Lines(Write("b", "one\n")), std::vector<std::string>{"one"});
  EXPECT_TRUE(Lines(Write("c", ""))->empty());
}

TEST_F(LineReaderTest, ByteOrderMarkIsSkippedAtTheStartOnly) {
  const std::string path = Write("bom", "\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo");
  EXPECT_EQ(*Lines(path), (std::vector<std::string>{"one", "\xEF\xBB\xBFtwo"}));
  auto reader = LineReader::Open(path);
  OT_ASSERT_OK(reader);
  EXPECT_EQ(*reader->Rest(), "one\n\xEF\xBB\xBFtwo");
  EXPECT_TRUE(reader->had_byte_order_mark());
  EXPECT_EQ(*Lines(Write("short", "ab")), std::vector<std::string>{"ab"});
  EXPECT_TRUE(Lines(Write("only", "\xEF\xBB\xBF"))->empty());
}

TEST_F(LineReaderTest, LongLinesGrowTheBuffer) {
  std::vector<std::string> expected = {std::string(3'000'000, 'x'), "short",
                                       std::string(700'000, 'y')};
  const std::string text = expected[0] + "\n" + expected[1] + "\n" + expected[2];
  EXPECT_EQ(*Lines(Write("long", text)), expected);
  EXPECT_EQ(*Lines(Write("long.gz", Gzip(text))), expected);
  OT_EXPECT_ERROR(Lines(directory_.File("long"), 1 << 20), "long:1: longer than 1048576 bytes");
}

TEST_F(LineReaderTest, SeveralMembersAndFrames) {
  const std::vector<std::string> expected = {"one", "two", "three"};
  EXPECT_EQ(*Lines(Write("a.gz", Gzip("one\ntw") + Gzip("") + Gzip("o\nthree\n"))), expected);
  EXPECT_EQ(*Lines(Write("a.zst", Zstd("one\ntw") + Zstd("") + Zstd("o\nthree\n"))), expected);
}

TEST_F(LineReaderTest, CutOffFilesAreErrors) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919) + "\n";
  const std::string gzip = Gzip(text), zstd = Zstd(text);
  for (const double part : {0.0, 0.1, 0.5, 0.999}) {
    const auto cut = [&](const std::string& bytes) {
      return bytes.substr(0, static_cast<size_t>(part * static_cast<double>(bytes.size())));
    };
    OT_EXPECT_ERROR(Lines(Write("c.gz", cut(gzip))), "c.gz is cut off");
    OT_EXPECT_ERROR(Lines(Write("c.zst", cut(zstd))), "c.zst is cut off");
  }
  OT_EXPECT_ERROR(Lines(Write("d.gz", gzip + gzip.substr(0, 50))), "d.gz is cut off");
  OT_EXPECT_ERROR(Lines(Write("d.gz", "plain text, not gzip")), "cannot be decompressed");
  OT_EXPECT_ERROR(Lines(Write("d.zst", "plain text, not zstd")), "cannot be decompressed");
  EXPECT_EQ(Lines(Write("whole.zst", zstd))->size(), 100'000u);
}

TEST_F(LineReaderTest, MissingFilesAreNamed) {
  OT_EXPECT_ERROR(Lines(directory_.File("absent.jsonl")), "absent.jsonl: No such file");
  OT_EXPECT_ERROR(Lines(directory_.path()), "is a directory");
}

TEST_F(LineReaderTest, GzipWriterRoundTripsAndIsReproducible) {
  const auto write = [&](const std::string& name) {
    auto writer = GzipWriter::Create(directory_.File(name));
    OT_ASSERT_OK(writer);
    OT_ASSERT_OK((*writer)->Write("one\n"));
    OT_ASSERT_OK((*writer)->Write("two\n"));
    OT_ASSERT_OK((*writer)->Close());
  };
  write("x.gz");
  write("y.gz");
  EXPECT_EQ(*Lines(directory_.File("x.gz")), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(*ReadFile(directory_.File("x.gz")), *ReadFile(directory_.File("y.gz")));
  OT_EXPECT_ERROR(GzipWriter::Create(directory_.File("no/dir.gz")), "cannot create");
}

}  // namespace
}  // namespace overtok
