// Products through cuBLASLt: 2 batch m n k FLOPs; operands are read and the result written where
// they lie. cuBLASLt's matrices are column-major, so that a row-major c = op(a) op(b) is asked for
// as c^T = op(b)^T op(a)^T with the operands swapped: a row-major [rows, columns] tensor is the
// column-major [columns, rows] matrix with leading dimension `columns`.
#include "core/cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/libraries.h"
#include "core/status.h"

namespace overtok::cuda {
namespace {

struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

absl::StatusOr<Functions> FindFunctions() {
  OT_ASSIGN_OR_RETURN(void* library, OpenLibrary(CublasLtRequest()));
  Functions f;
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtCreate", &f.create));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtGetVersion", &f.version));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulDescCreate", &f.create_product));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulDescSetAttribute", &f.set_product));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatrixLayoutCreate", &f.create_layout));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatrixLayoutSetAttribute", &f.set_layout));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulPreferenceCreate", &f.create_preference));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulPreferenceDestroy", &f.destroy_preference));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulPreferenceSetAttribute", &f.set_preference));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmulAlgoGetHeuristic", &f.choose));
  OT_RETURN_IF_ERROR(Resolve(library, "cublasLtMatmul", &f.multiply));
  return f;
}

// Everything that an algorithm may depend on. Alignments are of the tensors' first elements: those
// of a batch's later matrices and of rows follow from the sizes.
struct Key {
  int64_t batch, m, n, k;
  DType operand, result;
  bool tf32;
  bool trans_a, trans_b;
  uint32_t align_a, align_b, align_c;
  auto operator<=>(const Key&) const = default;
};

std::string NameOf(const Key& key) {
  return absl::StrCat(
      "product ", key.batch, " x [", key.m, ", ", key.k, "]", key.trans_a ? "^T" : "", " [", key.k,
      ", ", key.n, "]", key.trans_b ? "^T" : "", " in ",
      key.tf32 ? "tf32" : overtok::NameOf(key.operand), " to ", overtok::NameOf(key.result));
}

// A product as cuBLASLt knows it, kept until the process ends.
struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

// 2, 4, ... 256: what the address is a multiple of.
uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256U;
  return static_cast<uint32_t>(address & (~address + 1));
}

cudaDataType TypeOf(DType dtype) {
  OT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16)
      << "the CUDA backend has no product for " << overtok::NameOf(dtype);
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

class Products {
 public:
  static Products& Instance() {
    static Products* const products = new Products();  // outlives every thread
    return *products;
  }

  absl::Status Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (f_.multiply != nullptr) return absl::OkStatus();
    OT_ASSIGN_OR_RETURN(f_, FindFunctions());
    return absl::OkStatus();
  }
  int64_t version() const { return static_cast<int64_t>(f_.version()); }

  absl::Status Start(void* workspace, int64_t bytes) {
    OT_RETURN_IF_ERROR(Open());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (handle_ == nullptr) {
      const cublasStatus_t status = f_.create(&handle_);
      if (status != CUBLAS_STATUS_SUCCESS) {
        handle_ = nullptr;
        return absl::UnavailableError(absl::StrCat("cuBLASLt ", version(),
                                                   " could not be started: cuBLAS status ",
                                                   static_cast<int>(status)));
      }
    }
    workspace_ = workspace;
    workspace_bytes_ = static_cast<size_t>(bytes);
    return absl::OkStatus();
  }

  void Multiply(const Context& context, const MatmulArgs& args) {
    OT_CHECK(context.stream_name() == StreamName::kMain)
        << "products run on the main stream, whose workspace they share";
    const Tensor &a = args.a, &b = args.b, &c = args.c;
    const int row = c.rank() - 2;
    const Key key = {.batch = row == 0 ? 1 : c.dim(0),
                     .m = c.dim(row),
                     .n = c.dim(row + 1),
                     .k = a.dim(args.trans_a ? row : row + 1),
                     .operand = a.dtype(),
                     .result = c.dtype(),
                     .tf32 = args.tf32,
                     .trans_a = args.trans_a,
                     .trans_b = args.trans_b,
                     .align_a = AlignmentOf(a.raw()),
                     .align_b = AlignmentOf(b.raw()),
                     .align_c = AlignmentOf(c.raw())};
    const std::lock_guard<std::mutex> lock(mutex_);
    OT_CHECK(handle_ != nullptr) << "a product before StartMatmul";
    const auto at = plans_.find(key);
    const Plan& plan =
        at != plans_.end() ? at->second : plans_.emplace(key, Make(key)).first->second;
    const float beta = args.accumulate ? 1.0F : 0.0F;
    Check(f_.multiply(handle_, plan.product, &args.alpha, b.raw(), plan.first, a.raw(), plan.second,
                      &beta, c.raw(), plan.result, c.raw(), plan.result, &plan.algorithm,
                      workspace_, workspace_bytes_, static_cast<cudaStream_t>(context.stream())),
          key, "be started");
  }

 private:
  static void Check(cublasStatus_t status, const Key& key, const char* what) {
    OT_CHECK(status == CUBLAS_STATUS_SUCCESS)
        << NameOf(key) << " could not " << what << ": cuBLAS status " << static_cast<int>(status);
  }

  cublasLtMatrixLayout_t Layout(const Key& key, DType dtype, int64_t rows, int64_t columns) const {
    cublasLtMatrixLayout_t layout = nullptr;
    Check(f_.create_layout(&layout, TypeOf(dtype), static_cast<uint64_t>(columns),
                           static_cast<uint64_t>(rows), columns),
          key, "be described");
    if (key.batch > 1) {
      const auto batch = static_cast<int32_t>(key.batch);
      const int64_t stride = rows * columns;
      Check(f_.set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch), key,
            "be described");
      Check(f_.set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                          sizeof stride),
            key, "be described");
    }
    return layout;
  }

  Plan Make(const Key& key) const {
    Plan plan;
    // TF32 is allowed only where operands have no more bits (core/ops/matmul.h): whichever units
    // and whichever rounding of operands the library chooses, the terms are the same.
    const cublasComputeType_t compute =
        key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    Check(f_.create_product(&plan.product, compute, CUDA_R_32F), key, "be described");
    // Operands swapped: cuBLASLt's first is b.
    const cublasOperation_t first = key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    Check(f_.set_product(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), key,
          "be described");
    Check(f_.set_product(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), key,
          "be described");
    plan.first = key.trans_b ? Layout(key, key.operand, key.n, key.k)
                             : Layout(key, key.operand, key.k, key.n);
    plan.second = key.trans_a ? Layout(key, key.operand, key.k, key.m)
                              : Layout(key, key.operand, key.m, key.k);
    plan.result = Layout(key, key.result, key.m, key.n);

    cublasLtMatmulPreference_t wanted = nullptr;
    Check(f_.create_preference(&wanted), key, "be described");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      Check(f_.set_preference(wanted, attribute, &value, sizeof value), key, "be described");
    };
    // Sums in one sequence, or partial ones in f32 that a step of its own adds up.
    const auto reductions = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    const auto workspace = static_cast<uint64_t>(workspace_bytes_);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    Check(f_.choose(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                    wanted, 1, &best, &found),
          key, "be given an algorithm");
    OT_CHECK(found == 1 && best.state == CUBLAS_STATUS_SUCCESS)
        << "cuBLASLt " << version() << " has no algorithm for " << NameOf(key);
    Check(f_.destroy_preference(wanted), key, "be described");
    plan.algorithm = best.algo;
    return plan;
  }

  std::mutex mutex_;
  Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::map<Key, Plan> plans_;
};

}  // namespace

absl::Status OpenCublasLt() { return Products::Instance().Open(); }
int64_t CublasLtVersion() { return Products::Instance().version(); }
absl::Status StartMatmul(void* workspace, int64_t bytes) {
  return Products::Instance().Start(workspace, bytes);
}
void Matmul(const Context& context, const MatmulArgs& args) {
  Products::Instance().Multiply(context, args);
}

}  // namespace overtok::cuda
