// Parameters: what a model owns. Each one declares its name, logical shape, placement, optimizer
// group, update kind and initialiser; nothing is decided from substrings of names or from local
// shapes, and nothing has a default.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/context.h"
#include "core/memory.h"
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
};

struct Parameter {
  ParameterSpec spec;
  Tensor value;     // f32 master weights
  Tensor gradient;  // f32; the sum over the batch, already divided by the global weight sum
  Tensor compute;   // what products read: `value` itself in f32 runs, a bf16 copy in bf16 runs
  // Set when the backward pass of a step writes `gradient` for the first time: later micro-batches
  // accumulate.
  bool gradient_written = false;
};

// The parameters of a model in their fixed order (the order of checkpoints, traces and norms).
class ParameterSet {
 public:
  // `compute`: kF32 or kBF16. `with_gradients` false for evaluation-only programs.
  ParameterSet(Memory* memory, DType compute, bool with_gradients)
      : memory_(memory), compute_(compute), with_gradients_(with_gradients) {}
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
  // Rewrites the bf16 copies from the master weights; nothing to do in f32 runs.
  void RefreshComputeCopies(const Context& context);
  // Before the first micro-batch of a step.
  void StartGradients();

 private:
  Memory* memory_;
  DType compute_;
  bool with_gradients_;
  std::deque<Parameter> parameters_;
};

}  // namespace overtok
