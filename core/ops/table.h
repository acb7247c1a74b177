// Row-sparse updates of hashed tables. A row carries the number of steps its state reflects; what a
// dense optimizer would have done to it since is replayed when the row is touched, so that a step
// reads and writes touched rows only. Formulas and their derivation:
// docs/methods/table_optimizers.md. No tensor of a table's size is read or made here; offsets are
// 64-bit.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/ops/optimizer.h"
#include "core/sharding.h"
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
  // Rows R are part of a logical table, by rows: the random bits of a row follow its number there.
  Sharding sharding = {};
  int64_t logical_rows = 0;  // 0: R, which is the whole table
  // [R] u32: rows here are copies of these rows of the part (core/host_table.h); undefined: of all
  // rows of the part, in their order.
  Tensor numbers = {};
};

// What the silent steps [last, step) do to a row, indexed by `last`, by a count of steps or by a
// step; made by optim/table_schedule.h. All f64, [N + 1]. For one element with first moment m and
// second moment v, s = sqrt(v) and e = eps / s:
//   value <- kept[last] value - (m / s) (moved[last] - e (moved_eps[last] - e moved_eps2[last]))
//   m <- power1[step - last] m;  v <- power2[step - last] v
// where v >= series_from[last]; elsewhere the first `window` silent steps are added up one by one,
// with i = last + j - 1 for the j-th of them:
//   value <- kept[last] value - m sum_i gain[i] power1[j] kept[i + 1] / (s root_power2[j] root[i] +
//   eps)
// Elements with m = 0 are only scaled by kept.
struct TableReplay {
  int64_t step = 0;  // at most N, the steps of the run
  // Silent steps that can move a row; the rest is below rounding in f64, in f32.
  int64_t window = 0, window_f32 = 0;
  // Entries [0, step] are valid.
  Tensor moved, moved_eps, moved_eps2, series_from, kept;
  // beta1^j, beta2^j, beta2^(j/2) of j steps.
  Tensor power1, power2, root_power2;
  // Rate of a step over its first bias correction; 1 / sqrt of its second one.
  Tensor gain, root;
};

// The same with its tensors, which are inputs, on the device.
TableReplay OnDevice(const Context& context, const TableReplay& replay);

// Brings rows to the state before step replay.step, in place: value, m, v and last are rewritten.
// rows: [U] u32, ascending, each once. random_key: of stochastic rounding where values are bf16;
// the random bits of an element are a pure function of (key, row of the logical table, column,
// replay.step). Rows whose `last` is the step already are left as they are, and all where halted
// (Clip::halted) says so.
struct TableReplayArgs {
  TableState state;
  TableRule rule;
  TableReplay replay;
  Tensor rows;
  uint64_t random_key = 0;
  Tensor halted = {};
};
void TableReplayRows(const Context& context, const TableReplayArgs& args);

// y[i] = row ids[i] as TableReplayRows would leave it (without rounding to bf16 storage), written
// nowhere else. ids: [T] u32, any order, repeats allowed, kNoRow gives zeros; y: [T, w] f32, bf16
// (f64).
struct TableLookupArgs {
  TableState state;
  TableRule rule;
  TableReplay replay;
  Tensor ids, y;
};
void TableLookup(const Context& context, const TableLookupArgs& args);

// Step `step` on rows that reflect all steps before it (another `last` aborts); afterwards they
// reflect it too. gradient: [U, w] f32 (f64), not yet clipped; constants.correction1/2 of this
// step; betas and eps are the rule's.
//   kAdam     m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
//             value <- value - rate (m / correction1) / (sqrt(v / correction2) + eps)
//   kAdagrad  v <- v + g^2;  value <- value - rate g / (sqrt(v) + eps)
//   kSgd      value <- value - rate g
// g^2 is the row's mean of g^2 where v has rank 1; 0 / (0 + eps) = 0. Where clip.halted says so
// nothing is read or written.
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
