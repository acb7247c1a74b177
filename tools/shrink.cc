// overtok data shrink: token shards to shards of a small vocabulary, without the text behind them.
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "data/text/shrink_corpus.h"
#include "data/tokenizer/load.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::string tokenizer;
  TokenizerOptions tokenizer_options;
  ShrinkOptions options;
};

absl::StatusOr<int> Run(Arguments& arguments) {
  ShrinkOptions& options = arguments.options;
  if (arguments.tokenizer == "bytes") {
    return absl::InvalidArgumentError(
        "--tokenizer bytes has no merges: there is nothing below its 256 bytes");
  }
  OT_ASSIGN_OR_RETURN(options.tokenizer,
                      LoadBpeDefinition(arguments.tokenizer, arguments.tokenizer_options));
  OT_ASSIGN_OR_RETURN(const ShrinkResult result, ShrinkCorpus(options));
  if (result.different_documents > 0) {
    LogWarning(absl::StrCat(
        result.different_documents, " of ", result.documents,
        " documents are not what encoding their text gives, the first of them ",
        result.first_difference,
        "; their ids were not what the tokenizer makes of their text, or cut a character in two"));
  } else if (options.check) {
    LogInfo(absl::StrCat("all ", result.documents, " documents equal the encoding of their text"));
  }
  LogInfo(absl::StrFormat(
      "%s: %d documents, %s tokens from %s (%.3f times as many) of a vocabulary of %d in %s",
      options.out, result.documents, FormatCount(static_cast<double>(result.tokens)),
      FormatCount(static_cast<double>(result.tokens_before)),
      static_cast<double>(result.tokens) / static_cast<double>(result.tokens_before),
      result.vocab_size, FormatDuration(result.seconds)));
  return 0;
}

}  // namespace

void AddShrink(Program& program, CLI::App* data) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.AddBelow(
      data, "shrink", "Convert shards to the K lowest ranks of their tokenizer, without their text",
      [arguments] { return Run(*arguments); });
  ShrinkOptions& options = arguments->options;
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "The tokenizer.json or rank file that the shards were made with")
      ->required();
  command
      ->add_option("--vocab-size", options.keep,
                   "Tokens to keep, K; the special tokens get the ids from K on")
      ->required();
  command
      ->add_option("--out", options.out,
                   "Directory to write: shards and the small tokenizer.json; must not hold "
                   "anything yet")
      ->required();
  command
      ->add_option("shards", options.shards,
                   "Shards: files, patterns such as 'corpus/*.h5', or directories")
      ->required();
  command->add_flag("--check", options.check,
                    "Encode the text of every document again and name those that differ");
  command
      ->add_option("--tokens-per-shard", options.tokens_per_shard,
                   "Most ids of a shard; documents stay whole [134217728]")
      ->check(CLI::PositiveNumber);
  command->add_option("--pattern", arguments->tokenizer_options.pattern,
                      "Rank files: gpt2, cl100k, llama3, qwen2 or a regular expression");
  command
      ->add_option("--special", arguments->tokenizer_options.specials,
                   "Rank files: a special token; give it once for each")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace overtok
