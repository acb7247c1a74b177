// What the first block reads: x_t = (E[token] + sum over tables of W_q table_q[row_q]) / (1 +
// number of tables), the published over-encoding (docs/methods/ngram_embedding.md); without tables
// E[token]. Gradients of tables leave by touched rows; no tensor of a table's size is made.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "model/config.h"
#include "model/step_ids.h"
#include "model/touched_rows.h"

namespace overtok {

// Parameters of one input table: [R, w] and [d, w].
struct NgramParameters {
  Parameter* table;
  Parameter* proj;
};

// Declares ngram.{t}.table.weight and ngram.{t}.proj.weight. `touched`: positions of a step; 0
// where nothing is trained.
std::vector<NgramParameters> DeclareNgramEmbedding(const ModelConfig& config, int64_t touched,
                                                   ParameterSet* parameters);

// How an evaluation reads tables whose rows reflect different steps.
struct TableReading {
  TableRule rule;
  TableReplay replay;
};

class InputEmbedding {
 public:
  // `positions`: of a step; `pass_tokens`: T of a micro-batch.
  InputEmbedding(const ModelConfig& config, Parameter* embedding,
                 std::vector<NgramParameters> tables, int64_t positions, int64_t pass_tokens,
                 DType act, bool training, Memory* memory);

  // Names the rows that this step touches in every table; clears their gradient.
  void BeginStep(const Context& context, const StepIds& ids);

  // x: [T, d] act, of the positions [first, first + T) of the step. `reading`: of an evaluation;
  // null in training, where the touched rows reflect all steps before this one.
  void Forward(const Context& context, const StepIds& ids, int64_t first,
               const TableReading* reading, const Tensor& x);
  // After Forward of the same positions. dx: [T, d] act.
  void Backward(const Context& context, const StepIds& ids, int64_t first, const Tensor& dx);

 private:
  Parameter* embedding_;
  std::vector<NgramParameters> tables_;
  double scale_ = 1;                     // 1 / (1 + tables)
  double table_scale_ = 1;               // the same over 1 - row_dropout in training
  std::vector<RowSlots> slots_builder_;  // none, or one for all tables
  std::vector<Tensor> slots_;            // per table: [positions] u32 into its touched rows
  std::vector<Tensor> gathered_;         // per table: [T, w] act
  Tensor d_gathered_;                    // [T, w] act
};

}  // namespace overtok
