// Keys of the sections data, train, eval, checkpoint and parallel.
#include "trainer/config/schema_parts.h"

namespace overtok {
namespace {

constexpr int kF32 = static_cast<int>(DType::kF32);
constexpr int kBf16 = static_cast<int>(DType::kBF16);

}  // namespace

void AddDataKeys(std::vector<Key>& keys) {
  keys.push_back(TextsKey("data.train", OT_FIELD(data.train),
                          "Token shards: paths or patterns (`*`, `?`, `[...]`), relative to the "
                          "working directory. The matches of a pattern are read in natural order "
                          "(shard_2 before shard_10); windows may cross files. Needed by whatever "
                          "reads the corpus."));
  keys.push_back(WholeKey("data.sequence_length", OT_FIELD(data.sequence_length), 2, 1 << 24, "",
                          "Tokens in a window."));
  keys.push_back(EnumKey<OrderOptions::Type>(
      "data.order.type", OT_FIELD(data.order.type),
      {{"linear", static_cast<int>(OrderOptions::Type::kLinear)},
       {"feistel", static_cast<int>(OrderOptions::Type::kFeistel)},
       {"sequential", static_cast<int>(OrderOptions::Type::kSequential)}},
      "linear",
      "In which order windows are read. linear: window (a i + b) mod N, with i permuted inside "
      "blocks; feistel: a keyed permutation; sequential: as they stand in the files."));
  keys.push_back(SeedKey("data.order.seed", OT_FIELD(data.order.seed), "42",
                         "Seed of the order; independent of train.seed."));
  keys.push_back(WholeKey("data.order.block", OT_FIELD(data.order.block), 1, kLarge, "2048",
                          "linear: windows in a block; at most all of them."));
  keys.push_back(BoolKey("data.order.reshuffle", OT_FIELD(data.order.reshuffle), "false",
                         "Another permutation in every pass instead of the same one again."));
  keys.push_back(OptionalWholeKey("data.order.a", OT_FIELD(data.order.a), 1,
                                  "linear: the multiplier, coprime to the number of windows; null: "
                                  "drawn from the seed."));
  keys.push_back(OptionalWholeKey("data.order.b", OT_FIELD(data.order.b), 0,
                                  "linear: the offset; null: drawn from the seed."));
  keys.push_back(OptionalRealKey("data.passes", OT_FIELD(data.passes),
                                 {1, std::numeric_limits<double>::infinity(), false},
                                 "p: keep the first round(steps / p) batches of the order and "
                                 "repeat them. At most one of passes and unique_tokens."));
  keys.push_back(OptionalWholeKey("data.unique_tokens", OT_FIELD(data.unique_tokens), 1,
                                  "Keep this many tokens of the order, rounded down to whole "
                                  "batches, and repeat them."));
}

void AddTrainKeys(std::vector<Key>& keys) {
  keys.push_back(HorizonKey("train.steps", Horizon::Kind::kSteps, true,
                            "Optimizer steps of the whole run. Exactly one of steps, tokens, "
                            "passes_over_data, tokens_per_parameter is given; the resolved form "
                            "always has steps."));
  keys.push_back(HorizonKey("train.tokens", Horizon::Kind::kTokens, true,
                            "Tokens of all batches together, rounded down to whole steps."));
  keys.push_back(HorizonKey("train.passes_over_data", Horizon::Kind::kPassesOverData, false,
                            "Passes over the windows of the corpus (with data.unique_tokens: over "
                            "the windows kept), rounded down to whole steps."));
  keys.push_back(
      HorizonKey("train.tokens_per_parameter", Horizon::Kind::kTokensPerParameter, false,
                 "Tokens for each parameter of the model, embedding and head included and "
                 "what methods add left out, rounded down to whole steps."));
  keys.push_back(WholeKey("train.batch_sequences", OT_FIELD(train.batch_sequences), 1, 1 << 24, "",
                          "Windows in the batch of one optimizer step."));
  keys.push_back(WholeKey("train.micro_batch_sequences", OT_FIELD(train.micro_batch_sequences), 1,
                          1 << 24, "auto",
                          "Windows in one forward and backward pass; divides batch_sequences. "
                          "Smaller needs less memory and changes no result's meaning.")
                     .OrAuto("batch_sequences"));
  keys.push_back(SeedKey("train.seed", OT_FIELD(train.seed), "0", "Seed of the initial values."));
  keys.push_back(OptionalTextKey(
      "train.initial_weights", OT_FIELD(train.initial_weights),
      "Weights to begin with in place of drawn ones: a Hugging Face checkpoint of the architecture "
      "Qwen3, as a directory, a file *.safetensors or an index, relative to the working directory "
      "(docs/initial_weights.md). A run that has a checkpoint of its own continues from that. "
      "null: all values are drawn from the seed."));
  keys.push_back(EnumKey<NewParameters>(
      "train.new_parameters", OT_FIELD(train.new_parameters),
      {{"refuse", static_cast<int>(NewParameters::kRefuse)},
       {"draw", static_cast<int>(NewParameters::kDraw)}},
      "refuse",
      "Parameters that initial_weights cannot have: output norms of hybrid norm, hashed tables, "
      "further heads. refuse: an error; draw: from the seed."));
  keys.push_back(EnumKey<DeviceKind>("train.device", OT_FIELD(train.device),
                                     {{"cpu", static_cast<int>(DeviceKind::kCpu)},
                                      {"cuda", static_cast<int>(DeviceKind::kCuda)},
                                      {"emulated", static_cast<int>(DeviceKind::kEmulated)}},
                                     "auto",
                                     "What computes. emulated: the kernels of cuda, run on the "
                                     "host, for checking and nothing else (docs/emulation.md).")
                     .OrAuto("cuda where a GPU is there, cpu otherwise"));
  keys.push_back(EnumKey<DType>("train.precision", OT_FIELD(train.precision),
                                {{"f32", kF32}, {"bf16", kBf16}}, "auto",
                                "Of operands and activations. bf16 sums in f32 and keeps values, "
                                "optimizer state, statistics and losses in f32.")
                     .OrAuto("f32 on the CPU, bf16 on cuda and emulated"));
  keys.push_back(EnumKey<AttentionKind>(
      "train.attention", OT_FIELD(train.attention),
      {{"kernels", static_cast<int>(AttentionKind::kKernels)},
       {"cudnn", static_cast<int>(AttentionKind::kCudnn)}},
      "kernels",
      "What computes attention on cuda. kernels: this program's own; cudnn: NVIDIA's cuDNN, which "
      "has to be installed (docs/gpu.md), in bf16 with heads of a multiple of 16 values. Which is "
      "faster depends on device and sizes: `overtok bench ops --only attention` with and without "
      "--attention cudnn. Their bits differ, hence no automatic choice."));
  keys.push_back(EnumKey<Recompute>("train.recompute", OT_FIELD(train.recompute),
                                    {{"none", static_cast<int>(Recompute::kNone)},
                                     {"block", static_cast<int>(Recompute::kBlock)}},
                                    "none",
                                    "block: keep only the input of each block and repeat its "
                                    "forward pass during the backward pass."));
  keys.push_back(BoolKey("train.cuda_graphs", OT_FIELD(train.cuda_graphs), "true",
                         "On cuda and emulated: hand the ops of a micro-batch over as one graph. "
                         "false: one by one, for debuggers and profilers; the same bits."));
}

void AddOtherKeys(std::vector<Key>& keys) {
  keys.push_back(OptionalTextKey("eval.paloma", OT_FIELD(eval.paloma),
                                 "Directory in Paloma's layout, scored under eval/paloma/."));
  keys.push_back(TextsKey("eval.held_out", OT_FIELD(eval.held_out),
                          "Other directories in that layout, scored under eval/held_out/."));
  keys.push_back(OptionalTextKey("eval.tokenizer", OT_FIELD(eval.tokenizer),
                                 "Tokenizer for collections that are text, as `overtok tokenize "
                                 "--tokenizer` takes it; it must be the corpus's own."));
  keys.push_back(WholeKey("eval.every_steps", OT_FIELD(eval.every_steps), 0, kLarge, "1000",
                          "Evaluate after every so many steps, and always at the end; 0: only at "
                          "the end."));
  keys.push_back(BoolKey("eval.at_start", OT_FIELD(eval.at_start), "false",
                         "Evaluate before the first step as well."));
  keys.push_back(EnumKey<EvalConfig::Tail>("eval.tail", OT_FIELD(eval.tail),
                                           {{"drop", static_cast<int>(EvalConfig::Tail::kDrop)},
                                            {"keep", static_cast<int>(EvalConfig::Tail::kKeep)}},
                                           "drop",
                                           "The end of a set that fills no whole window: left out, "
                                           "or scored too."));
  keys.push_back(BoolKey("eval.inclusion_adjusted", OT_FIELD(eval.inclusion_adjusted), "false",
                         "While candidates are sampled, score a second time with log of each "
                         "class's probability of being a candidate added to its logit, under a "
                         "name of its own."));
  keys.push_back(WholesKey("eval.pass_offsets", OT_FIELD(eval.pass_offsets), -kLarge, "[]",
                           "Evaluate also this many steps after (before, if negative) the first "
                           "step of every pass over the data but the first."));
  keys.push_back(TextKey("checkpoint.directory", OT_FIELD(checkpoint.directory),
                         "The run directory, relative to the working directory: configuration, "
                         "manifest, metrics and checkpoints. Needed to train."));
  keys.push_back(RealKey("checkpoint.every_minutes", OT_FIELD(checkpoint.every_minutes),
                         kNotNegative, "10",
                         "Save after so many minutes, and always at the end; 0: not by time."));
  keys.push_back(WholeKey("checkpoint.every_steps", OT_FIELD(checkpoint.every_steps), 0, kLarge,
                          "0", "Save after every so many steps; 0: not by steps."));
  keys.push_back(WholeKey("checkpoint.keep", OT_FIELD(checkpoint.keep), 1, kLarge, "2",
                          "How many of the newest checkpoints stay."));
  keys.push_back(BoolKey("checkpoint.background", OT_FIELD(checkpoint.background), "false",
                         "Copy what is to be saved into memory taken up front, and write the copy "
                         "while training goes on."));
  keys.push_back(WholeKey("parallel.tensor", OT_FIELD(parallel.tensor), 1, 64, "1",
                          "Ranks that share one replica of the model: each has some of the heads, "
                          "of the MLP's inner width and of the vocabulary's rows. All ranks over "
                          "this are data-parallel."));
  keys.push_back(EnumKey<Split>(
      "parallel.vocabulary_map", OT_FIELD(parallel.vocabulary_map),
      {{"cyclic64", static_cast<int>(Split::kBlocks)},
       {"contiguous", static_cast<int>(Split::kRows)}},
      "cyclic64",
      "Which rows of embedding and heads a rank has. cyclic64: blocks of 64 rows, dealt round, so "
      "that frequent ids spread; contiguous: one range."));
  keys.push_back(EnumKey<GradientOrder>(
      "parallel.gradient_sum", OT_FIELD(parallel.gradient_sum),
      {{"tree", static_cast<int>(GradientOrder::kTree)},
       {"plain", static_cast<int>(GradientOrder::kPlain)}},
      "tree",
      "How gradients of micro-batches add up. tree: one fixed tree, the same bits however the "
      "batch is divided among ranks and micro-batches; plain: in order, in less memory."));
}

}  // namespace overtok
