// Parameters: what a model owns. Each one declares its name, logical shape, placement, optimizer
// group, update kind and initialiser; nothing is decided from substrings of names or from local
// shapes. What only tables need has the value of a dense parameter where it is not given.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/ops/table.h"
#include "core/tensor.h"

namespace overtok {

// Where the rows of a parameter live on the mesh of ranks (data x tensor).
enum class Placement : uint8_t {
  kReplicated,      // whole on every rank
  kShardedRows,     // dimension 0 over the tensor axis, by the vocabulary's owner map or in equal
                    // parts
  kShardedColumns,  // dimension 1 over the tensor axis
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
  UpdateKind update = UpdateKind::kDense;
  int64_t touched_capacity = 0;  // of kTable: rows that one step can touch at most
  bool freezes = false;          // of kTable: optimizer.tables.freeze_step stops its gradient
};

// What tables keep beside their values; one choice for all tables of a model
// (optim/table_schedule.h makes it from the configuration).
struct TableStorage {
  DType value = DType::kF32;  // kF32 or kBF16
  bool first_moment = true;
  enum class SecondMoment : uint8_t { kNone, kRow, kElement };
  SecondMoment second_moment = SecondMoment::kElement;
  bool last_step = true;
};

// The rows that the current step touches. Filled by the model before the forward pass.
struct TouchedRows {
  Tensor rows;      // [capacity] u32, the first `count` ascending and distinct
  Tensor gradient;  // [capacity, w] f32, like Parameter::gradient; rows [0, count) count
  int64_t count = 0;
  Tensor used() const { return rows.Rows(0, count); }
  Tensor used_gradient() const { return gradient.Rows(0, count); }
};

struct Parameter {
  ParameterSpec spec;
  Tensor value;     // f32 master weights
  Tensor gradient;  // f32; the sum over the batch, already divided by the global weight sum
  Tensor compute;   // what products read: `value` itself in f32 runs, a bf16 copy in bf16 runs
  // Set when the backward pass of a step writes `gradient` for the first time: later micro-batches
  // accumulate.
  bool gradient_written = false;
  // Whether this step reads `compute`: a head that samples gathers rows of `value` in its place.
  bool compute_needed = true;
  // Of kTable; `gradient` is undefined then, and `value` reflects each row's own last step.
  TableState table;  // value included
  TouchedRows touched;

  bool is_table() const { return spec.update == UpdateKind::kTable; }
};

// A tensor of optimizer state, by name: "adamh.m/<parameter>".
struct NamedState {
  std::string name;
  Tensor tensor;
};

// The parameters of a model in their fixed order (the order of checkpoints, traces and norms).
class ParameterSet {
 public:
  // `compute`: kF32 or kBF16. `with_gradients` false for evaluation-only programs.
  ParameterSet(Memory* memory, DType compute, bool with_gradients, TableStorage tables = {})
      : memory_(memory), compute_(compute), with_gradients_(with_gradients), tables_(tables) {}
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // Takes the tensors and returns a reference that stays valid. `matrix_product`: products read it,
  // so that a bf16 run keeps a bf16 copy (norm gains and lookup tables need none). Two parameters
  // of one name are a bug.
  Parameter& Add(ParameterSpec spec, bool matrix_product);

  Parameter* Find(absl::string_view name);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  int64_t elements() const;
  DType compute_dtype() const { return compute_; }

  // Initial values: a pure function of (seed, name, global index).
  void Initialize(uint64_t seed);
  // Rewrites the bf16 copies from the master weights, all of them or those that this step reads;
  // nothing to do in f32 runs.
  enum class Copies : uint8_t { kAll, kNeeded };
  void RefreshComputeCopies(const Context& context, Copies copies = Copies::kAll);
  // Before the first micro-batch of a step.
  void StartGradients();
  // State of all tables: "table.m/<parameter>", "table.v/...", "table.last/...", as far as kept.
  // Part of a checkpoint; without it a table cannot be read.
  std::vector<NamedState> table_states() const;
  // Gives a table fresh initial values (a pure function of (seed, name, pass, index)) and no
  // moments, as of the state after `step` steps.
  static void ReinitializeTable(Parameter& parameter, uint64_t seed, int64_t pass, int64_t step);

 private:
  void TakeTable(const ParameterSpec& spec, Parameter* parameter);
  static void Draw(Parameter& parameter, uint64_t seed);

  Memory* memory_;
  DType compute_;
  bool with_gradients_;
  TableStorage tables_;
  std::deque<Parameter> parameters_;
};

}  // namespace overtok
