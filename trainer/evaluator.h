// Evaluation: every window of every subset through the model's forward pass with its main head, the
// full softmax and the current weights, whatever the training loss is. Segments and weights come
// from the same function as in training. No logits of a whole window are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

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

class Evaluator {
 public:
  // Buffers beside those of `trained`, over the same parameters; windows per pass:
  // train.micro_batch_sequences. In a dry Memory it can only be planned.
  Evaluator(const Config& config, const Transformer& trained, ParameterSet* parameters,
            Memory* memory);
  // For a program that does not train: `model` was built with `training` false and pass shape
  // PassOf(config).
  Evaluator(const Config& config, Transformer* model, ParameterSet* parameters, Memory* memory);
  static PassShape PassOf(const Config& config);

  // Scores all subsets. Sums are formed window by window, so that the number of windows per pass
  // changes no more than the rounding of products. A Cancelled error when `should_stop` said so
  // between two passes.
  absl::StatusOr<EvaluationScores> Run(const Context& context, const EvaluationData& data,
                                       const std::function<bool()>& should_stop);

 private:
  absl::StatusOr<SubsetScore> Score(const Context& context, const EvaluationCollection& collection,
                                    const EvaluationSubset& subset,
                                    const std::function<bool()>& should_stop,
                                    const std::function<void(int64_t)>& windows_done);
  void FillRow(const ShardIdentity& identity, const EvaluationSubset& subset, int64_t window,
               int64_t row);

  Config config_;
  ParameterSet* parameters_;
  std::unique_ptr<Transformer> owned_;
  Transformer* model_;
  MicroBatch micro_;
  Batch batch_;
};

}  // namespace overtok
