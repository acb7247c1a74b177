// The part of the CUDA runtime that core/cuda/{device,staging,graphs}.cc call, on the host, so that
// they run where no GPU is. It is as late as a GPU may be: what is put on a stream runs when
// somebody waits for it, and nothing else with it; of the nodes of a graph that may run, the last
// one does. What a GPU would refuse is refused: calls that a capture forbids, waiting across its
// border, forks that were not joined, other threads' work on a stream that captures. Device memory
// is host memory that begins as garbage. A few ops stand in for the kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/cuda/matmul.h"
#include "core/ops/kernels.h"

namespace {

using Work = std::function<void()>;
using Frontier = std::set<size_t>;  // nodes of a graph

struct Node {
  Work work;
  Frontier after;
};

struct Item {
  Work work;  // null: a wait
  cudaEvent_t event = nullptr;
  int64_t version = 0;
};

[[noreturn]] void Misuse(const std::string& what) {
  std::fprintf(stderr, "stand-in of CUDA: %s\n", what.c_str());
  std::abort();
}

}  // namespace

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};
struct CUstream_st {
  std::deque<Item> items;
  CUgraph_st* graph = nullptr;  // while it captures
  Frontier frontier;
};
struct CUevent_st {
  int64_t recorded = 0, done = 0;  // versions
  cudaStream_t stream = nullptr;   // of the last record
  CUgraph_st* graph = nullptr;     // when that was captured
  Frontier frontier;
  std::chrono::steady_clock::time_point time;
};

namespace {

std::mutex& Mutex() {
  static std::mutex mutex;
  return mutex;
}
std::vector<cudaStream_t>& Streams() {
  static std::vector<cudaStream_t> streams;
  return streams;
}
thread_local bool captures = false;  // this thread
cudaError_t last_error = cudaSuccess;

void RunUntil(cudaEvent_t event, int64_t version);

void RunFront(cudaStream_t stream) {
  const Item item = std::move(stream->items.front());
  stream->items.pop_front();
  if (item.work != nullptr) {
    item.work();
  } else {
    RunUntil(item.event, item.version);
  }
}

// Of all streams: the one that records the event.
void RunUntil(cudaEvent_t event, int64_t version) {
  while (event->done < version) {
    cudaStream_t recorder = nullptr;
    for (cudaStream_t stream : Streams()) {
      for (const Item& item : stream->items) {
        if (item.work != nullptr && item.event == event && item.version == version)
          recorder = stream;
      }
    }
    if (recorder == nullptr) Misuse("an event is waited for that nobody records");
    RunFront(recorder);
  }
}

void RunAll() {
  for (cudaStream_t stream : Streams())
    while (!stream->items.empty()) RunFront(stream);
}

void Put(cudaStream_t stream, Work work) {
  if (stream->graph == nullptr) {
    stream->items.push_back({std::move(work)});
    return;
  }
  if (!captures) Misuse("work of another thread on a stream that captures");
  stream->graph->nodes.push_back({std::move(work), stream->frontier});
  stream->frontier = {stream->graph->nodes.size() - 1};
}

void RunNodes(const std::vector<Node>& nodes) {
  std::vector<bool> done(nodes.size(), false);
  for (size_t left = nodes.size(); left > 0; --left) {
    for (size_t i = nodes.size(); i-- > 0;) {
      const auto is_done = [&](size_t before) { return done[before]; };
      if (done[i] || !std::all_of(nodes[i].after.begin(), nodes[i].after.end(), is_done)) continue;
      nodes[i].work();
      done[i] = true;
      break;
    }
  }
}

cudaError_t ForbiddenInCapture() {
  return captures ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t Take(void** data, size_t bytes) {
  if (captures) return cudaErrorStreamCaptureUnsupported;
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xCD, std::min(bytes, size_t{4} << 20));
  return cudaSuccess;
}

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t /*error*/) { return "an error of the stand-in"; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local std::string name;
  name = std::to_string(static_cast<int>(error));
  return name.c_str();
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* facts, int /*device*/) {
  *facts = {};
  facts->major = 9;
  facts->totalGlobalMem = size_t{1} << 33;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int bytes, int /*device*/) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = size_t{1} << 33;
  *free = *total / 2;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) { return Take(data, bytes); }
cudaError_t cudaMallocManaged(void** data, size_t bytes, unsigned /*flags*/) {
  return Take(data, bytes);
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return Take(data, bytes);
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* data, unsigned /*flags*/) {
  *on_device = data;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return ForbiddenInCapture();
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (flags != cudaStreamNonBlocking) Misuse("a stream that waits for the default stream");
  Streams().push_back(*stream = new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard<std::mutex> lock(Mutex());
  RunAll();
  return ForbiddenInCapture();
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(Mutex());
  Put(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (stream->graph != nullptr) Misuse("a transfer became part of a graph");
  Put(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(Mutex());
  event->graph = stream->graph;
  event->frontier = stream->frontier;
  if (stream->graph != nullptr) return cudaSuccess;
  const int64_t version = ++event->recorded;
  const auto work = [event, version] {
    event->done = version;
    event->time = std::chrono::steady_clock::now();
  };
  stream->items.push_back({work, event, version});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (event->graph != nullptr) {
    if (stream->graph == nullptr) {
      stream->graph = event->graph;
      stream->frontier.clear();
    }
    if (stream->graph != event->graph) return cudaErrorStreamCaptureMerge;
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  }
  if (stream->graph != nullptr) return cudaErrorStreamCaptureIsolation;
  if (event->recorded > 0) stream->items.push_back({nullptr, event, event->recorded});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (event->graph != nullptr) return cudaErrorCapturedEvent;
  if (captures) return cudaErrorStreamCaptureUnsupported;
  return event->done == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (event->graph != nullptr) return cudaErrorCapturedEvent;
  if (captures) return cudaErrorStreamCaptureUnsupported;
  RunUntil(event, event->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (from->done < from->recorded || to->done < to->recorded) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (mode != cudaStreamCaptureModeRelaxed) Misuse("a capture that forbids to load kernels");
  stream->graph = new CUgraph_st;
  stream->frontier.clear();
  captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard<std::mutex> lock(Mutex());
  *graph = stream->graph;
  Frontier joined = stream->frontier;
  for (size_t i = (*graph)->nodes.size(); i-- > 0;) {
    if (joined.contains(i))
      joined.insert((*graph)->nodes[i].after.begin(), (*graph)->nodes[i].after.end());
  }
  if (joined.size() != (*graph)->nodes.size()) return cudaErrorStreamCaptureUnjoined;
  for (cudaStream_t other : Streams()) {
    if (other->graph == *graph) other->graph = nullptr;
    other->frontier.clear();
  }
  captures = false;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* /*nodes*/, size_t* count) {
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* /*info*/) {
  const auto same = [](const Node& a, const Node& b) { return a.after == b.after; };
  if (!std::equal(graph->nodes.begin(), graph->nodes.end(), executable->nodes.begin(),
                  executable->nodes.end(), same)) {
    return last_error = cudaErrorGraphExecUpdateFailure;
  }
  executable->nodes = graph->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(Mutex());
  if (last_error != cudaSuccess) Misuse("an error was left to the next call");
  Put(stream, [nodes = executable->nodes] { RunNodes(nodes); });
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  executable->nodes.clear();
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"

namespace overtok::cuda {
namespace {

void PutOp(const Context& context, Work work) {
  const std::lock_guard<std::mutex> lock(Mutex());
  Put(static_cast<cudaStream_t>(context.stream()), std::move(work));
}

void FillOp(const Context& context, const FillArgs& args) {
  PutOp(context, [x = args.x, value = static_cast<float>(args.value)] {
    std::fill_n(x.data<float>(), x.elements(), value);
  });
}
void AddOp(const Context& context, const AddArgs& args) {
  PutOp(context, [x = args.x.data<float>(), y = args.y.data<float>(), n = args.x.elements()] {
    for (int64_t i = 0; i < n; ++i) y[i] += x[i];
  });
}
void CastOp(const Context& context, const CastArgs& args) {
  PutOp(context, [x = args.x.data<float>(), y = args.y.data<bf16>(), n = args.x.elements()] {
    for (int64_t i = 0; i < n; ++i) y[i] = bf16(x[i]);
  });
}
// Square matrices of one number each, as the tests take them.
void MatmulOp(const Context& context, const MatmulArgs& args) {
  PutOp(context, [args] {
    const int64_t n = args.c.dim(0);
    const float sum = args.a.data<float>()[0] * args.b.data<float>()[0] * static_cast<float>(n);
    for (int64_t i = 0; i < n * n; ++i)
      args.c.data<float>()[i] = sum + (args.accumulate ? args.c.data<float>()[i] : 0);
  });
}

}  // namespace

const Kernels& CudaKernels();
const Kernels& CudaKernels() {
  static const Kernels kernels = [] {
    Kernels some;
    some.fill = FillOp;
    some.add = AddOp;
    some.cast = CastOp;
    some.matmul = MatmulOp;
    return some;
  }();
  return kernels;
}

absl::Status OpenCublasLt() { return absl::OkStatus(); }
absl::Status StartMatmul(void* /*workspace*/, int64_t /*bytes*/) { return absl::OkStatus(); }

}  // namespace overtok::cuda
