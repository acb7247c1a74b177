// Parameters: what a model owns. Each one declares its name, logical shape, placement, optimizer
// group, update kind and initialiser; nothing is decided from substrings of names or from local
// shapes. What only tables need has the value of a dense parameter where it is not given.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/host_table.h"
#include "core/memory.h"
#include "core/ops/table.h"
#include "core/sharding.h"
#include "core/tensor.h"

namespace overtok {

// Where the elements of a parameter live on the mesh of ranks (core/comm/mesh.h). Whatever it is,
// the gradient of a logical element is the sum over all ranks that hold it: replicated parameters
// are used on shares of the tokens or of the heads, never twice on the same.
enum class Placement : uint8_t {
  kReplicated,      // whole on every rank
  kTensorRows,      // dimension 0 in ranges over the tensor axis
  kTensorColumns,   // dimension 1 in ranges over the tensor axis
  kVocabularyRows,  // dimension 0 over the tensor axis by the vocabulary's owner map
  kTableRows,       // dimension 0 over all ranks, in scattered blocks
};

enum class OptimizerGroup : uint8_t { kMuonH, kAdamH, kAdam };
inline constexpr int kOptimizerGroups = 3;
const char* NameOf(OptimizerGroup group);  // "muonh", "adamh", "adam"

// How a parameter's gradient is kept and its update made.
enum class UpdateKind : uint8_t {
  kDense,
  kTable,  // by touched rows: no dense gradient exists; in the group adam and its clip norm
};

enum class Initializer : uint8_t {
  kOnes,    // norm gains
  kNormal,  // Z * scale, Z standard normal truncated to [-3, 3] (docs/model.md)
};

struct ParameterSpec {
  std::string name;
  Shape shape;
  Placement placement;
  OptimizerGroup group;
  Initializer initializer;
  double scale;  // of kNormal; ignored by kOnes
  // Of kTensorRows and kTensorColumns: the divided dimension is so many equal groups that are never
  // divided (attention heads). Fewer groups than ranks: each group is held by several. 0: none.
  int64_t groups = 0;
  UpdateKind update = UpdateKind::kDense;
  int64_t touched_capacity = 0;  // of kTable: rows that one step can touch at most
  bool freezes = false;          // of kTable: optimizer.tables.freeze_step stops its gradient
  bool used_twice = false;       // of kDense: two places of the model add to its gradient (tied)
};

// What tables keep beside their values; one choice for all tables of a model
// (optim/table_schedule.h makes it from the configuration).
struct TableStorage {
  DType value = DType::kF32;  // kF32 or kBF16
  bool first_moment = true;
  enum class SecondMoment : uint8_t { kNone, kRow, kElement };
  SecondMoment second_moment = SecondMoment::kElement;
  bool last_step = true;
  // Beside a device with memory of its own: parameters whose values and state lie in host memory.
  bool all_in_host_memory = false;
  std::vector<std::string> in_host_memory = {};
};

// Rows of a table in the current step, and their gradient.
struct TouchedRows {
  Tensor rows;      // [capacity] u32, an input; the first `count` ascending and distinct
  Tensor gradient;  // [capacity, w] f32, like Parameter::gradient; rows [0, count) count
  int64_t count = 0;
  Tensor used() const { return rows.Rows(0, count); }
  Tensor used_gradient() const { return gradient.Rows(0, count); }
};

// All tensors are this rank's part, LocalShape(sharding, spec.shape).
struct Parameter {
  ParameterSpec spec;
  Sharding sharding;
  int64_t replicas = 1;  // ranks of one tensor group that hold the same part (next to each other)
  Tensor value;          // f32 master weights
  // f32; after the last micro-batch this rank's sum over its micro-batches, already divided by the
  // global weight sum (core/gradient_sum.h)
  Tensor gradient;
  Tensor compute;  // what products read: `value` itself in f32 runs, a bf16 copy in bf16 runs
  // Whether this step reads `compute`: a head that samples gathers rows of `value` in its place.
  bool compute_needed = true;
  // Of kTable; `gradient` is undefined then, and `value` reflects each row's own last step.
  TableState table;  // value included
  // What this rank reads in the step (rows of the logical table), and what ranks read of this
  // rank's part (rows of the part). On one rank both are the same tensors.
  TouchedRows touched, owned;
  // Of kTable beside a device with memory of its own: value and state lie in host memory. A step
  // then works on copies, where it trains.
  bool in_host_memory = false;
  std::unique_ptr<HostTable> copies;

  // What ops of a training step, on the device, read and write of a table, and the places there of
  // the rows of `owned`.
  TableState step_table(const Context& context) const;
  Tensor step_rows(const Context& context) const;
  // Before anything but a step reads a table (core/host_table.h): it holds what all steps asked for
  // have changed, for whatever `context` is asked for from now on.
  void Settle(const Context& context) const {
    if (copies != nullptr) copies->Settle(context);
  }
  // Before anything but a step writes it.
  void Forget() const {
    if (copies != nullptr) copies->Forget();
  }

  bool is_table() const { return spec.update == UpdateKind::kTable; }
  Region region() const { return Region::Part(spec.shape, sharding); }
};

// How `spec` is divided, as this rank of `layout` sees it, and by how many ranks of a tensor group
// each part is held.
Sharding ShardingOf(const ParameterSpec& spec, const Layout& layout);
int64_t ReplicasOf(const ParameterSpec& spec, const Layout& layout);

// Initial values of the elements that `region` names, into `values` (f32 or bf16): a pure function
// of (seed, name, logical element), so that they are the same under any layout. device: where the
// values lie; null: host memory.
void DrawInitialValues(const ParameterSpec& spec, uint64_t seed, const Region& region,
                       const Tensor& values, Device* device);

// The parameters of a model in their fixed order (the order of checkpoints, traces and norms).
class ParameterSet {
 public:
  // `compute`: kF32 or kBF16. `with_gradients` false for evaluation-only programs.
  ParameterSet(Memory* memory, DType compute, bool with_gradients, TableStorage tables = {},
               const Layout& layout = {})
      : memory_(memory),
        compute_(compute),
        with_gradients_(with_gradients),
        tables_(std::move(tables)),
        layout_(layout) {}
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // Takes the tensors and returns a reference that stays valid. `matrix_product`: products read it,
  // so that a bf16 run keeps a bf16 copy (norm gains and lookup tables need none). Two parameters
  // of one name are a bug.
  Parameter& Add(ParameterSpec spec, bool matrix_product);

  Parameter* Find(absl::string_view name);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  int64_t elements() const;  // of the logical parameters
  DType compute_dtype() const { return compute_; }
  const Layout& layout() const { return layout_; }

  // Initial values: a pure function of (seed, name, global index).
  void Initialize(uint64_t seed);
  // Rewrites the bf16 copies from the master weights, all of them or those that this step reads;
  // nothing to do in f32 runs.
  enum class Copies : uint8_t { kAll, kNeeded };
  void RefreshComputeCopies(const Context& context, Copies copies = Copies::kAll);
  // Before a step names what it reads.
  void StartStep();
  // Once it has named them, before they are caught up with: brings rows of tables in host memory.
  // Call once a step. Does not wait.
  void BringRows(const Context& context);
  // Parameter::Settle of all tables: before `values` or `table_states` are read.
  void Settle(const Context& context) const;
  // Before they are written by anything but a step or this class: no copies of rows count any more.
  void Forget() const;
  // Values of all parameters as this rank holds them.
  std::vector<ShardedTensor> values() const;
  // State of all tables: "table.m/<parameter>", "table.v/...", "table.last/...", as far as kept.
  // Part of a checkpoint; without it a table cannot be read.
  std::vector<ShardedTensor> table_states() const;
  // Gives a table fresh initial values (a pure function of (seed, name, pass, index)) and no
  // moments, as of the state after `step` steps.
  void ReinitializeTable(Parameter& parameter, uint64_t seed, int64_t pass, int64_t step) const;

 private:
  void TakeTable(const ParameterSpec& spec, Parameter* parameter);

  Memory* memory_;
  DType compute_;
  bool with_gradients_;
  TableStorage tables_;
  Layout layout_;
  std::deque<Parameter> parameters_;
};

}  // namespace overtok
