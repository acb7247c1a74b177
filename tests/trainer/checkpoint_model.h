// A small set of logical tensors whose every element is a function of name and number, divided
// over the ranks of a mesh the way a run divides its own: vocabulary blocks, column parts, whole
// matrices of different owners, scattered tables, ranges of vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/sharding.h"
#include "trainer/checkpoint_state.h"

namespace overtok::testing {

class CheckpointModel {
 public:
  // What a rank of `layout` owns (every element once over all ranks), with its values; with another
  // `salt`, other values.
  static CheckpointModel Owned(const Layout& layout, uint64_t salt = 0);
  // What it holds and so wants from a checkpoint (replicas overlap), all bytes 0xff.
  static CheckpointModel Wanted(const Layout& layout);

  // Name of the first tensor that does not hold its values; empty when all do.
  std::string FirstDifference(uint64_t salt = 0) const;

  std::vector<ShardedTensor> model, optimizer;

 private:
  void Add(std::vector<ShardedTensor>* to, const std::string& name, DType dtype,
           const Region& region);
  void AddAll(const Layout& layout, bool owned);
  void Fill(uint64_t salt);
  std::vector<std::unique_ptr<char[]>> buffers_;
};

// A state with every field set, of step `step`.
TrainingState SomeState(int64_t step);

// Like OT_ASSERT_OK, without leaving the function: a rank that leaves early stops the others.
void ExpectOk(const absl::Status& status);

}  // namespace overtok::testing
