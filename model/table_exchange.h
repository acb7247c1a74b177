// TableExchange: one hashed table whose rows are divided over all ranks (Split::kScattered). In
// every step each rank names the rows that its tokens read; ids go to the owners, rows come back,
// and after the backward pass gradients of named rows go to the owners and are summed there in the
// order of core/gradient_sum.h's tree over data ranks, then over tensor ranks. Only named rows
// travel, each once a step and rank, while other work runs; no rank ever holds a dense gradient. On
// one rank nothing is copied: rows are read from the table itself. Of a table in host memory
// (core/host_table.h) steps read and serve the rows' copies. docs/methods/table_optimizers.md.
//
// A training step, for every table, on every rank, whether it reads rows or not:
//   RowSlots::Fill(ids, &table->touched, slots)
//   Name(table->touched.used(), slots)         what owners are asked for
//   ParameterSet::BringRows                    copies of rows of tables in host memory
//   Optimizer::CatchUp                         table->owned to the state before the step
//   Fetch(context, nullptr)                    rows set out
//   Read(...) in the forward passes            the first waits for them
//   gradients by `slots` into table->touched.gradient
//   StartReturn                                they are complete and set out
//   ReturnGradients                            table->owned.gradient is the sum over all ranks
//   Optimizer::ComputeNorms, Step              on table->owned
// An evaluation pass: Name with lists of its own (TouchedRows without a gradient), Fetch and Read
// with the TableReading; nothing of the table, of `touched` or of `owned` changes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"

namespace overtok {

// Rows that a part has room to serve in one step, those that several ranks ask for counted for
// each: the mean of an even spread (asked_by_each) and half of it more, plus 16,384, at most what
// can be asked for. Blocks are scattered by a hash, so that more than that is not met with real
// data; it is an error. local_rows: of the part.
int64_t ServedCapacity(int64_t local_rows, int64_t ranks, int64_t asked_by_each);
// The distinct rows among them: at most what is there.
int64_t OwnedCapacity(int64_t local_rows, int64_t ranks, int64_t asked_by_each);

// How rows that reflect different steps are read without changing them (evaluation).
struct TableReading {
  TableRule rule;
  TableReplay replay;
};

// Rows of a step between this rank and the others, its own part left out.
struct TableCounts {
  int64_t asked = 0;   // that it asked of others
  int64_t served = 0;  // that others asked of it
};
// Bytes that a rank sends for one table and step (Traffic::kTables):
//   4 ranks (ranks - 1)   what every rank asks of every part, u32, to all
//   4 asked               ids, u32
//   served w s            rows; s: bytes of an element, 4 in an evaluation
//   4 asked w             in training: gradients, f32
// One rank sends nothing.
int64_t TableBytesSent(const TableCounts& counts, int64_t ranks, int64_t width, DType value,
                       bool training);

class TableExchange {
 public:
  // `asked`: distinct rows that this rank asks for at most in one step or evaluation pass; the same
  // on all ranks. In training table->owned gets its tensors here. `table` and `mesh` must outlive
  // the exchange.
  TableExchange(Parameter* table, const Mesh* mesh, int64_t asked, bool training, Memory* memory);
  // Waits for what is under way, as Name does: a step may be given up at any point that is the same
  // on all ranks.
  ~TableExchange() { WaitForAll(); }
  TableExchange(const TableExchange&) = delete;
  TableExchange& operator=(const TableExchange&) = delete;

  // One rank: rows lie in the table itself. An evaluation then needs no slots, and Name and Fetch
  // have nothing to do.
  bool direct() const { return ranks_ == 1; }

  // Collective. rows: [U] u32 of the logical table, ascending and distinct: what this rank reads,
  // in training table->touched.used(). slots: [P] u32 into `rows`, or kNoRow; with several ranks
  // they are rewritten: what Fetch brings, and table->touched.gradient, are ordered by owner first
  // (so that both travel as they lie), and a slot is a row of these two. In training owners get the
  // distinct rows of their part that any rank reads: table->owned.rows (of the part), ascending. An
  // error when a part is asked for more than it has room for, the same on all ranks (IsAgreed).
  absl::Status Name(const Tensor& rows, const Tensor& slots);

  // Collective, after the owners have brought table->owned up to date (Optimizer::CatchUp), or with
  // `reading`, of an evaluation (and only there): asks for the values of the named rows. Does not
  // wait for them.
  void Fetch(const Context& context, const TableReading* reading);

  // y[t] = the value of row ids[t], zeros for kNoRow; rounded to y's dtype once. ids, slots: [T]
  // u32, equal stretches of the logical rows and of the slots after Name (one rank: slots may be
  // undefined). reading: as in Fetch. y: [T, w] f32 or bf16. Not collective.
  void Read(const Context& context, const Tensor& ids, const Tensor& slots,
            const TableReading* reading, const Tensor& y);

  // Collective, in training, as soon as the last micro-batch's gradient is asked for: sends
  // table->touched.gradient to the owners, and does not wait. It must not change, nor rows be read,
  // before ReturnGradients.
  void StartReturn();
  // Collective, in training, after the last micro-batch, starts what StartReturn did not:
  // table->owned.gradient of the owners, over data ranks the tree of core/gradient_sum.h, for each
  // tensor rank; then these sums in the order of tensor ranks. A rank that does not name a row
  // counts as zeros. May be left out where no gradient is wanted, by all ranks.
  void ReturnGradients(const Context& context);

  // Of the last Name.
  TableCounts counts() const;

 private:
  struct Stretch {
    int64_t begin = 0, count = 0;  // rows of a list
  };
  void TakeBuffers(int64_t asked, Memory* memory);
  // Fills asked_ids_ and `places`, rewrites slots.
  void OrderByOwner(const Tensor& rows, const Tensor& slots);
  // All ranks' counts; from them served_from_.
  absl::Status ShareCounts();
  // table->owned.rows and what is summed into each.
  void MergeLists();
  // rows of a rank by world rank: [U, ...] of what it asked for, [served, ...] of what others did.
  Request StartExchange(const Tensor& asked, const Tensor& served, bool to_owners);
  void WaitForAll();
  int64_t served() const;
  // Of a table in host memory, in training.
  HostTable* copies() const { return training_ ? table_->copies.get() : nullptr; }

  Parameter* table_;
  const Mesh* mesh_;
  bool training_;
  int64_t ranks_;
  int64_t asked_capacity_ = 0, served_capacity_ = 0;
  int64_t asked_count_ = 0;
  std::vector<Stretch> asked_of_;      // by owner, in the list of this rank
  std::vector<Stretch> served_from_;   // by who asks: tensor ranks in order, of each its data ranks
  std::vector<int64_t> served_begin_;  // of the same, in that order, and the end
  Request fetch_, return_;             // under way, or nothing
  bool returning_ = false;             // StartReturn was called in this step

  Tensor counts_;     // [ranks, ranks] u32: asked by a rank of a part
  Tensor asked_ids_;  // [asked] u32: rows of the owners' parts, by owner
  Tensor places_;     // [asked] u32: where the ascending list's rows lie in it
  // [served] u32: rows of this part, by who asks; of a table in host memory, once they are merged,
  // their places in owned.rows
  Tensor served_ids_;
  Tensor fetched_;  // [asked, w] of the table's dtype; f32 in an evaluation
  Tensor served_;   // [served, w] f32: values to send, gradients that came
  Tensor sort_;     // [2, served] u64: (row, place in served_), and room to sort them
  Tensor starts_;   // [owned + 1] u32: where the contributions to an owned row begin in
  const uint64_t* contributions_ = nullptr;  // the sorted pairs, in sort_
};

}  // namespace overtok
