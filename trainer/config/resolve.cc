#include "trainer/config/resolve.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "trainer/config/derived.h"
#include "trainer/config/method_rules.h"
#include "trainer/config/numbers.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

// Tokens of a run stay below this, so that no product of counts leaves 64 bits.
constexpr double kMostTokens = 1e18;

class Checker {
 public:
  Checker(LoadedConfig* loaded, std::vector<std::string>* errors)
      : loaded_(*loaded), config_(loaded->config), errors_(*errors) {}

  void Fail(absl::string_view key, absl::string_view message) {
    errors_.push_back(absl::StrCat(loaded_.Where(key), ": ", message));
  }

  bool Given(const std::string& key) const { return loaded_.origins.count(key) > 0; }

  // A key that was given something other than null, or than what else means that it is not used.
  bool Set(const std::string& key, absl::string_view none = "null") const {
    return Given(key) && FindKey(key)->write(config_) != none;
  }

  void CheckExclusive(const std::set<std::string>& horizons) {
    for (const ExclusiveKeys& group : ConfigExclusiveKeys()) {
      std::vector<std::string> found;
      found.reserve(group.keys.size());
      for (const std::string& key : group.keys) {
        // Of the horizons only the last one read is in the config; the caller knows all.
        if (group.required ? horizons.count(key) > 0 : Set(key, group.none)) found.push_back(key);
      }
      if (found.size() > 1) {
        std::vector<std::string> places;
        places.reserve(found.size());
        for (const std::string& key : found) places.push_back(loaded_.Where(key));
        errors_.push_back(absl::StrCat(absl::StrJoin(places, " and "), ": give ",
                                       group.required ? "exactly" : "at most", " one of ",
                                       absl::StrJoin(group.keys, ", "), "; remove the others"));
      } else if (found.empty() && group.required) {
        errors_.push_back(absl::StrCat("the length of the run is missing; give exactly one of ",
                                       absl::StrJoin(group.keys, ", ")));
      }
    }
  }

  void ResolveAutos(const std::set<std::string>& autos) {
    ModelConfig& model = config_.model;
    const auto is_auto = [&](const char* key) { return autos.count(key) > 0; };
    if (is_auto("model.num_key_value_heads")) model.num_key_value_heads = model.num_attention_heads;
    if (is_auto("model.head_dim")) {
      if (model.hidden_size % model.num_attention_heads != 0) {
        Fail("model.head_dim",
             absl::StrCat("auto is hidden_size / num_attention_heads = ", model.hidden_size, " / ",
                          model.num_attention_heads, ", which is not whole; give head_dim"));
      }
      model.head_dim = model.hidden_size / model.num_attention_heads;
    }
    TrainConfig& train = config_.train;
    if (is_auto("train.micro_batch_sequences")) train.micro_batch_sequences = train.batch_sequences;
    if (is_auto("train.device"))
      train.device = CudaIsThere() ? DeviceKind::kCuda : DeviceKind::kCpu;
    if (is_auto("train.precision"))
      train.precision = train.device == DeviceKind::kCpu ? DType::kF32 : DType::kBF16;
    if (is_auto("optimizer.newton_schulz.precision")) {
      using Precision = NewtonSchulzConfig::Precision;
      config_.optimizer.newton_schulz.precision =
          train.precision == DType::kBF16 ? Precision::kBF16 : Precision::kF32;
    }
    ResolveMethodAutos(autos, &loaded_, &errors_);
  }

  void CheckAttention() {
    const TrainConfig& train = config_.train;
    if (train.attention != AttentionKind::kCudnn) return;
    if (train.device != DeviceKind::kCuda) {
      Fail("train.attention", absl::StrCat("cudnn computes on cuda alone, and train.device is ",
                                           NameOf(train.device), "; expected kernels"));
    } else if (train.precision != DType::kBF16) {
      Fail("train.attention", absl::StrCat("cudnn computes in bf16 alone, and train.precision is ",
                                           NameOf(train.precision), "; expected kernels"));
    } else if (config_.model.head_dim % 16 != 0) {
      Fail("train.attention", absl::StrCat("cudnn takes heads of a multiple of 16 values, and "
                                           "model.head_dim is ",
                                           config_.model.head_dim, "; expected kernels"));
    }
  }

  void CheckShapes() {
    const ModelConfig& model = config_.model;
    if (config_.train.device != DeviceKind::kCpu && model.head_dim > 128) {
      Fail("model.head_dim", absl::StrCat(model.head_dim, " is more than the attention of ",
                                          NameOf(config_.train.device),
                                          " takes; expected at most 128, or train.device=cpu"));
    }
    CheckAttention();
    if (model.head_dim % 2 != 0 || model.head_dim < 2) {
      Fail("model.head_dim", absl::StrCat(model.head_dim,
                                          " is not valid; expected an even number, because rotary "
                                          "positions turn pairs of a head"));
    }
    if (model.num_attention_heads % model.num_key_value_heads != 0) {
      Fail("model.num_key_value_heads",
           absl::StrCat(model.num_key_value_heads, " does not divide num_attention_heads ",
                        model.num_attention_heads,
                        "; every key/value head serves equally many query heads"));
    }
    const TrainConfig& train = config_.train;
    if (train.batch_sequences % train.micro_batch_sequences != 0) {
      Fail("train.micro_batch_sequences",
           absl::StrCat(train.micro_batch_sequences, " does not divide train.batch_sequences ",
                        train.batch_sequences, "; choose a divisor, or auto"));
    }
  }

  // A key without effect is a mistake where it was written next to what disables it, and on the
  // command line, which has the last word; also in the configuration's own file when nothing
  // anywhere chose otherwise. Inherited, it is silently inactive.
  void CheckInactive(const std::string& file) {
    std::set<std::string> autos;
    std::set<std::string> reported;  // several rules may hold for one key
    for (const InactiveRule& rule : ConfigInactiveRules()) {
      if (!rule.inactive(config_)) continue;
      const size_t before = errors_.size();
      if (Set(rule.option) && reported.count(rule.option) == 0) CheckInactive(rule, file);
      if (errors_.size() > before) reported.insert(rule.option);
    }
    // Only now, because the value of one key may decide about another.
    for (const InactiveRule& rule : ConfigInactiveRules()) {
      if (!rule.inactive(config_)) continue;
      if (FindKey(rule.option)->initial == "auto") {
        autos.insert(rule.option);
      } else {
        ReadDefault(rule.option, &config_);
      }
    }
    ResolveAutos(autos);
  }

  void CheckInactive(const InactiveRule& rule, const std::string& file) {
    const Origin& origin = loaded_.origins.at(rule.option);
    std::string disabler = rule.disabled_by[0];
    bool beside = false, chosen = false;
    for (const std::string& key : rule.disabled_by) {
      if (!Given(key)) continue;
      if (!chosen) disabler = key;
      chosen = true;
      if (loaded_.origins.at(key).file != origin.file || beside) continue;
      beside = true;
      disabler = key;
    }
    if (!beside && !origin.command_line() && (chosen || origin.file != file)) return;
    const Origin place = chosen ? loaded_.origins.at(disabler) : Origin{};
    Fail(rule.option,
         absl::StrCat("has no effect with ", disabler, ": ", WriteSetting(disabler, config_), " (",
                      place.ToString(), "), because ", rule.why, "; remove it"));
  }

  // Sets train.steps. `windows`: of the corpus; -1 when not known yet.
  void ResolveSteps(int64_t windows) {
    const Horizon& horizon = config_.train.horizon;
    const auto per_step = static_cast<double>(config_.tokens_per_step());
    double steps = 0;
    const char* key = "train.steps";
    std::string reason;
    switch (horizon.kind) {
      case Horizon::Kind::kSteps:
        steps = horizon.value;
        break;
      case Horizon::Kind::kTokens:
        key = "train.tokens";
        steps = std::floor(horizon.value / per_step);
        break;
      case Horizon::Kind::kTokensPerParameter: {
        key = "train.tokens_per_parameter";
        const auto parameters = static_cast<double>(CountParameters(config_.model).baseline());
        steps = std::floor(horizon.value * parameters / per_step);
        break;
      }
      case Horizon::Kind::kPassesOverData: {
        key = "train.passes_over_data";
        if (windows < 0) return;
        if (config_.data.unique_tokens) {
          windows = std::min(windows, KeptBatches(config_) * config_.train.batch_sequences);
        }
        steps = std::floor(horizon.value * static_cast<double>(windows) /
                           static_cast<double>(config_.train.batch_sequences));
        reason = absl::StrCat(" of ", windows, " windows");
        break;
      }
    }
    if (steps < 1) {
      Fail(key, absl::StrCat(FormatReal(horizon.value), reason, " is less than one step of ",
                             config_.train.batch_sequences, " windows of ",
                             config_.data.sequence_length, " tokens; ask for more"));
      return;
    }
    if (steps * per_step > kMostTokens) {
      Fail(key, absl::StrCat(FormatReal(horizon.value), " comes to more than ",
                             FormatReal(kMostTokens), " tokens"));
      return;
    }
    config_.train.steps = static_cast<int64_t>(steps);
  }

  void CheckSteps() {
    const int64_t steps = config_.train.steps;
    const int64_t warmup = config_.optimizer.schedule.warmup_steps;
    if (steps > 0 && warmup > steps) {
      Fail("optimizer.schedule.warmup_steps", absl::StrCat(warmup, " is more than the ", steps,
                                                           " steps of the run; shorten the "
                                                           "warm-up or lengthen the run"));
    }
    if (config_.data.unique_tokens && KeptBatches(config_) < 1) {
      Fail("data.unique_tokens",
           absl::StrCat(*config_.data.unique_tokens, " is less than one batch of ",
                        config_.tokens_per_step(), " tokens"));
    }
    if (config_.data.passes && steps > 0 && KeptBatches(config_) < 1) {
      Fail("data.passes", absl::StrCat(FormatReal(*config_.data.passes),
                                       " passes leave less than one batch of the ", steps,
                                       " steps; expected at most ", steps));
    }
  }

  void CheckWindows(int64_t windows) {
    if (windows < 1) {
      Fail("data.sequence_length",
           absl::StrCat("a window of ", config_.data.sequence_length,
                        " tokens is longer than the corpus; shorten the window or add data"));
      return;
    }
    const int64_t kept = KeptBatches(config_) * config_.train.batch_sequences;
    if (kept > windows) {
      Fail(config_.data.passes ? "data.passes" : "data.unique_tokens",
           absl::StrCat("keeps ", KeptBatches(config_), " batches of ",
                        config_.train.batch_sequences, " windows, and the corpus has ", windows,
                        " windows; keep less or add data"));
    }
  }

 private:
  LoadedConfig& loaded_;
  Config& config_;
  std::vector<std::string>& errors_;
};

}  // namespace

void ReadDefault(absl::string_view key, Config* config) {
  const Key* found = FindKey(key);
  OT_CHECK(found != nullptr) << "no key " << std::string(key);
  const absl::StatusOr<YamlValue> tree =
      ParseOverride(absl::StrCat(found->name, "=", found->initial));
  OT_CHECK(tree.ok()) << std::string(tree.status().message());
  const absl::Status read = found->read(*tree->At(found->name), config);
  OT_CHECK(read.ok()) << found->name << ": " << std::string(read.message());
}

void ResolveConfig(const ReadFacts& facts, LoadedConfig* loaded, std::vector<std::string>* errors) {
  Checker checker(loaded, errors);
  checker.CheckExclusive(facts.horizons);
  checker.ResolveAutos(facts.autos);
  checker.CheckShapes();
  checker.CheckInactive(facts.file);
  CheckMethods(*loaded, errors);
  if (!errors->empty()) return;
  checker.ResolveSteps(-1);
  checker.CheckSteps();
  ResolveFreeze(-1, loaded, errors);
  if (errors->empty()) WarnOfMethods(-1, loaded);
}

absl::Status ResolveHorizon(int64_t windows, LoadedConfig* loaded) {
  std::vector<std::string> errors;
  Checker checker(loaded, &errors);
  if (windows >= 1) checker.ResolveSteps(windows);
  if (errors.empty()) checker.CheckWindows(windows);
  if (errors.empty()) checker.CheckSteps();
  if (errors.empty()) ResolveFreeze(windows, loaded, &errors);
  if (errors.empty()) WarnOfMethods(windows, loaded);
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

}  // namespace overtok
