// Documents out of files: whole, in blocks, compressed; bad lines are counted, not lost silently.
#include "data/text/document_files.h"

#include "core/io/files.h"
#include "tests/data/text/compress.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::TemporaryDirectory;
using Documents = std::vector<std::string>;

absl::StatusOr<Documents> ReadAll(DocumentFiles* files) {
  Documents documents;
  std::string document;
  while (true) {
    OT_ASSIGN_OR_RETURN(const bool more, files->Next(&document));
    if (!more) return documents;
    documents.push_back(document);
  }
}

TEST(DocumentFiles, ReadsTextAndJsonLines) {
  const TemporaryDirectory directory;
  const std::string text = directory.File("a.txt"), lines = directory.File("b.jsonl.gz");
  OT_ASSERT_OK(WriteFileAtomically(text, "one\r\ntwo"));
  OT_ASSERT_OK(WriteFileAtomically(
      lines, ::overtok::testing::Gzip(
                 "{\"body\":\"x\\u00e9\",\"text\":1}\n\n{\"body\":\"\"}\n[1]\n{\"body\":\"z\"}")));
  auto files = DocumentFiles::Open({text, lines}, "body", 0);
  OT_ASSERT_OK(files);
  auto documents = ReadAll(files->get());
  OT_ASSERT_OK(documents);
  EXPECT_EQ(*documents, (Documents{"one\r\ntwo", "x\u00e9", "", "z"}));
  EXPECT_EQ((*files)->file_bytes_read(), (*files)->file_bytes());
  EXPECT_EQ((*files)->bad_lines(), 1);
  EXPECT_THAT((*files)->first_bad_line(), ::testing::HasSubstr("b.jsonl.gz:4: "));
}

TEST(DocumentFiles, BlocksEndWithALine) {
  const TemporaryDirectory directory;
  const std::string text = directory.File("a.txt");
  OT_ASSERT_OK(WriteFileAtomically(text, "a\nbb\nccc\n\ndddd"));
  auto files = DocumentFiles::Open({text}, "text", 4);
  OT_ASSERT_OK(files);
  auto documents = ReadAll(files->get());
  OT_ASSERT_OK(documents);
  EXPECT_EQ(*documents, (Documents{"a\nbb\n", "ccc\n", "\ndddd"}));
}

TEST(DocumentFiles, MistakesAreNamed) {
  const TemporaryDirectory directory;
  OT_EXPECT_ERROR(DocumentFiles::Open({directory.File("c.pdf")}, "text", 0), "c.pdf");
  OT_EXPECT_ERROR(DocumentFiles::Open({directory.File("c.txt")}, "text", 0), "c.txt");
  const std::string text = directory.File("d.txt"), lines = directory.File("e.jsonl");
  OT_ASSERT_OK(WriteFileAtomically(text, "ab\xFF"));
  auto files = DocumentFiles::Open({text}, "text", 0);
  OT_ASSERT_OK(files);
  OT_EXPECT_ERROR(ReadAll(files->get()), "offset 2");
  std::string bad;
  for (int i = 0; i < 101; ++i) bad += "{\"other\":\"x\"}\n";
  OT_ASSERT_OK(WriteFileAtomically(lines, bad));
  files = DocumentFiles::Open({lines}, "text", 0);
  OT_ASSERT_OK(files);
  OT_EXPECT_ERROR(ReadAll(files->get()), "e.jsonl:1: ");
}

}  // namespace
}  // namespace overtok
