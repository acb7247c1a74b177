// overtok tokenize: text (or decimal ids) to token shards.
#include "data/text/tokenize.h"

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "core/console.h"
#include "data/tokenizer/tokenizer.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::string tokenizer, held_out, bos, eos, pad, field;
  TokenizerOptions tokenizer_options;
  TokenizeOptions options;
  DocumentForm form;
  bool no_bos = false, no_eos = false;
  int64_t vocab_size = 0, max_bad_lines = -1;
};

// Text from the web has bad lines; an id that is none means the wrong file or vocabulary.
constexpr int64_t kBadLinesOfText = 100, kBadLinesOfIds = 0;

absl::StatusOr<std::optional<uint32_t>> ParseId(absl::string_view option, absl::string_view text) {
  if (text.empty()) return std::optional<uint32_t>();
  uint32_t id = 0;
  if (!absl::SimpleAtoi(text, &id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is \"", text, "\"; with --tokenizer ids it is a decimal id"));
  }
  return std::optional<uint32_t>(id);
}

absl::StatusOr<ShardIdentity> IdentityOfIds(const Arguments& arguments) {
  if (arguments.vocab_size <= 0) {
    return absl::InvalidArgumentError(
        "--tokenizer ids needs --vocab-size, one more than the "
        "largest id");
  }
  if (!arguments.field.empty() || arguments.form.space_before_eos || arguments.form.added_tokens ||
      !arguments.tokenizer_options.pattern.empty() ||
      !arguments.tokenizer_options.specials.empty()) {
    return absl::InvalidArgumentError(
        "--field, --pattern, --special, --space-before-eos and --parse-added-tokens have no effect "
        "on ids; remove them");
  }
  ShardIdentity identity;
  identity.tokenizer_name = "ids";
  identity.tokenizer_hash = "ids";
  identity.vocab_size = arguments.vocab_size;
  OT_ASSIGN_OR_RETURN(identity.bos, ParseId("--bos", arguments.bos));
  OT_ASSIGN_OR_RETURN(identity.eos, ParseId("--eos", arguments.eos));
  OT_ASSIGN_OR_RETURN(identity.pad, ParseId("--pad", arguments.pad));
  // Ids without a name for an end of document are stored as they stand in the file.
  identity.form.bos = identity.bos.has_value() && !arguments.no_bos;
  identity.form.eos = identity.eos.has_value() && !arguments.no_eos;
  return identity;
}

void Report(const TokenizeOptions& options, const TokenizeResult& result) {
  const EncodeCounts& counts = result.counts;
  for (const std::string& example : counts.bad_examples) LogWarning(example);
  if (counts.bad_lines > 0) {
    LogWarning(absl::StrCat(counts.bad_lines, " bad lines were skipped (the first ",
                            counts.bad_examples.size(), " are named above)"));
  }
  if (counts.empty_documents > 0) {
    LogInfo(absl::StrCat(counts.empty_documents, " empty documents were skipped"));
  }
  if (counts.byte_order_marks > 0) {
    LogInfo(absl::StrCat(counts.byte_order_marks,
                         " files start with a byte order mark, which was skipped"));
  }
  if (options.held_out > 0 && result.held_out_documents == 0) {
    LogWarning("no document was held out: the share is too small for so few documents");
  }
  if (result.held_out_documents > 0) {
    LogInfo(absl::StrFormat("held out: %d documents, %.1f MB of text in %s/held_out",
                            result.held_out_documents,
                            static_cast<double>(result.held_out_bytes) / 1e6, options.out));
  }
  std::string text;
  if (result.text_bytes > 0) {
    const double megabytes = static_cast<double>(result.text_bytes) / 1e6;
    text =
        absl::StrFormat(" from %.1f MB of text (%.2f bytes a token, %.1f MB/s)", megabytes,
                        static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens),
                        megabytes / result.seconds);
  }
  LogInfo(absl::StrFormat("%s: %d documents, %s tokens%s in %s", options.out, result.documents,
                          FormatCount(static_cast<double>(result.tokens)), text,
                          FormatDuration(result.seconds)));
}

absl::StatusOr<int> Run(Arguments& arguments) {
  TokenizeOptions& options = arguments.options;
  if (!arguments.held_out.empty()) {
    OT_ASSIGN_OR_RETURN(options.held_out, ParseShare(arguments.held_out));
  } else if (!options.held_out_name.empty()) {
    return absl::InvalidArgumentError("--held-out-name has no effect without --held-out");
  }
  if (arguments.form.space_before_eos && arguments.no_eos) {
    return absl::InvalidArgumentError("--space-before-eos has no effect with --no-eos");
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (arguments.tokenizer == "ids") {
    OT_ASSIGN_OR_RETURN(options.encode.identity, IdentityOfIds(arguments));
  } else {
    if (arguments.vocab_size != 0 || !arguments.pad.empty()) {
      return absl::InvalidArgumentError(
          "--vocab-size and --pad are for --tokenizer ids; a tokenizer knows its own vocabulary");
    }
    arguments.tokenizer_options.bos = arguments.bos;
    arguments.tokenizer_options.eos = arguments.eos;
    OT_ASSIGN_OR_RETURN(tokenizer, LoadTokenizer(arguments.tokenizer, arguments.tokenizer_options));
    arguments.form.bos = !arguments.no_bos;
    arguments.form.eos = !arguments.no_eos;
    OT_ASSIGN_OR_RETURN(options.encode.identity, IdentityOf(*tokenizer, arguments.form));
  }
  options.encode.tokenizer = tokenizer.get();
  options.encode.largest_bad_count = arguments.max_bad_lines >= 0 ? arguments.max_bad_lines
                                     : tokenizer == nullptr       ? kBadLinesOfIds
                                                                  : kBadLinesOfText;
  if (!arguments.field.empty()) options.encode.field = arguments.field;
  OT_ASSIGN_OR_RETURN(const TokenizeResult result, TokenizeFiles(options));
  Report(options, result);
  return 0;
}

}  // namespace

void AddTokenize(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.Add("tokenize", "Turn text files into token shards (docs/formats/shard.md)",
                  [arguments] { return Run(*arguments); });
  TokenizeOptions& options = arguments->options;
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "A tokenizer.json, a tiktoken rank file, `bytes`, or `ids` (files hold decimal "
                   "ids, one document a line)")
      ->required();
  command->add_option("--out", options.out, "Directory to write; must not hold anything yet")
      ->required();
  command
      ->add_option("files", options.files,
                   "*.jsonl (a document a line) and *.txt (a document a file), plain, .gz or .zst")
      ->required();
  command->add_option("--field", arguments->field, "Key of the text in .jsonl files [text]");
  command->add_option("--pattern", arguments->tokenizer_options.pattern,
                      "Rank files: gpt2, cl100k, llama3, qwen2 or a regular expression");
  command
      ->add_option("--special", arguments->tokenizer_options.specials,
                   "Rank files: a special token, numbered after the ranks; TEXT=ID pins the id. "
                   "Give it once for each")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--bos", arguments->bos,
                      "Token that begins a document (its text; with ids its number)");
  command->add_option("--eos", arguments->eos,
                      "Token that ends a document (its text; with ids its number)");
  command->add_option("--pad", arguments->pad, "With ids: the padding id, if the files have one");
  command->add_option("--vocab-size", arguments->vocab_size, "With ids: size of the vocabulary");
  command->add_flag("--no-bos", arguments->no_bos, "Add no token at the beginning of documents");
  command->add_flag("--no-eos", arguments->no_eos, "Add no token at the end of documents");
  command->add_flag("--space-before-eos", arguments->form.space_before_eos,
                    "Put one space between text and EOS, as the recipe's corpus has it");
  command->add_flag("--parse-added-tokens", arguments->form.added_tokens,
                    "Turn the text of added tokens inside documents into these tokens (by default "
                    "it stays text, so that no document can forge an EOS)");
  command->add_option("--held-out", arguments->held_out,
                      "Share of the documents to hold out, as 1% or 0.01, chosen by the hash of "
                      "their text and written to OUT/held_out in Paloma's layout");
  command->add_option("--held-out-name", options.held_out_name,
                      "One name for all held-out documents [the name of each file]");
  command
      ->add_option("--tokens-per-shard", options.tokens_per_shard,
                   "Most ids of one shard [134217728]")
      ->check(CLI::PositiveNumber);
  command->add_option("--threads", options.encode.threads, "Encoding threads [one per core]")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--max-bad-lines", arguments->max_bad_lines,
                   "Stop when more lines than this are bad [100; with ids 0]")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace overtok
