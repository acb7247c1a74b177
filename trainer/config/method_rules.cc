#include "trainer/config/method_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/console.h"
#include "trainer/config/derived.h"
#include "trainer/config/numbers.h"

namespace overtok {
namespace {

constexpr int64_t kMostRows = (int64_t{1} << 32) - 1;  // rows are named by 32-bit numbers
// Below 2^32 the next prime is less than this away; primes that divide V are passed over, at most
// nine below 2^31.
constexpr int64_t kPrimeGap = 400;
constexpr int64_t kSkippedPrimes = 9;
constexpr int64_t kMostBlockSequences = 32;
// Of the run's steps: a pass border this near to a stage change cannot be told from it in a curve.
constexpr double kNear = 0.03;

class Rules {
 public:
  Rules(const LoadedConfig& loaded, std::vector<std::string>* errors)
      : loaded_(loaded), config_(loaded.config), errors_(*errors) {}

  void Check() {
    CheckTables();
    CheckStages();
    CheckFocal();
    CheckBlocks();
  }

  void Fail(absl::string_view key, absl::string_view message) {
    errors_.push_back(absl::StrCat(loaded_.Where(key), ": ", message));
  }

 private:
  void CheckTables() {
    const ModelConfig& model = config_.model;
    if (model.ngram_embedding) {
      const NgramEmbeddingConfig& ngram = *model.ngram_embedding;
      const auto tables = ngram.splits * static_cast<int64_t>(ngram.orders.size());
      const bool prime = ngram.moduli == NgramEmbeddingConfig::Moduli::kPrime;
      const int64_t above = prime ? kPrimeGap * (tables + kSkippedPrimes) : 4 * (tables - 1);
      CheckRows("model.ngram_embedding.rows", ngram.rows, above,
                absl::StrCat(tables, prime ? " tables of the next primes" : " tables"));
    }
    if (model.ngram_head) {
      const bool two = model.ngram_head->orders.size() > 1;
      CheckRows("model.ngram_head.rows", model.ngram_head->rows, two ? 4 : 0, "the 3-gram head");
    }
    const double rate = config_.optimizer.adam_lr * config_.optimizer.tables.lr_scale;
    const double decay = config_.optimizer.tables.untouched_decay;
    if (rate * decay >= 1) {
      Fail("optimizer.tables.untouched_decay",
           absl::StrCat(FormatReal(decay), " times the tables' rate ", FormatReal(rate),
                        " is not below 1, so that rows would vanish in one step; expected less "
                        "than ",
                        FormatReal(1 / rate)));
    }
  }

  void CheckRows(absl::string_view key, int64_t rows, int64_t above, absl::string_view why) {
    if (rows + above <= kMostRows) return;
    Fail(key, absl::StrCat(rows, " is too large, because ", why, " need up to ", above,
                           " rows more and rows are named by 32 bits; expected at most ",
                           kMostRows - above));
  }

  void CheckStages() {
    if (!config_.loss.sampled_softmax) return;
    const char* const key = "loss.sampled_softmax.stages";
    const int64_t classes = config_.model.vocab_size;
    for (const SampledStage& stage : config_.loss.sampled_softmax->stages) {
      if (stage.candidates <= classes) continue;
      // The published sets in parts of the vocabulary.
      const auto part = [&](double of) {
        return std::max<int64_t>(
            1, static_cast<int64_t>(std::nearbyint(of * static_cast<double>(classes))));
      };
      Fail(key,
           absl::StrFormat("%d candidates are more than the %d classes of model.vocab_size; give "
                           "stages of your own. The published ones, scaled to this vocabulary: "
                           "[{until: 0.57, candidates: %d}, {until: 0.81, candidates: %d}, "
                           "{until: 0.93, candidates: %d}]",
                           stage.candidates, classes, part(24576. / 128256), part(36864. / 128256),
                           part(65536. / 128256)));
      break;
    }
    const bool uncorrected = config_.loss.sampled_softmax->correction == Correction::kNone;
    if (config_.loss.z_loss > 0 && uncorrected) {
      Fail("loss.z_loss",
           absl::StrCat(FormatReal(config_.loss.z_loss),
                        " does not go with loss.sampled_softmax.correction: none, because the "
                        "log-sum-exp of candidates alone is not that of all classes; choose "
                        "correction: inclusion, or z_loss 0"));
    }
  }

  void CheckFocal() {
    if (config_.loss.focal_gamma == 0) return;
    const std::string gamma = FormatReal(config_.loss.focal_gamma);
    if (config_.loss.sampled_softmax) {
      Fail("loss.focal_gamma",
           absl::StrCat(gamma,
                        " does not go with loss.sampled_softmax, because the probability among "
                        "candidates is not the one over the vocabulary; choose focal_gamma 0, or "
                        "loss.sampled_softmax: null"));
    }
    if (config_.model.ngram_head) {
      Fail("loss.focal_gamma",
           absl::StrCat(gamma,
                        " does not go with model.ngram_head, because the probability among "
                        "candidates is not the one over the classes; choose focal_gamma 0, or "
                        "model.ngram_head: null"));
    }
  }

  void CheckBlocks() {
    if (config_.train.batch_sequences % config_.loss.block_sequences == 0) return;
    Fail("loss.sampled_softmax.block_sequences",
         absl::StrCat(config_.loss.block_sequences, " does not divide train.batch_sequences ",
                      config_.train.batch_sequences, "; choose a divisor, or auto"));
  }

  const LoadedConfig& loaded_;
  const Config& config_;
  std::vector<std::string>& errors_;
};

void AddOnce(std::string warning, LoadedConfig* loaded) {
  std::vector<std::string>& warnings = loaded->warnings;
  if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) {
    warnings.push_back(std::move(warning));
  }
}

// Steps between the stage change at `change` and the pass border nearest to it; the border itself
// goes to `border`. -1: the run has no border.
int64_t DistanceToBorder(const Config& config, int64_t windows, int64_t change, int64_t* border) {
  int64_t best = -1;
  const double per_pass = BatchesPerPass(config, windows);
  const auto pass = static_cast<int64_t>(static_cast<double>(change) / per_pass);
  for (int64_t p = std::max<int64_t>(1, pass); p <= pass + 1; ++p) {
    const int64_t first = FirstStepOfPass(config, windows, static_cast<double>(p));
    if (first >= config.train.steps) break;
    const int64_t distance = std::abs(first - change);
    if (best >= 0 && distance >= best) continue;
    best = distance;
    *border = first;
  }
  return best;
}

void WarnOfBorders(int64_t windows, LoadedConfig* loaded) {
  const Config& config = loaded->config;
  for (const StageSpan& stage : Stages(config)) {
    if (stage.end >= config.train.steps) continue;
    int64_t border = 0;
    const int64_t distance = DistanceToBorder(config, windows, stage.end, &border);
    if (distance < 0 ||
        static_cast<double>(distance) > kNear * static_cast<double>(config.train.steps)) {
      continue;
    }
    AddOnce(absl::StrFormat(
                "%s: the stage of %d candidates ends at step %d, within 3 %% of the run from step "
                "%d, where another pass over the data begins: their effects cannot be told apart. "
                "Move the stage or change the length of a pass.",
                loaded->Where("loss.sampled_softmax.stages"), stage.candidates, stage.end, border),
            loaded);
  }
}

}  // namespace

void ResolveMethodAutos(const std::set<std::string>& autos, LoadedConfig* loaded,
                        std::vector<std::string>* errors) {
  Config& config = loaded->config;
  const int64_t d = config.model.hidden_size;
  const auto is_auto = [&](const char* key) { return autos.count(key) > 0; };
  // Tables of order up to `order`: as many as make rows about 256 wide.
  const auto splits = [d](int64_t order) {
    const double exact = static_cast<double>(d) / static_cast<double>(order * 256);
    return std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(exact)));  // half to even
  };
  const auto check_width = [&](const char* key, int64_t width) {
    if (width > 0) return;
    Rules(*loaded, errors)
        .Fail(key, absl::StrCat("auto comes to 0 for model.hidden_size ", d,
                                "; give a width of at least 1"));
  };
  if (config.model.ngram_embedding) {
    NgramEmbeddingConfig& ngram = *config.model.ngram_embedding;
    const int64_t order = ngram.orders.back();
    if (is_auto("model.ngram_embedding.splits")) ngram.splits = splits(order);
    if (is_auto("model.ngram_embedding.width")) {
      ngram.width = d / (order * ngram.splits);
      check_width("model.ngram_embedding.width", ngram.width);
    }
  }
  if (is_auto("model.ngram_head.width")) {
    config.model.ngram_head->width =
        config.model.ngram_embedding ? config.model.ngram_embedding->width : d / (3 * splits(3));
    check_width("model.ngram_head.width", config.model.ngram_head->width);
  }
  if (!config.loss.sampled_softmax || is_auto("loss.sampled_softmax.block_sequences")) {
    const int64_t batch = config.train.batch_sequences;
    int64_t block = std::min(batch, kMostBlockSequences);
    while (block > 1 && batch % block != 0) --block;
    config.loss.block_sequences = std::max<int64_t>(1, block);
  }
  if (is_auto("optimizer.tables.beta1")) config.optimizer.tables.beta1 = config.optimizer.beta1;
}

void CheckMethods(const LoadedConfig& loaded, std::vector<std::string>* errors) {
  Rules(loaded, errors).Check();
}

void ResolveFreeze(int64_t windows, LoadedConfig* loaded, std::vector<std::string>* errors) {
  Config& config = loaded->config;
  const int64_t steps = config.train.steps;
  if (steps == 0) return;
  int64_t& freeze = config.optimizer.tables.freeze_step;
  if (config.freeze_after_passes > 0 && BatchesPerPass(config, windows) > 0) {
    const int64_t first = FirstStepOfPass(config, windows, config.freeze_after_passes);
    if (first >= steps) {
      Rules(*loaded, errors)
          .Fail("optimizer.tables.freeze_after_passes",
                absl::StrCat(FormatReal(config.freeze_after_passes), " passes end at step ", first,
                             ", later than the run of ", steps,
                             " steps; freeze earlier, repeat more data (data.passes), or give 0"));
      return;
    }
    freeze = first;
    config.freeze_after_passes = 0;
  }
  if (freeze >= steps) {
    Rules(*loaded, errors)
        .Fail("optimizer.tables.freeze_step",
              absl::StrCat(freeze, " is later than the last step ", steps - 1,
                           "; freeze earlier, or give 0 for never"));
  }
}

void WarnOfMethods(int64_t windows, LoadedConfig* loaded) {
  const Config& config = loaded->config;
  if (config.loss.sampled_softmax && config.loss.sampled_softmax->stages.back().until == 1) {
    AddOnce(absl::StrCat(loaded->Where("loss.sampled_softmax.stages"),
                         ": the last stage ends at 1, so that the run never trains the full "
                         "softmax, by which it is judged. End it earlier unless that is what you "
                         "want to see."),
            loaded);
  }
  const double per_pass = BatchesPerPass(config, windows);
  if (per_pass <= 0 || static_cast<double>(config.train.steps) <= per_pass) return;
  WarnOfBorders(windows, loaded);
  const ParameterCounts counts = CountParameters(config.model);
  const auto unique = static_cast<int64_t>(
      std::nearbyint(per_pass * static_cast<double>(config.tokens_per_step())));
  const int64_t freeze = config.optimizer.tables.freeze_step;
  const bool frozen_in_time = freeze > 0 && freeze <= FirstStepOfPass(config, windows, 1);
  if (counts.ngram_tables > unique && !frozen_in_time) {
    AddOnce(absl::StrFormat(
                "%s: the tables have %s parameters and the run repeats %s tokens: %.2f parameters "
                "a token, enough to learn the data by heart. Fewer rows, less repetition, or "
                "optimizer.tables.freeze_after_passes: 1 avoid that.",
                loaded->Where("model.ngram_embedding"),
                FormatCount(static_cast<double>(counts.ngram_tables)),
                FormatCount(static_cast<double>(unique)),
                static_cast<double>(counts.ngram_tables) / static_cast<double>(unique)),
            loaded);
  }
}

}  // namespace overtok
