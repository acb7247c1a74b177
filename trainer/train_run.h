// One training run, from its configuration to its last step: what `overtok train` is made of.
// Setting up (trainer/train_setup.cc) ends with everything in memory, from the initial values or
// the newest checkpoint; the loop (trainer/train_loop.cc) takes the steps, evaluates, saves and
// writes the metrics.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "data/loader.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_saver.h"
#include "trainer/evaluation_data.h"
#include "trainer/evaluator.h"
#include "trainer/inclusion.h"
#include "trainer/initial_weights.h"
#include "trainer/metrics.h"
#include "trainer/progress_line.h"
#include "trainer/run_directory.h"
#include "trainer/sample_counter.h"
#include "trainer/signals.h"
#include "trainer/step_metrics.h"
#include "trainer/train_loop.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {

class TrainRun {
 public:
  TrainRun(LoadedConfig loaded, const TrainOptions& options, Communicator* world)
      : loaded_(std::move(loaded)), options_(options), world_(world) {}

  absl::StatusOr<int> Go();

 private:
  const Config& config() const { return loaded_.config; }

  bool root() const { return world_->rank() == 0; }

  // Everything that can go wrong without a byte of the model in memory.
  absl::Status Preflight();
  absl::Status OpenData();
  // Those of train.initial_weights, where the run does not continue from a checkpoint of its own.
  absl::Status OpenWeights();
  // That all ranks run one program on one corpus.
  absl::Status CheckRanks();
  // The run's own directory: newest checkpoint, metrics, manifest.
  absl::Status Resume();
  absl::Status Build();
  absl::Status FillWeights(const std::vector<ShardedTensor>& held);
  // Of rank 0.
  absl::Status Record();
  absl::Status WriteLine(const MetricsLine& line);
  // Steps to the horizon; true when all were taken, false when the run was asked to stop.
  absl::StatusOr<bool> Steps();
  // A step that was asked for, and what is known of its batch.
  struct AskedStep {
    std::vector<int64_t> windows;
    int64_t sequences = 0, tokens = 0, pass = 0;
    uint64_t ids_hash = 0;  // of all ids up to it
    double waited = 0;      // for its batch
  };
  absl::Status Ask(Loader& loader);
  // Whether the step behind the open one may be asked for: nothing is to happen between them.
  bool MayAskAhead() const;
  // The oldest step that was asked for, and what is written of it.
  absl::Status Collect();
  // Lines of a stage or a pass that begins with the next step.
  absl::Status MarkBorders();
  absl::Status Evaluate(bool* stopped);
  // What the evaluation of the present weights is told.
  EvaluationMoment Moment();
  double Epoch() const;
  absl::Status Save();
  // After `step` steps.
  bool EvaluationIsDue(int64_t step) const;
  bool SaveIsDueBySteps(int64_t step) const;
  // Or by the clock. Collective.
  bool SaveIsDue();
  void CheckStepZero(const StepResult& result);
  void ShowProgress(const StepResult& result, double epoch);
  bool StopAsked();

  LoadedConfig loaded_;
  const TrainOptions& options_;
  Communicator* world_;
  Device* device_ = nullptr;
  std::unique_ptr<Communicator> device_world_;  // for tensors on the device
  std::unique_ptr<Mesh> mesh_;
  StopSignals signals_;
  TrainingData data_;
  LabelSample labels_;                      // with a sampled softmax
  std::map<int64_t, int64_t> pass_starts_;  // first step, pass
  std::set<int64_t> pass_evaluations_;
  std::unique_ptr<EvaluationData> evaluation_;
  std::optional<InitialWeights> weights_;
  std::unique_ptr<RunDirectory> directory_;  // of rank 0
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<TrainStep> train_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::unique_ptr<MetricsFile> metrics_;  // of rank 0
  std::unique_ptr<RunConstants> constants_;
  std::unique_ptr<SampleCounter> samples_;
  TrainingState state_;
  std::string initial_values_;
  int64_t checkpoint_bytes_ = 0;
  StepTimer timer_;
  std::array<AskedStep, TrainStep::kMostOpen> asked_;
  int64_t next_step_ = 0;  // to be asked for
  uint64_t ids_hash_ = 0;  // of all ids that were asked for
  double started_ = 0, waited_ = 0, last_line_ = 0, last_save_ = 0;
  double step_began_ = 0;  // when the last step ended, or the run went on
  int64_t first_step_ = 0, saved_step_ = -1;
};

}  // namespace overtok
