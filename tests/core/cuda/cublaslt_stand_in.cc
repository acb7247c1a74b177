// A library with the functions of cuBLASLt that core/cuda/matmul.cc uses, on host memory and for
// column-major matrices, as its documentation describes them: for tests without a GPU. Sums in
// double, rounded once. Refuses what the backend must not ask for.
#include <cublasLt.h>

#include <cstring>

#include "core/bf16.h"

namespace {

struct Layout {
  cudaDataType type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0, stride = 0;
  int32_t batch = 1;
};
struct Product {
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
};
struct Preference {
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace = 0;
};

int choices = 0;

double Get(const void* data, cudaDataType type, int64_t at) {
  if (type == CUDA_R_32F) return double{static_cast<const float*>(data)[at]};
  return double{static_cast<float>(static_cast<const overtok::bf16*>(data)[at])};
}
// Element [row, column] of matrix b, or of its transpose.
double At(const void* data, const Layout& layout, cublasOperation_t operation, int64_t b,
          int64_t row, int64_t column) {
  if (operation == CUBLAS_OP_T) std::swap(row, column);
  return Get(data, layout.type, b * layout.stride + column * layout.leading + row);
}
template <class T>
bool Take(T* to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(to, from, bytes);
  return true;
}
cublasStatus_t Answer(bool good) {
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

extern "C" {

int overtok_stand_in_choices();
int overtok_stand_in_choices() { return choices; }

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&choices);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto* to = reinterpret_cast<Product*>(product);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) return Answer(Take(&to->first, value, bytes));
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) return Answer(Take(&to->second, value, bytes));
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{.type = type, .rows = rows, .columns = columns, .leading = leading});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  auto* to = reinterpret_cast<Layout*>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    return Answer(Take(&to->batch, value, bytes));
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    return Answer(Take(&to->stride, value, bytes));
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto* to = reinterpret_cast<Preference*>(preference);
  uint32_t alignment = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Answer(Take(&to->reductions, value, bytes));
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Answer(Take(&to->workspace, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Answer(Take(&alignment, value, bytes) && alignment >= 2 && alignment <= 256);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*product*/, cublasLtMatrixLayout_t /*a*/,
    cublasLtMatrixLayout_t /*b*/, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
    int* found) {
  const auto* asked = reinterpret_cast<const Preference*>(preference);
  // Sums that are split in an order that timing decides, or rounded in between.
  if ((asked->reductions &
       (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (wanted < 1 || asked->workspace == 0) return CUBLAS_STATUS_INVALID_VALUE;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].algo.data[0] = 17;  // comes back with the product
  *found = 1;
  ++choices;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t /*c_layout*/, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                              cudaStream_t /*stream*/) {
  const auto& how = *reinterpret_cast<const Product*>(product);
  const auto& first = *reinterpret_cast<const Layout*>(a_layout);
  const auto& second = *reinterpret_cast<const Layout*>(b_layout);
  const auto& result = *reinterpret_cast<const Layout*>(d_layout);
  if (algorithm->data[0] != 17 || workspace == nullptr || bytes == 0 || c != d)
    return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t k = how.first == CUBLAS_OP_N ? first.columns : first.rows;
  if ((how.first == CUBLAS_OP_N ? first.rows : first.columns) != result.rows ||
      (how.second == CUBLAS_OP_N ? second.columns : second.rows) != result.columns ||
      (how.second == CUBLAS_OP_N ? second.rows : second.columns) != k ||
      first.batch != result.batch || second.batch != result.batch)
    return CUBLAS_STATUS_INVALID_VALUE;
  const double scale = double{*static_cast<const float*>(alpha)},
               keep = double{*static_cast<const float*>(beta)};
  for (int64_t m = 0; m < result.batch; ++m) {
    for (int64_t column = 0; column < static_cast<int64_t>(result.columns); ++column) {
      for (int64_t row = 0; row < static_cast<int64_t>(result.rows); ++row) {
        double sum = 0;
        for (int64_t i = 0; i < static_cast<int64_t>(k); ++i)
          sum += At(a, first, how.first, m, row, i) * At(b, second, how.second, m, i, column);
        const int64_t at = m * result.stride + column * result.leading + row;
        sum *= scale;
        if (keep != 0) sum += keep * Get(d, result.type, at);
        if (result.type == CUDA_R_32F) {
          static_cast<float*>(d)[at] = static_cast<float>(sum);
        } else {
          static_cast<overtok::bf16*>(d)[at] = overtok::bf16(static_cast<float>(sum));
        }
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
