// overtok data info | verify | show: looking at token shards.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/io/files.h"
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::vector<std::string> shards;
  int64_t step = 0, batch = 1, length = 256;
  std::string order = "linear", tokenizer;
  TokenizerOptions tokenizer_options;
  OrderOptions order_options;
  bool decode = false;
};

std::string Shown(const std::optional<uint32_t>& id) {
  return id.has_value() ? absl::StrCat(*id) : "none";
}

absl::StatusOr<int> Info(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, Corpus::Open(arguments.shards));
  const ShardIdentity& identity = corpus->identity();
  uint32_t low = ~uint32_t{0};
  int64_t text_bytes = 0;
  for (const auto& shard : corpus->shards()) {
    low = std::min(low, shard->min_id());
    for (const uint64_t bytes : shard->document_text_bytes()) {
      text_bytes += static_cast<int64_t>(bytes);
    }
  }
  const double tokens = static_cast<double>(corpus->tokens());
  std::string text =
      absl::StrFormat("tokenizer     %s (%s)\n", identity.tokenizer_name, identity.tokenizer_hash);
  absl::StrAppendFormat(&text, "vocabulary    %d, bos %s, eos %s, pad %s\n", identity.vocab_size,
                        Shown(identity.bos), Shown(identity.eos), Shown(identity.pad));
  absl::StrAppendFormat(&text, "documents     %d, as %s\n", corpus->documents(),
                        identity.form.ToString());
  absl::StrAppendFormat(&text, "ids           %d (%s), from %d to %d, %.1f a document\n",
                        corpus->tokens(), FormatCount(tokens), low, corpus->max_id(),
                        tokens / static_cast<double>(corpus->documents()));
  if (text_bytes > 0) {
    absl::StrAppendFormat(&text, "text          %d bytes, %.3f a token\n", text_bytes,
                          static_cast<double>(text_bytes) / tokens);
  }
  absl::StrAppendFormat(&text, "content hash  %016x\n", corpus->content_hash());
  for (const auto& shard : corpus->shards()) {
    absl::StrAppendFormat(&text, "shard         %s: %d ids, %d documents\n", shard->path(),
                          shard->tokens(), shard->documents());
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

absl::StatusOr<int> Verify(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, Corpus::Open(arguments.shards));
  Progress progress("verify", static_cast<double>(corpus->tokens()) / 1e6, "M ids");
  int64_t done = 0, damaged = 0;
  for (const auto& shard : corpus->shards()) {
    // Goes on after a damaged shard: all of them are wanted at once.
    const absl::Status status = shard->VerifyBlocks();
    if (!status.ok()) {
      LogInfo(std::string(status.message()));
      ++damaged;
    }
    done += shard->tokens();
    progress.Update(static_cast<double>(done) / 1e6);
  }
  if (damaged > 0) {
    return absl::DataLossError(
        absl::StrCat(damaged, " of ", corpus->shards().size(), " shards are damaged"));
  }
  progress.Finish(absl::StrCat(corpus->shards().size(), " shards, ", corpus->tokens(),
                               " ids: every checksum matches"));
  return 0;
}

absl::StatusOr<OrderOptions> ParseOrder(const Arguments& arguments) {
  OrderOptions options = arguments.order_options;
  if (arguments.order == "linear") {
    options.type = OrderOptions::Type::kLinear;
  } else if (arguments.order == "feistel") {
    options.type = OrderOptions::Type::kFeistel;
  } else if (arguments.order == "sequential") {
    options.type = OrderOptions::Type::kSequential;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("--order is \"", arguments.order,
                                                   "\", expected linear, feistel or sequential"));
  }
  return options;
}

// One document of a window on one line: ids, or text with control characters and special tokens
// written out.
std::string Line(const Tokenizer* tokenizer, const uint32_t* ids, int64_t count) {
  std::string line;
  for (int64_t i = 0; i < count; ++i) {
    if (tokenizer == nullptr) {
      absl::StrAppend(&line, i > 0 ? " " : "", ids[i]);
      continue;
    }
    const absl::string_view bytes = tokenizer->TokenBytes(ids[i]);
    if (bytes.empty()) absl::StrAppend(&line, "<", ids[i], ">");
    for (const char c : bytes) {
      if (c == '\n') {
        line += "\\n";
      } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
        absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(c));
      } else {
        line += c;
      }
    }
  }
  return line;
}

absl::StatusOr<int> Show(const Arguments& arguments) {
  if (arguments.decode && arguments.tokenizer.empty()) {
    return absl::InvalidArgumentError("--decode needs --tokenizer: shards hold ids alone");
  }
  OT_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, Corpus::Open(arguments.shards));
  const ShardIdentity& identity = corpus->identity();
  std::unique_ptr<Tokenizer> tokenizer;
  if (arguments.decode) {
    OT_ASSIGN_OR_RETURN(tokenizer, LoadTokenizer(arguments.tokenizer, arguments.tokenizer_options));
    if (tokenizer->hash() != identity.tokenizer_hash) {
      return absl::InvalidArgumentError(
          absl::StrCat("the shards were made with another tokenizer: ", identity.tokenizer_name,
                       " (", identity.tokenizer_hash, "), and --tokenizer is ", tokenizer->name(),
                       " (", tokenizer->hash(), ")"));
    }
  }
  LoaderOptions options;
  options.batch_sequences = arguments.batch;
  options.sequence_length = arguments.length;
  OT_ASSIGN_OR_RETURN(const OrderOptions order_options, ParseOrder(arguments));
  OT_ASSIGN_OR_RETURN(const Order order,
                      Order::Create(order_options, CountWindows(*corpus, arguments.length), 0));
  Batch batch;
  OT_RETURN_IF_ERROR(FillBatch(*corpus, order, options, arguments.step, &batch));
  std::printf("step %lld: sequences %lld to %lld of %lld in a pass\n",
              static_cast<long long>(arguments.step), static_cast<long long>(batch.first_sequence),
              static_cast<long long>(batch.first_sequence + arguments.batch - 1),
              static_cast<long long>(order.length()));
  for (int64_t row = 0; row < batch.sequences; ++row) {
    const uint32_t* ids = batch.tokens.data() + row * batch.length;
    const int32_t* segments = batch.segments.data() + row * batch.length;
    std::printf("row %lld: window %lld, pass %lld\n", static_cast<long long>(row),
                static_cast<long long>(batch.windows[static_cast<size_t>(row)]),
                static_cast<long long>(order.Pass(batch.first_sequence + row)));
    for (int64_t begin = 0; begin < batch.length;) {
      int64_t end = begin + 1;
      while (end < batch.length && segments[end] == segments[begin]) ++end;
      std::printf("  %d: %s\n", segments[begin],
                  Line(tokenizer.get(), ids + begin, end - begin).c_str());
      begin = end;
    }
  }
  return 0;
}

void AddShards(CLI::App* command, Arguments* arguments) {
  command
      ->add_option("shards", arguments->shards,
                   "Shards: files, patterns such as 'corpus/*.h5', or directories")
      ->required();
}

}  // namespace

void AddData(Program& program) {
  CLI::App* parent = program.app().add_subcommand("data", "Look at token shards, or convert them");
  parent->require_subcommand(1);

  auto info = std::make_shared<Arguments>();
  AddShards(program.AddBelow(parent, "info", "What the shards hold and how they were made",
                             [info] { return Info(*info); }),
            info.get());

  auto verify = std::make_shared<Arguments>();
  AddShards(program.AddBelow(parent, "verify", "Read everything and compare all checksums",
                             [verify] { return Verify(*verify); }),
            verify.get());

  auto show = std::make_shared<Arguments>();
  CLI::App* command = program.AddBelow(parent, "show", "The sequences that a training step reads",
                                       [show] { return Show(*show); });
  AddShards(command, show.get());
  command->add_option("--step", show->step, "Step, from 0 [0]")->check(CLI::NonNegativeNumber);
  command->add_option("--batch", show->batch, "Sequences of a batch [1]")
      ->check(CLI::PositiveNumber);
  command->add_option("--length", show->length, "Ids of a sequence [256]")
      ->check(CLI::PositiveNumber);
  command->add_option("--order", show->order, "linear, feistel or sequential [linear]");
  command->add_option("--seed", show->order_options.seed, "Seed of the order [42]");
  command->add_option("--block", show->order_options.block, "Block of the linear order [2048]")
      ->check(CLI::PositiveNumber);
  command->add_flag("--reshuffle", show->order_options.reshuffle, "Another order in every pass");
  command->add_flag("--decode", show->decode, "Print text instead of ids");
  command->add_option("--tokenizer", show->tokenizer, "The tokenizer the shards were made with");
  command->add_option("--pattern", show->tokenizer_options.pattern,
                      "Rank files: gpt2, cl100k, llama3, qwen2 or a regular expression");
  command
      ->add_option("--special", show->tokenizer_options.specials,
                   "Rank files: a special token; give it once for each")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);

  AddShrink(program, parent);
  AddDataTables(program, parent);
}

}  // namespace overtok
