#include "trainer/config/schema.h"

#include "absl/strings/match.h"

// A reference to a member of the Config, for the table below.
#define OT_FIELD(member) \
  [](Config & c) -> auto& { return c.member; }

namespace overtok {
namespace {

constexpr int64_t kLarge = int64_t{1} << 53;
constexpr Range kPositive = {0, std::numeric_limits<double>::infinity(), true};
constexpr Range kNotNegative = {0, std::numeric_limits<double>::infinity(), false};
constexpr Range kFraction = {0, 1, false};
constexpr int kF32 = static_cast<int>(DType::kF32);
constexpr int kBf16 = static_cast<int>(DType::kBF16);

void AddModelKeys(std::vector<Key>& keys) {
  // The upper bounds keep every product of sizes within 64 bits.
  keys.push_back(WholeKey("model.vocab_size", OT_FIELD(model.vocab_size), 2, int64_t{1} << 31, "",
                          "Token ids are 0 ... vocab_size - 1."));
  keys.push_back(WholeKey("model.hidden_size", OT_FIELD(model.hidden_size), 1, 1 << 20, "",
                          "Width of the residual stream."));
  keys.push_back(WholeKey("model.intermediate_size", OT_FIELD(model.intermediate_size), 1, 1 << 22,
                          "", "Inner width of the SwiGLU MLP."));
  keys.push_back(WholeKey("model.num_hidden_layers", OT_FIELD(model.num_hidden_layers), 1, 4096, "",
                          "Transformer blocks."));
  keys.push_back(WholeKey("model.num_attention_heads", OT_FIELD(model.num_attention_heads), 1, 4096,
                          "", "Query heads."));
  keys.push_back(WholeKey("model.num_key_value_heads", OT_FIELD(model.num_key_value_heads), 1, 4096,
                          "auto", "Key and value heads; divides num_attention_heads.")
                     .OrAuto("num_attention_heads"));
  keys.push_back(WholeKey("model.head_dim", OT_FIELD(model.head_dim), 2, 4096, "auto",
                          "Width of one head; even. heads * head_dim need not be hidden_size.")
                     .OrAuto("hidden_size / num_attention_heads"));
  keys.push_back(RealKey("model.rope_theta", OT_FIELD(model.rope_theta), kPositive, "10000",
                         "Base of the rotary position frequencies."));
  keys.push_back(RealKey("model.rms_norm_eps", OT_FIELD(model.rms_norm_eps), kPositive, "1e-5",
                         "Added to the mean square inside every RMSNorm."));
  keys.push_back(BoolKey("model.hybrid_norm", OT_FIELD(model.hybrid_norm), "true",
                         "Norms on the outputs of attention and MLP as well as on their inputs."));
  keys.push_back(BoolKey("model.tie_word_embeddings", OT_FIELD(model.tie_word_embeddings), "false",
                         "The output head uses the token embedding; there is no lm_head."));
}

void AddLossKeys(std::vector<Key>& keys) {
  keys.push_back(RealKey("loss.z_loss", OT_FIELD(loss.z_loss), kNotNegative, "0",
                         "Weight of the mean squared log-sum-exp of the logits, added to the "
                         "cross-entropy and reported apart; 0: off."));
}

void AddOptimizerKeys(std::vector<Key>& keys) {
  keys.push_back(RealKey("optimizer.lr", OT_FIELD(optimizer.lr), kNotNegative, "",
                         "Rate of the groups muonh (matrices of the blocks) and adamh (lm_head)."));
  keys.push_back(RealKey("optimizer.adam_lr", OT_FIELD(optimizer.adam_lr), kNotNegative, "",
                         "Rate of the group adam (token embedding, norm gains)."));
  keys.push_back(RealKey("optimizer.momentum", OT_FIELD(optimizer.momentum), kFraction, "0.95",
                         "muonh: buffer = momentum * buffer + gradient."));
  keys.push_back(BoolKey("optimizer.nesterov", OT_FIELD(optimizer.nesterov), "true",
                         "muonh: direction gradient + momentum * buffer instead of the buffer."));
  keys.push_back(WholeKey("optimizer.newton_schulz.steps", OT_FIELD(optimizer.newton_schulz.steps),
                          1, 100, "5", "Iterations that orthogonalise a muonh update."));
  keys.push_back(RealKey("optimizer.newton_schulz.eps", OT_FIELD(optimizer.newton_schulz.eps),
                         kPositive, "1e-5",
                         "Added to the norm that the first iterate divides by."));
  keys.push_back(CoefficientsKey(
      "optimizer.newton_schulz.coefficients", OT_FIELD(optimizer.newton_schulz.coefficients),
      "a, b, c of X = a X + (b A + c A A) X, A = X X^T; simple: [3.4445, -4.7750, 2.0315]."));
  keys.push_back(
      EnumKey<DType>("optimizer.newton_schulz.precision",
                     OT_FIELD(optimizer.newton_schulz.precision), {{"f32", kF32}, {"bf16", kBf16}},
                     "auto", "Of the products inside the iterations; bf16 sums in f32.",
                     {{"tf32", "tf32 exists on cuda only, and this program computes on the CPU"}})
          .OrAuto("train.precision"));
  keys.push_back(RealKey("optimizer.beta1", OT_FIELD(optimizer.beta1), {0, 0.999999999, false},
                         "0.9", "adam, adamh: decay of the first moment."));
  keys.push_back(RealKey("optimizer.beta2", OT_FIELD(optimizer.beta2), {0, 0.999999999, false},
                         "0.98", "adam, adamh: decay of the second moment."));
  keys.push_back(RealKey("optimizer.eps", OT_FIELD(optimizer.eps), kPositive, "1e-20",
                         "adam, adamh: added to the root of the second moment."));
  keys.push_back(RealKey("optimizer.max_grad_norm", OT_FIELD(optimizer.max_grad_norm), kPositive,
                         "1",
                         "Each group's gradient is scaled down to this L2 norm, each group for "
                         "itself. A very large value clips nothing."));
  keys.push_back(EnumKey<ScheduleConfig::Type>(
      "optimizer.schedule.type", OT_FIELD(optimizer.schedule.type),
      {{"linear", static_cast<int>(ScheduleConfig::Type::kLinear)},
       {"cosine", static_cast<int>(ScheduleConfig::Type::kCosine)}},
      "linear",
      "linear: full rate, then a straight fall over the last part of the run; cosine: half a "
      "cosine from the end of the warm-up on."));
  keys.push_back(WholeKey("optimizer.schedule.warmup_steps",
                          OT_FIELD(optimizer.schedule.warmup_steps), 0, kLarge, "0",
                          "Steps of linear warm-up; the first of them has rate 0."));
  keys.push_back(RealKey("optimizer.schedule.decay", OT_FIELD(optimizer.schedule.decay), kFraction,
                         "0.8",
                         "linear: the part of all steps that falls, rounded down to whole steps; "
                         "0: the rate stays."));
  keys.push_back(RealKey("optimizer.schedule.min_lr_ratio",
                         OT_FIELD(optimizer.schedule.min_lr_ratio), kFraction, "0",
                         "Where the fall ends, as a part of the full rate."));
}

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
  keys.push_back(HorizonKey("train.tokens_per_parameter", Horizon::Kind::kTokensPerParameter, false,
                            "Tokens for each parameter of the model, embedding and head included, "
                            "rounded down to whole steps."));
  keys.push_back(WholeKey("train.batch_sequences", OT_FIELD(train.batch_sequences), 1, 1 << 24, "",
                          "Windows in the batch of one optimizer step."));
  keys.push_back(WholeKey("train.micro_batch_sequences", OT_FIELD(train.micro_batch_sequences), 1,
                          1 << 24, "auto",
                          "Windows in one forward and backward pass; divides batch_sequences. "
                          "Smaller needs less memory and changes no result's meaning.")
                     .OrAuto("batch_sequences"));
  keys.push_back(SeedKey("train.seed", OT_FIELD(train.seed), "0", "Seed of the initial values."));
  keys.push_back(EnumKey<Device>("train.device", OT_FIELD(train.device),
                                 {{"cpu", static_cast<int>(Device::kCpu)}}, "auto",
                                 "What computes.",
                                 {{"cuda", "this program computes on the CPU only"}})
                     .OrAuto("cpu"));
  keys.push_back(EnumKey<DType>("train.precision", OT_FIELD(train.precision),
                                {{"f32", kF32}, {"bf16", kBf16}}, "auto",
                                "Of operands and activations. bf16 sums in f32 and keeps values, "
                                "optimizer state, statistics and losses in f32.")
                     .OrAuto("f32 on the CPU"));
  keys.push_back(EnumKey<Recompute>("train.recompute", OT_FIELD(train.recompute),
                                    {{"none", static_cast<int>(Recompute::kNone)},
                                     {"block", static_cast<int>(Recompute::kBlock)}},
                                    "none",
                                    "block: keep only the input of each block and repeat its "
                                    "forward pass during the backward pass."));
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
  keys.push_back(WholeKey("parallel.tensor", OT_FIELD(parallel.tensor), 1, 1, "1",
                          "Ranks that share one replica of the model."));
}

std::vector<Key> BuildKeys() {
  std::vector<Key> keys;
  AddModelKeys(keys);
  AddLossKeys(keys);
  AddOptimizerKeys(keys);
  AddDataKeys(keys);
  AddTrainKeys(keys);
  AddOtherKeys(keys);
  return keys;
}

bool NotLinearOrder(const Config& c) { return c.data.order.type != OrderOptions::Type::kLinear; }
bool SequentialOrder(const Config& c) {
  return c.data.order.type == OrderOptions::Type::kSequential;
}
bool NothingToEvaluate(const Config& c) { return !c.eval.enabled(); }

}  // namespace

const std::vector<Key>& ConfigKeys() {
  static const auto* const keys = new std::vector<Key>(BuildKeys());
  return *keys;
}

const std::vector<std::string>& ConfigKeyNames() {
  static const auto* const names = [] {
    auto* built = new std::vector<std::string>;
    for (const Key& key : ConfigKeys()) built->push_back(key.name);
    return built;
  }();
  return *names;
}

const Key* FindKey(absl::string_view name) {
  for (const Key& key : ConfigKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

bool IsSection(absl::string_view name) {
  const std::string prefix = absl::StrCat(name, ".");
  for (const Key& key : ConfigKeys()) {
    if (absl::StartsWith(key.name, prefix)) return true;
  }
  return false;
}

const std::vector<ExclusiveKeys>& ConfigExclusiveKeys() {
  static const auto* const groups = new std::vector<ExclusiveKeys>{
      {{"train.steps", "train.tokens", "train.passes_over_data", "train.tokens_per_parameter"},
       true},
      {{"data.passes", "data.unique_tokens"}, false}};
  return *groups;
}

const std::vector<InactiveRule>& ConfigInactiveRules() {
  static const auto* const rules = new std::vector<InactiveRule>{
      {"optimizer.schedule.decay",
       {"optimizer.schedule.type"},
       [](const Config& c) { return c.optimizer.schedule.type != ScheduleConfig::Type::kLinear; },
       "the cosine schedule falls from the end of the warm-up to the end of the run"},
      {"optimizer.schedule.min_lr_ratio",
       {"optimizer.schedule.decay"},
       [](const Config& c) {
         return c.optimizer.schedule.type == ScheduleConfig::Type::kLinear &&
                c.optimizer.schedule.decay == 0;
       },
       "with decay 0 the rate never falls"},
      {"data.order.block", {"data.order.type"}, NotLinearOrder, "only the linear order has blocks"},
      {"data.order.a", {"data.order.type"}, NotLinearOrder, "only the linear order has it"},
      {"data.order.b", {"data.order.type"}, NotLinearOrder, "only the linear order has it"},
      {"data.order.seed",
       {"data.order.type"},
       SequentialOrder,
       "the sequential order draws nothing"},
      {"data.order.reshuffle",
       {"data.order.type"},
       SequentialOrder,
       "the sequential order is the same in every pass"},
      {"eval.tokenizer",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.every_steps",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.at_start",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.tail",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"}};
  return *rules;
}

const InactiveRule* FindInactive(absl::string_view key, const Config& config) {
  for (const InactiveRule& rule : ConfigInactiveRules()) {
    if (rule.option == key && rule.inactive(config)) return &rule;
  }
  return nullptr;
}

}  // namespace overtok
