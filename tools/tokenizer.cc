// overtok tokenizer train | truncate | encode: making vocabularies and looking at what they do.
#include "data/tokenizer/tokenizer.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/io/files.h"
#include "data/text/document_files.h"
#include "data/tokenizer/load.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/train.h"
#include "data/tokenizer/truncate.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::string in, out, field = "text";
  int64_t vocab_size = 0;
  int threads = 0;
  std::string pattern;
  TokenizerOptions tokenizer;
  bool parse_added = false;
};

absl::Status WriteTokenizer(const BpeDefinition& definition, const std::string& out) {
  OT_ASSIGN_OR_RETURN(const std::string text, FormatTokenizerJson(definition));
  OT_RETURN_IF_ERROR(WriteFileAtomically(out, text));
  LogInfo(absl::StrCat(out, ": ", definition.tokens.size(), " tokens, ", definition.merges.size(),
                       " merges, ", definition.added.size(), " added tokens, vocabulary of ",
                       VocabSize(definition)));
  return absl::OkStatus();
}

void WarnOfBadLines(const DocumentFiles& files) {
  if (files.bad_lines() == 0) return;
  LogWarning(absl::StrCat(files.bad_lines(), " bad lines were left out, the first of them ",
                          files.first_bad_line()));
}

absl::StatusOr<int> Train(const Arguments& arguments) {
  TrainOptions options;
  options.vocab_size = arguments.vocab_size;
  options.pattern = arguments.pattern;
  options.threads = arguments.threads > 0
                        ? arguments.threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Blocks of a megabyte keep every thread busy on a single big file.
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFiles> files,
                      DocumentFiles::Open(arguments.files, arguments.field, size_t{1} << 20));
  std::unique_ptr<Progress> progress;
  std::string phase;
  options.progress = [&](absl::string_view now, double done, double total) {
    const bool merging = now == "merging";
    if (phase != now) {
      phase = std::string(now);
      progress = merging
                     ? std::make_unique<Progress>("learning merges", total, "merges")
                     : std::make_unique<Progress>(
                           "counting words", static_cast<double>(files->file_bytes()) / 1e6, "MB");
    }
    progress->Update(merging ? done : static_cast<double>(files->file_bytes_read()) / 1e6);
  };
  absl::StatusOr<BpeDefinition> definition =
      TrainBpe([&](std::string* document) { return files->Next(document); }, options);
  progress.reset();
  if (!definition.ok()) return definition.status();
  WarnOfBadLines(*files);
  OT_RETURN_IF_ERROR(WriteTokenizer(*definition, arguments.out));
  return 0;
}

absl::StatusOr<int> Truncate(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(const BpeDefinition full,
                      LoadBpeDefinition(arguments.in, arguments.tokenizer));
  OT_ASSIGN_OR_RETURN(const BpeDefinition small, TruncateDefinition(full, arguments.vocab_size));
  OT_RETURN_IF_ERROR(WriteTokenizer(small, arguments.out));
  return 0;
}

// Processor time of this thread: what a core can do, whoever else uses the machine.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

absl::StatusOr<int> Encode(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                      LoadTokenizer(arguments.in, arguments.tokenizer));
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFiles> files,
                      DocumentFiles::Open(arguments.files, arguments.field, /*block_bytes=*/0));
  std::string document, line;
  std::vector<uint32_t> ids;
  int64_t documents = 0, bytes = 0, tokens = 0;
  double seconds = 0;
  while (true) {
    OT_ASSIGN_OR_RETURN(const bool more, files->Next(&document));
    if (!more) break;
    ids.clear();
    const double start = ThreadSeconds();
    const absl::Status status = tokenizer->Encode(document, arguments.parse_added, &ids);
    seconds += ThreadSeconds() - start;
    if (!status.ok()) return Annotate(status, absl::StrCat("document ", documents + 1));
    line.clear();
    for (uint32_t id : ids) absl::StrAppend(&line, line.empty() ? "" : " ", id);
    line += '\n';
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size()) {
      return absl::DataLossError("standard output cannot be written");
    }
    ++documents;
    bytes += static_cast<int64_t>(document.size());
    tokens += static_cast<int64_t>(ids.size());
  }
  LogInfo(absl::StrFormat(
      "%d documents, %d bytes, %d tokens; encoding took %.3f s of one core (%.1f MB/s)", documents,
      bytes, tokens, seconds, seconds > 0 ? static_cast<double>(bytes) / 1e6 / seconds : 0.0));
  return 0;
}

// The options of rank files, which say nothing themselves of splitting and special tokens.
void AddRankFileOptions(CLI::App* command, Arguments* arguments) {
  command->add_option("--pattern", arguments->tokenizer.pattern,
                      "Rank files: gpt2, cl100k, llama3, qwen2 or a regular expression");
  command
      ->add_option("--special", arguments->tokenizer.specials,
                   "Rank files: a special token, numbered after the ranks; TEXT=ID pins the id. "
                   "Give it once for each")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace

void AddTokenizer(Program& program) {
  CLI::App* parent = program.app().add_subcommand(
      "tokenizer", "Train a byte-level BPE vocabulary, cut one down, or show its ids");
  parent->require_subcommand(1);

  auto train = std::make_shared<Arguments>();
  train->pattern = "llama3";
  CLI::App* command =
      program.AddBelow(parent, "train", "Train a byte-level BPE vocabulary on text files",
                       [train] { return Train(*train); });
  command
      ->add_option("--vocab-size", train->vocab_size,
                   "Entries, the 256 bytes and the two special tokens included")
      ->required();
  command->add_option("--out", train->out, "The tokenizer.json to write")->required();
  command->add_option("--pattern", train->pattern,
                      "gpt2, cl100k, llama3 (default), qwen2 or a regular expression");
  command->add_option("--field", train->field, "Key of the text in .jsonl files (default: text)");
  command->add_option("--threads", train->threads, "Threads (default: one a core)")
      ->check(CLI::PositiveNumber);
  command->add_option("FILES", train->files, ".txt or .jsonl files, also .gz or .zst")->required();

  auto truncate = std::make_shared<Arguments>();
  command =
      program.AddBelow(parent, "truncate", "Keep the lowest ranks of a vocabulary as a smaller one",
                       [truncate] { return Truncate(*truncate); });
  command->add_option("--in", truncate->in, "A tokenizer.json or rank file")->required();
  command
      ->add_option("--vocab-size", truncate->vocab_size,
                   "Tokens to keep, K; the special tokens get the ids from K on")
      ->required();
  command->add_option("--out", truncate->out, "The tokenizer.json to write")->required();
  AddRankFileOptions(command, truncate.get());

  auto encode = std::make_shared<Arguments>();
  command = program.AddBelow(parent, "encode",
                             "Print the ids of every document, one document a line, and the speed",
                             [encode] { return Encode(*encode); });
  command->add_option("--tokenizer", encode->in, "\"bytes\", a tokenizer.json or a rank file")
      ->required();
  command->add_flag("--parse-added-tokens", encode->parse_added,
                    "Read added tokens in the text as tokens instead of as plain text");
  command->add_option("--field", encode->field, "Key of the text in .jsonl files (default: text)");
  command->add_option("FILES", encode->files, ".txt or .jsonl files, also .gz or .zst")->required();
  AddRankFileOptions(command, encode.get());
}

}  // namespace overtok
