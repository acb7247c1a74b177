#include "trainer/run_stage.h"

#include "losses/candidates.h"
#include "trainer/config/derived.h"

namespace overtok {

int64_t CandidatesOfStep(const Config& config, int64_t step) {
  const int64_t vocabulary = config.model.vocab_size;
  if (!config.loss.sampled_softmax.has_value()) return vocabulary;
  return StageCandidates(config.loss.sampled_softmax->stages, vocabulary, config.train.steps, step);
}

int64_t CandidatesBehind(const Config& config, int64_t completed) {
  return completed == 0 ? config.model.vocab_size : CandidatesOfStep(config, completed - 1);
}

bool BehindSampledStage(const Config& config, int64_t completed) {
  return CandidatesBehind(config, completed) < config.model.vocab_size;
}

std::map<int64_t, int64_t> PassStarts(const Config& config, int64_t windows) {
  std::map<int64_t, int64_t> starts;
  if (!(BatchesPerPass(config, windows) > 0)) return starts;
  for (int64_t pass = 1;; ++pass) {
    const int64_t first = FirstStepOfPass(config, windows, static_cast<double>(pass));
    if (first >= config.train.steps) return starts;
    starts[first] = pass;  // of passes shorter than a step, the last one that begins there
  }
}

std::set<int64_t> PassEvaluations(const Config& config, const std::map<int64_t, int64_t>& starts) {
  std::set<int64_t> steps;
  for (const auto& [first, pass] : starts) {
    for (const int64_t offset : config.eval.pass_offsets) {
      if (first + offset > 0 && first + offset <= config.train.steps) steps.insert(first + offset);
    }
  }
  return steps;
}

}  // namespace overtok
