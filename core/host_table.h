// HostTable: a hashed table whose values and state lie in host memory that ops reach
// (Memory::TakeOnHost), and copies on the device of the rows that a step touches. A step works on
// copies alone: rows come over the bus while the step before runs, and go back while the next one
// runs. There are two sets of copies, of a step and of the one before it; what is as large as the
// table exists once, in host memory. Bits are those of a table on the device.
//
// Rows of step k, in the set k mod 2, are `fresh`, if step k - 1 does not touch them, or `kept`. On
// the two streams, in the order in which BringRows asks for it:
//
//   side                                           main
//                                                  ... step k - 1, its update
//   S1  lists of step k
//   S2  fresh rows: host memory -> set k
//                                                  M1  Follow(side)
//                                                  M2  kept rows: set k - 1 -> set k
//   S3  Follow(main)
//   S4  all rows of step k - 1: set k - 1 -> host
//                                                  ... step k, its update
//
// S2 has nothing to wait for but S4 of the step before: the host asks for step k while step k - 1
// runs, and so rows come meanwhile. Why every value is read as it was written last:
//   - S2 of k reads rows of host memory that step k - 1 does not touch. The last steps that did
//     wrote them back in S4 of k - 1 (step k - 2) or before, which lie before it on the side
//     stream.
//   - M2 of k reads set k - 1 behind the update of step k - 1 (main), S4 of k the same by S3.
//   - Step k reads set k behind M2 (main) and, by M1, behind S2.
//   - S2 of k writes set k, which is set k - 2. Its readers lie before: M2 of k - 1 by S3 of k - 1,
//     S4 of k - 1 by the side stream's order; M2 of k, which writes there, too, by M1.
//   - S1 of k overwrites lists of step k - 1: S2's and S4's readers lie before it on the side
//     stream, M2's by S3.
//   - S2 and M2 of k write different rows of set k, and may overlap.
// Whatever else reads the table (evaluations, checkpoints, traces) calls Settle first, and whatever
// writes it Forget.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/ops/table.h"
#include "core/tensor.h"

namespace overtok {

class HostTable {
 public:
  // table: a rank's part, its tensors in host memory that ops reach, on a device with memory of its
  // own. capacity: rows that a step touches at most.
  HostTable(absl::string_view name, const TableState& table, int64_t capacity, Memory* memory);
  HostTable(const HostTable&) = delete;
  HostTable& operator=(const HostTable&) = delete;

  // What the next step touches: [U] u32 of the part, ascending and distinct. Nothing of the step
  // before changes until BringRows; naming again replaces.
  void Name(const Tensor& rows);

  // Brings copies of the rows named to the device, for all tables of a model together; returns what
  // the step before has changed. Does not wait. Every table has been named.
  static void BringRows(const Context& context, std::span<HostTable* const> tables);

  // The copies of the step; row i is that of the i-th row named. Its `numbers` are for the caller
  // to give: the rows named, on the device.
  const TableState& copies() const { return sets_[current_]; }
  // 0, 1, ..., the rows of the copies that the step uses, on the device.
  Tensor places() const { return identity_.Rows(0, held_count_); }

  // What steps have changed is in host memory for whatever `context` is asked for from now on.
  void Settle(const Context& context);
  // The table is written by others from now on: what steps have changed and did not come back yet
  // is dropped, what is under way is done for whatever the main stream is asked for from now on,
  // and the next step takes all of its rows anew.
  void Forget();

 private:
  void CopyFresh(const Context& context) const;
  void CopyKept(const Context& context) const;
  void CopyBack(const Context& context) const;
  void Commit();  // the named rows are the copies'

  Device* device_;
  TableState table_;
  std::array<TableState, 2> sets_;
  size_t current_ = 0;       // the set of the last step
  bool pending_ = false;     // its rows have not gone back
  bool behind_main_ = true;  // the table was written on the main stream since the last step
  int64_t held_count_ = 0, fresh_count_ = 0, kept_count_ = 0, named_count_ = -1;
  // Inputs, [capacity] u32: rows of the part in the current set; of the rows named those that have
  // to come, and where to; places of others in the current set, and where to.
  Tensor held_, fresh_, fresh_to_, kept_, kept_to_;
  Tensor named_;     // [capacity] u32, for the host alone
  Tensor identity_;  // [capacity] u32 on the device
};

}  // namespace overtok
