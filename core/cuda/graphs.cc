#include "core/cuda/graphs.h"

#include "core/cuda/check_cuda.h"

namespace overtok::cuda {
namespace {

// False: the graph is not the executable one with other arguments.
bool Update(cudaGraphExec_t executable, cudaGraph_t graph) {
  cudaGraphExecUpdateResultInfo info = {};
  const cudaError_t error = cudaGraphExecUpdate(executable, graph, &info);
  if (error == cudaErrorGraphExecUpdateFailure) {
    cudaGetLastError();  // the next call shall not report it
    return false;
  }
  CheckCuda(error, "changing the arguments of a graph");
  return true;
}

}  // namespace

Graphs::~Graphs() {
  for (const auto& [number, executable] : executables_) {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }
}

bool Graphs::Meet(int64_t number) { return !executables_.emplace(number, nullptr).second; }

void Graphs::Launch(int64_t number, cudaGraph_t graph, cudaStream_t stream) {
  size_t nodes = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &nodes), "counting the ops of a graph");
  if (nodes > 0) {
    cudaGraphExec_t& executable = executables_[number];
    if (executable != nullptr && !Update(executable, graph)) {
      // Where it is under way, the driver keeps it until it is done.
      CheckCuda(cudaGraphExecDestroy(executable), "destroying a graph");
      executable = nullptr;
    }
    if (executable == nullptr) {
      CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "making a graph executable");
      ++instantiations_;
    }
    CheckCuda(cudaGraphLaunch(executable, stream), "launching a graph");
  }
  CheckCuda(cudaGraphDestroy(graph), "destroying a graph");
}

}  // namespace overtok::cuda
