// CUDA graphs of what a stream was asked for together (Device::RunTogether). One executable graph
// is kept for each number. A new graph with the same number changes the arguments of the executable
// one's kernels where it can (cudaGraphExecUpdate), and takes its place where ops came or went or
// became others. Launches that are under way stay what they were.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>

namespace overtok::cuda {

class Graphs {
 public:
  Graphs() = default;
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Whether a number was met before; it is from now on.
  bool Meet(int64_t number);
  // Puts the graph on the stream, and destroys it.
  void Launch(int64_t number, cudaGraph_t graph, cudaStream_t stream);
  // How many graphs were made executable, updates not counted.
  int64_t instantiations() const { return instantiations_; }

 private:
  std::map<int64_t, cudaGraphExec_t> executables_;  // null: met, no graph yet
  int64_t instantiations_ = 0;
};

}  // namespace overtok::cuda
