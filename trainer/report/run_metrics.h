// What a report says of a run: the curves and last values of its metrics.jsonl, read so that a run
// that was killed in the middle of a line can be reported too.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// Which quantity a training line's loss is. Curves of different ones are never joined.
enum class LossKind { kFull, kSampled, kFocal };

struct TrainPoint {
  int64_t step;
  double tokens;  // throughput/total_tokens; NaN when the line has none
  double loss;    // of `kind`: train/loss, train/sampled_softmax_loss, train/focal_loss; finite
  LossKind kind = LossKind::kFull;
  int64_t candidates = 0;  // of a sampled softmax; 0: every class
};

// The first step of a stage of the sampled softmax, or of a pass over the data.
struct RunMarker {
  enum class Kind { kStage, kPass };
  Kind kind = Kind::kPass;
  int64_t step = 0;  // completed before it
  double tokens = kMissing, flops_6nd = kMissing;
  int64_t number = 0;  // P, 0 for the full softmax; or the pass, from 0
};

struct SetScore {
  double loss = kMissing;  // nats per token
  double bpb = kMissing;   // bits per UTF-8 byte
};

struct EvalPoint {
  int64_t step;
  double tokens = kMissing, flops_6nd = kMissing;
  double passes = kMissing;  // train/current_epoch: over the data, so far
  double held_out_macro = kMissing, paloma_macro = kMissing;
  // The same with logits adjusted for the candidates' inclusion, while those are sampled.
  double held_out_adjusted = kMissing, paloma_adjusted = kMissing;
  // Made inside a sampled stage: the full softmax is worse than the weights deserve.
  bool sampled_stage = false;
  std::map<std::string, SetScore> sets;  // "held_out/novel", "paloma/c4_en", ...
};

struct RunMetrics {
  std::string directory, name;
  std::vector<TrainPoint> train;   // ascending steps, each once: of repeated ones the last line
  std::vector<EvalPoint> evals;    // the same
  std::vector<RunMarker> markers;  // ascending steps
  // Seconds of a step, median, by the number of candidates (0: full softmax).
  std::map<int64_t, double> step_seconds;
  // The last finite value of every numeric field of any line.
  std::map<std::string, double> last;
  int64_t last_step = 0;
  double tokens_per_second = kMissing;  // median over the training lines
  double seconds = kMissing;            // time of the last line minus time of the first
  std::string config;                   // config.yaml; empty when it is not there
  // Facts of the last start in manifest.json, for people ("8 threads", ...).
  std::vector<std::string> machine;
  // What a reader of the report must know: lines that could not be read, values that were not
  // finite.
  std::vector<std::string> warnings;

  double Last(const std::string& name) const;  // NaN when there is none
};

// Reads `directory`. NotFound when there is no metrics.jsonl; FailedPrecondition when it holds no
// training and no evaluation line. `name` is left to the caller.
absl::StatusOr<RunMetrics> ReadRunMetrics(absl::string_view directory);

// The last path element of each directory; the whole path where two would be equal.
std::vector<std::string> RunNames(const std::vector<std::string>& directories);

}  // namespace overtok
