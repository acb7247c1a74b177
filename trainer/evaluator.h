// Evaluation: every window of every subset through the model's forward pass with its main head, the
// full softmax and the current weights, whatever the training loss is. Segments and weights come
// from the same function as in training. No logits of a whole window are kept; rows of tables are
// brought up to date on the way out and nothing is written back, so that the number of evaluations
// changes no bit of the training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "data/batch.h"
#include "model/transformer.h"
#include "trainer/config/config.h"
#include "trainer/evaluation_data.h"
#include "trainer/evaluation_scores.h"

namespace overtok {

// What an evaluation is told beside the weights.
struct EvaluationMoment {
  EvaluationContext model;  // tables as of the steps taken, pass, scrambling
  // [V] log pi_c: every window is scored a second time with these added to the logits
  // (inclusion.h). Empty: once only.
  std::vector<float> log_inclusion;
};

// Whether evaluations inside a sampled stage have a second curve: eval.inclusion_adjusted, and
// candidates that training does not correct for already.
bool HasAdjustedCurve(const Config& config);

class Evaluator {
 public:
  // Buffers beside those of `trained`, over the same parameters; windows per pass:
  // train.micro_batch_sequences. In a dry Memory it can only be planned.
  Evaluator(const Config& config, const Transformer& trained, ParameterSet* parameters,
            const Mesh* mesh, Memory* memory);
  // For a program that does not train: `model` was built with OptionsOf(config).
  Evaluator(const Config& config, Transformer* model, ParameterSet* parameters, const Mesh* mesh,
            Memory* memory);
  static TransformerOptions OptionsOf(const Config& config);

  // Collective. Scores all subsets, the same bits on every rank. Passes are dealt round the data
  // ranks, sums are formed window by window in the order of windows, so that neither the number of
  // windows per pass nor that of ranks changes more than the rounding of products. A Cancelled
  // error when `should_stop` said so between two passes, on all ranks alike.
  // With moment.log_inclusion, HasAdjustedCurve(config) must hold; those scores follow as
  // collections of their own, `adjusted`.
  absl::StatusOr<EvaluationScores> Run(const Context& context, const EvaluationData& data,
                                       const EvaluationMoment& moment,
                                       const std::function<bool()>& should_stop);

 private:
  // Sums over one window.
  struct WindowSums {
    double loss = 0, weight = 0, bytes = 0, levanter_bytes = 0;
  };
  // One score, or two where the windows are scored twice.
  absl::StatusOr<std::vector<SubsetScore>> Score(const Context& context,
                                                 const EvaluationCollection& collection,
                                                 const EvaluationSubset& subset,
                                                 const EvaluationMoment& moment,
                                                 const std::function<bool()>& should_stop,
                                                 const std::function<void(int64_t)>& windows_done);
  // Windows [first, first + count) of the pass that was just scored.
  void AddPass(const EvaluationCollection& collection, const EvaluationSubset& subset,
               int64_t first, int64_t count, const Context& context,
               std::vector<WindowSums>* windows);
  SubsetScore Sum(const EvaluationCollection& collection, const EvaluationSubset& subset,
                  std::vector<WindowSums>* windows) const;
  void FillRow(const ShardIdentity& identity, const EvaluationSubset& subset, int64_t window,
               int64_t row);

  Config config_;
  ParameterSet* parameters_;
  const Mesh* mesh_;
  std::unique_ptr<Transformer> owned_;
  Transformer* model_;
  std::vector<float> losses_;  // per token of a pass
  Tensor inclusion_;           // [V] f32; undefined without an adjusted curve
  Batch batch_;
};

}  // namespace overtok
