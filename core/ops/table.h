// Row-sparse updates of hashed tables. A row carries the number of steps its state reflects; what a
// dense optimizer would have done to it since is replayed when the row is touched, so that a step
// reads and writes touched rows only. Formulas and their derivation:
// docs/methods/table_optimizers.md. No tensor of a table's size is read or made here.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/ops/optimizer.h"
#include "core/tensor.h"

namespace overtok {

// Letters: R rows, w width, U touched rows, N steps of the run.
struct TableRule {
  enum class Kind : uint8_t { kAdam, kAdagrad, kSgd };
  Kind kind = Kind::kAdam;
  double beta1 = 0, beta2 = 0;  // of kAdam
  double eps = 0;               // of kAdam and kAdagrad
};

// A table and its optimizer state. The second moment is one number a row where v has rank 1.
struct TableState {
  Tensor value;  // [R, w] f32 or bf16 (f64)
  Tensor m;      // [R, w] f32 (f64); undefined: no first moment is kept
  Tensor v;      // [R, w] or [R] f32 (f64); undefined with kSgd
  Tensor last;   // [R] u32: steps that the row reflects; undefined: silent steps change nothing
};

// What the silent steps [last, step) do to a row, indexed by `last` or by a count of steps; made by
// optim/table_schedule.h. All f64. For one element with first moment m and second moment v:
//   value <- kept[last] value - (m / sqrt(v)) (moved[last] - (eps / sqrt(v)) moved_eps[last])
//   m <- power1[step - last] m;  v <- power2[step - last] v
// where eps is small beside sqrt(v); elements where it is not are replayed step by step from
// `rate`. Elements with m = 0 are only scaled by kept.
struct TableReplay {
  int64_t step = 0;
  Tensor moved, moved_eps, kept;  // [N + 1], entries [0, step] are valid
  Tensor power1, power2;          // [N + 1]
  Tensor rate;                    // [N] rate of each step, schedule and lr_scale included
  double decay = 0;               // untouched_decay: kept is a product of 1 - rate decay
};

// Brings rows to the state before step replay.step, in place: value, m, v and last are rewritten.
// rows: [U] u32, ascending, each once. random_key: of stochastic rounding where values are bf16;
// the random bits of an element are a pure function of (key, row, column, replay.step).
struct TableReplayArgs {
  TableState state;
  TableRule rule;
  TableReplay replay;
  Tensor rows;
  uint64_t random_key = 0;
};
void TableReplayRows(const Context& context, const TableReplayArgs& args);

// y[i] = row ids[i] as TableReplayRows would leave it (without rounding to bf16 storage), written
// nowhere else. ids: [T] u32, any order, repeats allowed; y: [T, w] f32, bf16 (f64).
struct TableLookupArgs {
  TableState state;
  TableRule rule;
  TableReplay replay;
  Tensor ids, y;
};
void TableLookup(const Context& context, const TableLookupArgs& args);

// Step `step` on rows that reflect all steps before it; afterwards they reflect it too.
// gradient: [U, w] f32 (f64), not yet clipped; constants.correction1/2 of this step.
struct TableUpdateArgs {
  TableState state;
  TableRule rule;
  Tensor rows, gradient;
  Clip clip;
  AdamConstants constants;
  double rate = 0;
  int64_t step = 0;
  uint64_t random_key = 0;
};
void TableUpdate(const Context& context, const TableUpdateArgs& args);

}  // namespace overtok
