// Attention by cuDNN's graphs, one forward and one backward for each size: 2 and 5 products of
// B H D S^2 (causal, by documents), scores never in memory. A graph describes a packed batch of N
// sequences of at most S positions (core/cuda/packed_layout.h), each with a length, 0 for those
// that are not there, and with the elements from which on its rows lie in every tensor. Gradients
// of keys and values of a group of query heads are made one by one and then added up.
#include "core/cuda/attention_cudnn.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/cudnn_library.h"
#include "core/cuda/packed_attention.h"
#include "core/status.h"

static_assert(CUDNN_FRONTEND_VERSION >= 13200 && CUDNN_VERSION >= 92500,
              "cmake/cudnn.cmake looks for headers that know the ordered backward pass");

namespace overtok {
namespace cuda {

// core/cuda/kernels.cu
void ReplaceAttention(void (*forward)(const Context&, const AttentionForwardArgs&),
                      void (*backward)(const Context&, const AttentionBackwardArgs&));

namespace {

namespace fe = cudnn_frontend;
using TensorFacts = fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<TensorFacts>;

// Names of a graph's tensors.
enum Id : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOutput,
  kStatistics,
  kOutputGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kQueryLengths,
  kKeyLengths,
  kQueryPlaces,
  kKeyPlaces,
  kStatisticPlaces,
};
using Pointers = std::unordered_map<int64_t, void*>;

absl::Status StatusOf(fe::error_t error, absl::string_view during) {
  if (error.is_good()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuDNN ", CudnnName(), " refused to ", during, ": ", error.get_message()));
}

std::string NameOf(const PackedSizes& s) {
  return absl::StrCat("attention of ", s.batch, " windows of ", s.length, " positions, ", s.heads,
                      " query heads over ", s.kv_heads, " of ", s.width);
}

// The tensors of a graph over packed documents.
class Builder {
 public:
  Builder(const PackedSizes& sizes, fe::graph::Graph* graph)
      : s_(sizes), n_(PackedDocuments(sizes.batch, sizes.length)), graph_(*graph) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    query_lengths = Numbers("query_lengths", kQueryLengths, n_, fe::DataType_t::INT32);
    key_lengths = Numbers("key_lengths", kKeyLengths, n_, fe::DataType_t::INT32);
    query_places_ = Numbers("query_places", kQueryPlaces, n_ + 1, fe::DataType_t::INT64);
    key_places_ = Numbers("key_places", kKeyPlaces, n_ + 1, fe::DataType_t::INT64);
    statistic_places_ =
        Numbers("statistic_places", kStatisticPlaces, n_ + 1, fe::DataType_t::INT64);
  }
  TensorPointer QueryLike(const char* name, Id id) {
    TensorFacts facts = Facts(name, id);
    ToQueries(&facts);
    return graph_.tensor(facts);
  }
  TensorPointer KeyLike(const char* name, Id id) {
    TensorFacts facts = Facts(name, id);
    ToKeys(&facts);
    return graph_.tensor(facts);
  }
  TensorPointer Statistics() {
    TensorFacts facts = Facts("statistics", kStatistics);
    ToStatistics(&facts);
    return graph_.tensor(facts);
  }
  void ToQueries(TensorFacts* facts) const { ToRows(s_.heads, query_places_, facts); }
  void ToKeys(TensorFacts* facts) const { ToRows(s_.kv_heads, key_places_, facts); }
  void ToStatistics(TensorFacts* facts) const {
    facts->set_data_type(fe::DataType_t::FLOAT)
        .set_dim({n_, s_.heads, s_.length, 1})
        .set_stride({s_.length * s_.heads, 1, s_.heads, 1})
        .set_ragged_offset(statistic_places_);
  }
  TensorPointer query_lengths, key_lengths;

 private:
  static TensorFacts Facts(const char* name, Id id) {
    return TensorFacts().set_name(name).set_uid(id);
  }
  TensorPointer Numbers(const char* name, Id id, int64_t count, fe::DataType_t type) {
    return graph_.tensor(
        Facts(name, id).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type));
  }
  void ToRows(int64_t heads, const TensorPointer& places, TensorFacts* facts) const {
    facts->set_dim({n_, heads, s_.length, s_.width})
        .set_stride({s_.length * heads * s_.width, s_.width, heads * s_.width, 1})
        .set_ragged_offset(places);
  }

  const PackedSizes s_;
  const int64_t n_;
  fe::graph::Graph& graph_;
  TensorPointer query_places_, key_places_, statistic_places_;
};

void DescribeForward(const PackedSizes& sizes, float scale, fe::graph::Graph* graph) {
  Builder builder(sizes, graph);
  const TensorPointer q = builder.QueryLike("q", kQuery), k = builder.KeyLike("k", kKey),
                      v = builder.KeyLike("v", kValue);
  auto [o, statistics] = graph->sdpa(q, k, v,
                                     fe::graph::SDPA_attributes()
                                         .set_name("attention")
                                         .set_generate_stats(true)
                                         .set_causal_mask(true)
                                         .set_padding_mask(true)
                                         .set_seq_len_q(builder.query_lengths)
                                         .set_seq_len_kv(builder.key_lengths)
                                         .set_attn_scale(scale));
  o->set_output(true).set_uid(kOutput);
  builder.ToQueries(o.get());
  statistics->set_output(true).set_uid(kStatistics);
  builder.ToStatistics(statistics.get());
}

void DescribeBackward(const PackedSizes& sizes, float scale, fe::graph::Graph* graph) {
  Builder builder(sizes, graph);
  const TensorPointer q = builder.QueryLike("q", kQuery), k = builder.KeyLike("k", kKey),
                      v = builder.KeyLike("v", kValue), o = builder.QueryLike("o", kOutput),
                      dout = builder.QueryLike("dout", kOutputGradient),
                      statistics = builder.Statistics();
  auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, dout, statistics,
                                           fe::graph::SDPA_backward_attributes()
                                               .set_name("attention_backward")
                                               .set_causal_mask(true)
                                               .set_padding_mask(true)
                                               .set_seq_len_q(builder.query_lengths)
                                               .set_seq_len_kv(builder.key_lengths)
                                               .set_attn_scale(scale)
                                               .set_deterministic_algorithm(true)
                                               .set_max_total_seq_len_q(sizes.tokens())
                                               .set_max_total_seq_len_kv(sizes.tokens()));
  dq->set_output(true).set_uid(kQueryGradient);
  builder.ToQueries(dq.get());
  dk->set_output(true).set_uid(kKeyGradient);
  builder.ToKeys(dk.get());
  dv->set_output(true).set_uid(kValueGradient);
  builder.ToKeys(dv.get());
}

struct Plans {
  fe::graph::Graph forward, backward;
};

class CudnnAttention {
 public:
  static CudnnAttention& Instance() {
    static CudnnAttention* const attention = new CudnnAttention();  // outlives every thread
    return *attention;
  }

  absl::Status Start(const std::vector<PackedSizes>& sizes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    OT_RETURN_IF_ERROR(Open());
    for (const PackedSizes& s : sizes) {
      const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
      OT_RETURN_IF_ERROR(PlansFor(s, scale).status());
    }
    return absl::OkStatus();
  }

  void Forward(const Context& context, const PackedForward& call) {
    Pointers pointers = PointersOf(call.lists);
    pointers[kQuery] = const_cast<void*>(call.q);
    pointers[kKey] = const_cast<void*>(call.k);
    pointers[kValue] = const_cast<void*>(call.v);
    pointers[kOutput] = call.o;
    pointers[kStatistics] = call.statistics;
    Run(context, call.sizes, call.scale, &Plans::forward, &pointers, call.workspace);
  }

  void Backward(const Context& context, const PackedBackward& call) {
    Pointers pointers = PointersOf(call.lists);
    pointers[kQuery] = const_cast<void*>(call.q);
    pointers[kKey] = const_cast<void*>(call.k);
    pointers[kValue] = const_cast<void*>(call.v);
    pointers[kOutput] = const_cast<void*>(call.o);
    pointers[kStatistics] = const_cast<float*>(call.statistics);
    pointers[kOutputGradient] = const_cast<void*>(call.dout);
    pointers[kQueryGradient] = call.dq;
    pointers[kKeyGradient] = call.dk;
    pointers[kValueGradient] = call.dv;
    Run(context, call.sizes, call.scale, &Plans::backward, &pointers, call.workspace);
  }

 private:
  static Pointers PointersOf(const DocumentLists& lists) {
    return {{kQueryLengths, lists.lengths},
            {kKeyLengths, lists.lengths},
            {kQueryPlaces, lists.query_places},
            {kKeyPlaces, lists.key_places},
            {kStatisticPlaces, lists.statistic_places}};
  }

  absl::Status Open() {
    if (handle_ != nullptr) return absl::OkStatus();
    OT_RETURN_IF_ERROR(OpenCudnn());
    if (cudnnGetVersion() < 92500) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuDNN ", CudnnName(),
          " was found, 9.25 or later is needed: its backward pass adds up in a fixed "
          "order in memory that grows with the tokens alone. Install nvidia-cudnn-cu13 "
          "from PyPI and name its folder in OVERTOK_LIBRARY_PATH, or use "
          "train.attention=kernels"));
    }
    int device = 0, major = 0;
    if (cudaGetDevice(&device) == cudaSuccess) {
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    }
    if (major < 9) {
      return absl::FailedPreconditionError(
          absl::StrCat("the device has compute capability ", major,
                       ".x; attention by cuDNN over packed documents needs 9.0 or above (H100, "
                       "H200). Use train.attention=kernels"));
    }
    // How the frontend is told to add up gradients of queries in order, rather than to keep all of
    // the [S, S] gradients of scores of every sequence for it.
    setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0", /*overwrite=*/1);
    const cudnnStatus_t status = cudnnCreate(&handle_);
    if (status != CUDNN_STATUS_SUCCESS) {
      handle_ = nullptr;
      return absl::UnavailableError(
          absl::StrCat("cuDNN ", CudnnName(), " could not be started: ", CudnnReason(status)));
    }
    return absl::OkStatus();
  }

  // A plan and that its workspace is what was planned for it.
  absl::Status Make(const PackedSizes& sizes, absl::string_view direction,
                    fe::graph::Graph* graph) const {
    const std::string name = absl::StrCat(NameOf(sizes), ", ", direction);
    OT_RETURN_IF_ERROR(
        StatusOf(graph->build(handle_, {fe::HeurMode_t::A}), absl::StrCat("plan ", name)));
    int64_t bytes = 0;
    OT_RETURN_IF_ERROR(
        StatusOf(graph->get_workspace_size(bytes), absl::StrCat("size the workspace of ", name)));
    const int64_t planned = LayoutOf(sizes).workspace_bytes;
    if (bytes <= planned) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("cuDNN ", CudnnName(), " asks for a workspace of ", bytes, " bytes for ", name,
                     ", where ", planned,
                     " are planned: use train.attention=kernels, or the "
                     "version that docs/gpu.md names"));
  }

  absl::StatusOr<Plans*> PlansFor(const PackedSizes& sizes, float scale) {
    std::unique_ptr<Plans>& plans = plans_[{sizes, scale}];
    if (plans != nullptr) return plans.get();
    auto made = std::make_unique<Plans>();
    try {
      DescribeForward(sizes, scale, &made->forward);
      OT_RETURN_IF_ERROR(Make(sizes, "forward", &made->forward));
      DescribeBackward(sizes, scale, &made->backward);
      OT_RETURN_IF_ERROR(Make(sizes, "backward", &made->backward));
    } catch (const std::exception& error) {
      return absl::InternalError(
          absl::StrCat("cuDNN's frontend failed at ", NameOf(sizes), ": ", error.what()));
    }
    plans = std::move(made);
    return plans.get();
  }

  void Run(const Context& context, const PackedSizes& sizes, double scale,
           fe::graph::Graph Plans::*graph, Pointers* pointers, void* workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const absl::StatusOr<Plans*> plans = PlansFor(sizes, static_cast<float>(scale));
    OT_CHECK(plans.ok()) << std::string(plans.status().message());
    const cudnnStatus_t status =
        cudnnSetStream(handle_, static_cast<cudaStream_t>(context.stream()));
    OT_CHECK(status == CUDNN_STATUS_SUCCESS) << CudnnReason(status);
    absl::Status run;
    try {
      run = StatusOf(((*plans)->*graph).execute(handle_, *pointers, workspace),
                     absl::StrCat("start ", NameOf(sizes)));
    } catch (const std::exception& error) {
      run = absl::InternalError(error.what());
    }
    OT_CHECK(run.ok()) << std::string(run.message());
  }

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<std::pair<PackedSizes, float>, std::unique_ptr<Plans>> plans_;
};

void PackedForwardByCudnn(const Context& context, const PackedForward& call) {
  CudnnAttention::Instance().Forward(context, call);
}
void PackedBackwardByCudnn(const Context& context, const PackedBackward& call) {
  CudnnAttention::Instance().Backward(context, call);
}
void ForwardByCudnn(const Context& context, const AttentionForwardArgs& args) {
  AttendPacked(context, args, KernelsOfPacked(), PackedForwardByCudnn);
}
void BackwardByCudnn(const Context& context, const AttentionBackwardArgs& args) {
  AttendPacked(context, args, KernelsOfPacked(), PackedBackwardByCudnn);
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::string> StartCudnnAttention(Device* device,
                                                const std::vector<PackedSizes>& sizes) {
  if (device->kind() != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention by cuDNN needs a device of kind cuda, "
                     "not ",
                     overtok::NameOf(device->kind())));
  }
  OT_RETURN_IF_ERROR(cuda::CudnnAttention::Instance().Start(sizes));
  cuda::ReplaceAttention(cuda::ForwardByCudnn, cuda::BackwardByCudnn);
  device->SetAttention(AttentionKind::kCudnn);
  return absl::StrCat("cuDNN ", cuda::CudnnName());
}

}  // namespace overtok
