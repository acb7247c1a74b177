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
            Memory* memory);
  // For a program that does not train: `model` was built with OptionsOf(config).
  Evaluator(const Config& config, Transformer* model, ParameterSet* parameters, Memory* memory);
  static TransformerOptions OptionsOf(const Config& config);

  // Scores all subsets. Sums are formed window by window, so that the number of windows per pass
  // changes no more than the rounding of products. A Cancelled error when `should_stop` said so
  // between two passes.
  // With moment.log_inclusion, HasAdjustedCurve(config) must hold; those scores follow as
  // collections of their own, `adjusted`.
  absl::StatusOr<EvaluationScores> Run(const Context& context, const EvaluationData& data,
                                       const EvaluationMoment& moment,
                                       const std::function<bool()>& should_stop);

 private:
  // Sums of one way of scoring a subset.
  struct Sums {
    SubsetScore score;
    double bytes = 0, levanter_sum = 0;
    // Of the group of windows that is under way: what levanter calls a batch.
    double group_loss = 0, group_weight = 0, group_bytes = 0;
  };
  // One score, or two where the windows are scored twice.
  absl::StatusOr<std::vector<SubsetScore>> Score(const Context& context,
                                                 const EvaluationCollection& collection,
                                                 const EvaluationSubset& subset,
                                                 const EvaluationMoment& moment,
                                                 const std::function<bool()>& should_stop,
                                                 const std::function<void(int64_t)>& windows_done);
  // Adds windows [first, first + count) of the pass that was just scored.
  void AddPass(const EvaluationCollection& collection, const EvaluationSubset& subset,
               int64_t first, int64_t count, Sums* sums) const;
  void FillRow(const ShardIdentity& identity, const EvaluationSubset& subset, int64_t window,
               int64_t row);

  Config config_;
  ParameterSet* parameters_;
  std::unique_ptr<Transformer> owned_;
  Transformer* model_;
  Tensor inclusion_;  // [V] f32; undefined without an adjusted curve
  Batch batch_;
};

}  // namespace overtok
