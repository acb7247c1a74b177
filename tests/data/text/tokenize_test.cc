#include "data/text/tokenize.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/files.h"
#include "data/text/json_line.h"
#include "data/text/line_reader.h"
#include "tests/data/fixtures.h"
#include "tests/data/text/compress.h"

namespace overtok {
namespace {

class TokenizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = LoadTokenizer("bytes", TokenizerOptions());
    OT_ASSERT_OK(tokenizer);
    tokenizer_ = std::move(*tokenizer);
    options_.out = directory_.File("out");
    options_.show_progress = false;
    options_.encode.tokenizer = tokenizer_.get();
    options_.encode.identity = *IdentityOf(*tokenizer_, DocumentForm());
  }
  ~TokenizeTest() override { SetFileFaultHook(nullptr); }
  void Input(const std::string& name, const std::string& bytes) {
    OT_ASSERT_OK(WriteFileAtomically(directory_.File(name), bytes));
    options_.files.push_back(directory_.File(name));
  }
  // All documents of `out` as ids.
  std::vector<std::vector<uint32_t>> Documents() {
    std::vector<std::vector<uint32_t>> documents;
    const auto corpus = Corpus::Open({options_.out});
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    if (!corpus.ok()) return documents;
    for (const auto& shard : (*corpus)->shards()) {
      for (size_t d = 0; d + 1 < shard->document_offsets().size(); ++d) {
        const int64_t begin = static_cast<int64_t>(shard->document_offsets()[d]);
        const int64_t end = static_cast<int64_t>(shard->document_offsets()[d + 1]);
        documents.emplace_back(static_cast<size_t>(end - begin));
        EXPECT_TRUE(shard->Read(begin, end - begin, documents.back().data()).ok());
      }
    }
    return documents;
  }
  std::vector<std::string> Texts() {
    std::vector<std::string> texts;
    for (const auto& document : Documents()) {
      texts.emplace_back();
      for (const uint32_t id : document) {
        if (id < 256) texts.back() += static_cast<char>(id);
      }
    }
    return texts;
  }
  bool NothingLeft() { return !PathExists(options_.out) && !PathExists(options_.out + ".partial"); }
  testing::TemporaryDirectory directory_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenizeOptions options_;
};

TEST_F(TokenizeTest, DocumentsAreBosTextEos) {
  Input("a.jsonl", "{\"text\": \"hi\"}\n\n{\"text\": \"<eos>\", \"id\": 4}\n");
  Input("b.txt", "whole\nfile\n");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->documents, 3);
  EXPECT_EQ(result->text_bytes, 2 + 5 + 11);
  EXPECT_EQ(Documents()[0], (std::vector<uint32_t>{256, 'h', 'i', 257}));
  EXPECT_EQ(Texts(), (std::vector<std::string>{"hi", "<eos>", "whole\nfile\n"}));
  const auto corpus = Corpus::Open({options_.out});
  EXPECT_EQ((*corpus)->shards()[0]->document_text_bytes(), (std::vector<uint64_t>{2, 5, 11}));
  EXPECT_TRUE(PathExists(options_.out + "/sources.json"));
  EXPECT_FALSE(PathExists(options_.out + ".partial"));
}

TEST_F(TokenizeTest, FormsOfDocuments) {
  options_.encode.identity.form = DocumentForm{false, true, true, false};
  Input("a.jsonl", "{\"text\": \"hi\"}\n");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(Documents()[0], (std::vector<uint32_t>{'h', 'i', ' ', 257}));
  EXPECT_EQ(result->text_bytes, 2) << "the space is not text";
  const auto corpus = Corpus::Open({options_.out});
  EXPECT_EQ((*corpus)->identity().form.ToString(), "text+space+eos");
  ShardIdentity other = (*corpus)->identity();
  other.form.space_before_eos = false;
  EXPECT_EQ(DescribeDifference((*corpus)->identity(), other),
            "documents as text+space+eos against text+eos");
}

TEST_F(TokenizeTest, CompressedInputs) {
  Input("a.jsonl.gz",
        testing::Gzip("{\"text\": \"one\"}\n") + testing::Gzip("{\"text\": \"two\"}"));
  Input("b.jsonl.zst", testing::Zstd("{\"text\": \"three\"}\n{\"text\": \"four\"}\n"));
  Input("c.txt.gz", testing::Gzip("five"));
  OT_ASSERT_OK(TokenizeFiles(options_));
  EXPECT_EQ(Texts(), (std::vector<std::string>{"one", "two", "three", "four", "five"}));
}

// The same bytes whatever the number of threads.
TEST_F(TokenizeTest, OutputDoesNotDependOnThreads) {
  for (int f = 0; f < 3; ++f) {
    std::string lines;
    for (int i = 0; i < 20'000; ++i) {
      lines +=
          "{\"text\": \"document " + std::to_string(i * (f + 3)) + std::string(100, 'x') + "\"}\n";
    }
    Input("part-" + std::to_string(f) + ".jsonl", lines);
  }
  options_.held_out = 0.01;
  options_.tokens_per_shard = 2'000'000;
  std::vector<std::string> first;
  for (const int threads : {1, 2, 5}) {
    options_.out = directory_.File("out" + std::to_string(threads));
    options_.encode.threads = threads;
    const auto result = TokenizeFiles(options_);
    OT_ASSERT_OK(result);
    EXPECT_GT(result->held_out_documents, 400);  // 600 expected, standard deviation 24
    EXPECT_LT(result->held_out_documents, 800);
    std::vector<std::string> files;
    const std::vector<std::string> names = *ListDirectory(options_.out);
    for (const std::string& name : names) {
      if (name != "held_out") files.push_back(name + *ReadFile(JoinPath(options_.out, name)));
    }
    files.push_back(*ReadFile(options_.out + "/held_out/part/val/val.jsonl.gz"));
    EXPECT_GE(names.size(), 4u);
    if (first.empty()) first = files;
    EXPECT_TRUE(files == first) << threads << " threads";
  }
}

TEST_F(TokenizeTest, HeldOutAndTrainingPartShareNothing) {
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += "{\"text\": \"document " + std::to_string(i % 150) + "\"}\n";  // each twice
  }
  Input("notes_01.jsonl", lines);
  options_.held_out = 0.2;
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  auto reader = LineReader::Open(options_.out + "/held_out/notes/val/val.jsonl.gz");
  OT_ASSERT_OK(reader);
  std::vector<std::string> held_out;
  JsonLineParser parser;
  absl::string_view line;
  while (*reader->Next(&line)) held_out.emplace_back(*parser.Text(line, "text"));
  EXPECT_EQ(static_cast<int64_t>(held_out.size()), result->held_out_documents);
  const std::vector<std::string> texts = Texts();
  EXPECT_EQ(held_out.size() + texts.size(), 300u);
  EXPECT_EQ(held_out.size() % 2, 0u);
  for (const std::string& text : held_out) {
    EXPECT_EQ(std::count(texts.begin(), texts.end(), text), 0) << text;
  }
}

TEST_F(TokenizeTest, IdsAreTakenAsTheyAre) {
  ShardIdentity identity;
  identity.tokenizer_name = "ids";
  identity.tokenizer_hash = "ids";
  identity.vocab_size = 100'000;
  identity.bos = 1;
  identity.eos = 2;
  options_.encode.tokenizer = nullptr;
  options_.encode.identity = identity;
  Input("numbers", "5 70000  6\n\n99999\n");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->counts.empty_documents, 1);
  EXPECT_EQ(Documents(), (std::vector<std::vector<uint32_t>>{{1, 5, 70000, 6, 2}, {1, 99999, 2}}));
  options_.encode.largest_bad_count = 0;
  for (const auto& [line, reason] : std::vector<std::pair<std::string, std::string>>{
           {"1 100000", "id 100000 is not below the vocabulary size 100000"},
           {"1 x2", "\"x2\" is not a decimal id"},
           {"1 -2", "\"-2\" is not a decimal id"},
           {"1 2.5", "\"2.5\" is not a decimal id"},
           {"99999999999999999999999", "is not below the vocabulary size"}}) {
    options_.out = directory_.File("bad");
    options_.files.clear();
    Input("numbers", line + "\n");
    OT_EXPECT_ERROR(TokenizeFiles(options_), reason);
  }
}

TEST_F(TokenizeTest, BadLinesAreCountedAndNamed) {
  Input("a.jsonl",
        "{\"text\": \"good\"}\nnonsense\n{\"text\": \"\"}\n{\"text\": \"\\ud800\"}\n{\"txt\": "
        "\"x\"}\n{\"text\": \"also good\"}\n");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->documents, 2);
  EXPECT_EQ(result->counts.empty_documents, 1);
  EXPECT_EQ(result->counts.bad_lines, 3);
  ASSERT_EQ(result->counts.bad_examples.size(), 3u);
  EXPECT_THAT(result->counts.bad_examples[0], ::testing::HasSubstr("a.jsonl:2: not valid JSON"));
  EXPECT_THAT(result->counts.bad_examples[1], ::testing::HasSubstr("a.jsonl:4: a lone surrogate"));
  EXPECT_THAT(result->counts.bad_examples[2], ::testing::HasSubstr("the object has: txt"));
  EXPECT_EQ(Texts(), (std::vector<std::string>{"good", "also good"}));
}

TEST_F(TokenizeTest, TooManyBadLinesStop) {
  Input("a.jsonl", "{\"text\": \"good\"}\n1\n2\n3\n");
  options_.encode.largest_bad_count = 2;
  OT_EXPECT_ERROR(TokenizeFiles(options_), "more than 2 bad lines");
  OT_EXPECT_ERROR(TokenizeFiles(options_), "a.jsonl:4: not a JSON object");
  EXPECT_TRUE(NothingLeft());
}

TEST_F(TokenizeTest, InvalidUtf8IsABadDocument) {
  Input("a.txt", "fine");
  Input("b.txt", "bad \xff byte");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->counts.bad_lines, 1);
  EXPECT_THAT(result->counts.bad_examples[0], ::testing::HasSubstr("b.txt:1: "));
}

// Case 72: empty documents in front, in the middle and at the end; empty files.
TEST_F(TokenizeTest, EmptyDocumentsAndFilesAreSkipped) {
  Input("empty.jsonl", "");
  Input("a.jsonl",
        "{\"text\": \"\"}\n{\"text\": \"abc\"}\n{\"text\": \"\"}\n{\"text\": \"de\"}\n{\"text\": "
        "\"\"}");
  Input("empty.txt", "");
  const auto result = TokenizeFiles(options_);
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->counts.empty_documents, 4);
  EXPECT_EQ(Texts(), (std::vector<std::string>{"abc", "de"}));
}

TEST_F(TokenizeTest, NoDocumentAtAllIsAnError) {
  Input("empty.jsonl", "");
  OT_EXPECT_ERROR(TokenizeFiles(options_), "no document to write in 1 files");
  options_.files.clear();
  OT_EXPECT_ERROR(TokenizeFiles(options_), "no input files");
  EXPECT_TRUE(NothingLeft());
}

TEST_F(TokenizeTest, MistakesLeaveNothingBehind) {
  Input("a.jsonl.gz",
        testing::Gzip("{\"text\": \"" + std::string(100'000, 'q') + "\"}\n").substr(0, 90));
  OT_EXPECT_ERROR(TokenizeFiles(options_), "a.jsonl.gz is cut off");
  EXPECT_TRUE(NothingLeft());
  options_.files = {directory_.File("absent.jsonl")};
  OT_EXPECT_ERROR(TokenizeFiles(options_), "absent.jsonl");
  options_.files = {directory_.File("picture.png")};
  OT_EXPECT_ERROR(TokenizeFiles(options_), "expected a file called *.jsonl or *.txt");
  EXPECT_TRUE(NothingLeft());
}

TEST_F(TokenizeTest, NoSpaceLeavesNothingBehind) {
  Input("a.jsonl", "{\"text\": \"good\"}\n");
  for (const char* point : {"write", "fsync", "rename"}) {
    SetFileFaultHook([&](absl::string_view operation, absl::string_view path) {
      const bool ours = path.find("/out") != absl::string_view::npos;
      return ours && operation == point ? absl::ResourceExhaustedError("No space left on device")
                                        : absl::OkStatus();
    });
    OT_EXPECT_ERROR(TokenizeFiles(options_), "No space left");
    SetFileFaultHook(nullptr);
    EXPECT_TRUE(NothingLeft()) << point;
  }
}

TEST_F(TokenizeTest, UsedOutputIsRefusedAndLeftoversAreReplaced) {
  Input("a.jsonl", "{\"text\": \"good\"}\n");
  OT_ASSERT_OK(CreateDirectories(options_.out + ".partial"));
  OT_ASSERT_OK(WriteFileAtomically(options_.out + ".partial/shard_00000.h5", "left over"));
  OT_ASSERT_OK(CreateDirectories(options_.out));  // empty: may be taken
  OT_ASSERT_OK(TokenizeFiles(options_));
  EXPECT_EQ(Texts(), std::vector<std::string>{"good"});
  OT_EXPECT_ERROR(TokenizeFiles(options_), "exists already");
}

TEST_F(TokenizeTest, NamesOfSubsets) {
  EXPECT_EQ(SubsetName("x/part-00017.jsonl.gz"), "part");
  EXPECT_EQ(SubsetName("law.txt"), "law");
  EXPECT_EQ(SubsetName("val_c4_en.jsonl.zst"), "val_c4_en");
  EXPECT_EQ(SubsetName("0001.jsonl"), "0001");
}

TEST_F(TokenizeTest, Shares) {
  EXPECT_EQ(*ParseShare("1%"), 0.01);
  EXPECT_EQ(*ParseShare("0.25"), 0.25);
  for (const char* bad : {"", "%", "x", "100%", "1", "-1%", "nan"}) {
    OT_EXPECT_ERROR(ParseShare(bad), "is not a share");
  }
}

}  // namespace
}  // namespace overtok
