// What the first block reads: x_t = (E[token] + sum over tables of W_q table_q[row_q]) / (1 +
// number of tables), the published over-encoding (docs/methods/ngram_embedding.md); without tables
// E[token]. Gradients of tables leave by touched rows; no tensor of a table's size is made. In a
// tensor group each rank looks all tokens up in its rows of E, and its share of them in the tables.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "model/block.h"
#include "model/config.h"
#include "model/step_ids.h"
#include "model/table_exchange.h"
#include "model/token_shards.h"
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

class InputEmbedding {
 public:
  // `own_rows`: windows of this rank in a step. `gradients`: null where nothing is trained.
  InputEmbedding(const ModelConfig& config, Parameter* embedding,
                 std::vector<NgramParameters> tables, int64_t own_rows, const PassShape& pass,
                 DType act, const Mesh* mesh, const TokenShards* tokens, GradientSum* gradients,
                 Memory* memory);

  // Collective. Names the rows that this rank reads in a step, or in an evaluation pass, in every
  // table. An error where a rank is asked for more than it has room for, the same on all ranks.
  absl::Status Name(const StepIds& ids);
  // Collective, once the rows are up to date: they set out, and the first Forward waits for them.
  // `reading`: of an evaluation.
  void Fetch(const Context& context, const TableReading* reading);

  // x: [U, d] act, of this rank's share of the micro-batch that begins at its own position `first`.
  // `reading`: of an evaluation; null in training, where the rows read reflect all steps before
  // this one.
  void Forward(const Context& context, const StepIds& ids, int64_t first,
               const TableReading* reading, const Tensor& x);
  // After Forward of the same positions; collective in the step's last micro-batch, in which
  // gradients of tables' rows set out. dx: [U, d] act.
  void Backward(const Context& context, const StepIds& ids, int64_t first, const Tensor& dx);
  // Collective, after the last micro-batch: waits for other ranks' gradients and sums them.
  void ReturnGradients(const Context& context);

 private:
  // Of one table.
  struct Source {
    std::unique_ptr<TableExchange> exchange;
    // [own U] u32: rows of the logical table that this rank's tokens read; and where they lie among
    // the named ones, in training and over several ranks
    Tensor rows, slots;
    TouchedRows named;  // in evaluation over several ranks
    Tensor gathered;    // [U, w] act
  };
  bool training() const { return gradients_ != nullptr; }
  // From a position of this rank's windows to one of its shares.
  int64_t ShareOf(int64_t first) const { return first / tokens_->ranks(); }

  Parameter* embedding_;
  std::vector<NgramParameters> tables_;
  const TokenShards* tokens_;
  GradientSum* gradients_;
  double scale_ = 1;                     // 1 / (1 + tables)
  double table_scale_ = 1;               // the same over 1 - row_dropout in training
  std::vector<RowSlots> slots_builder_;  // none, or one for all tables
  std::vector<Source> sources_;
  Tensor whole_;       // [T, d] act of several ranks: this rank's rows of all tokens
  Tensor d_gathered_;  // [U, w] act
};

}  // namespace overtok
