#include "core/cuda/cudnn_library.h"

#include <nvrtc.h>

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/cuda/libraries.h"
#include "core/status.h"

// The functions that are found in the library, all of its graph interface and of its handles that
// is used here.
#define OT_FOR_EACH_CUDNN_FUNCTION(X) \
  X(cudnnBackendCreateDescriptor)     \
  X(cudnnBackendDestroyDescriptor)    \
  X(cudnnBackendExecute)              \
  X(cudnnBackendFinalize)             \
  X(cudnnBackendGetAttribute)         \
  X(cudnnBackendSetAttribute)         \
  X(cudnnCreate)                      \
  X(cudnnGetErrorString)              \
  X(cudnnGetLastErrorString)          \
  X(cudnnGetStream)                   \
  X(cudnnGetVersion)                  \
  X(cudnnSetStream)

namespace overtok::cuda {
namespace {

struct Functions {
#define OT_MEMBER(name) decltype(&::name) name = nullptr;
  OT_FOR_EACH_CUDNN_FUNCTION(OT_MEMBER)
#undef OT_MEMBER
};
Functions functions;
void* opened = nullptr;

}  // namespace

absl::Status OpenCudnn() {
  if (opened != nullptr) return absl::OkStatus();
  OT_ASSIGN_OR_RETURN(void* const library, OpenLibrary(CudnnRequest()));
  Functions found;
#define OT_RESOLVE(name) OT_RETURN_IF_ERROR(Resolve(library, #name, &found.name));
  OT_FOR_EACH_CUDNN_FUNCTION(OT_RESOLVE)
#undef OT_RESOLVE
  functions = found;
  opened = library;
  return absl::OkStatus();
}

std::string CudnnName() {
  const size_t version = functions.cudnnGetVersion();
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100, " (",
                      LibraryFile(opened), ")");
}

std::string CudnnReason(cudnnStatus_t status) {
  char reason[1024] = "";
  functions.cudnnGetLastErrorString(reason, sizeof reason);
  return absl::StrCat(functions.cudnnGetErrorString(status), ": ", reason);
}

}  // namespace overtok::cuda

// What the headers are linked with. Hidden (core/cuda/CMakeLists.txt), lest the library itself find
// them in place of its own.
extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return overtok::cuda::functions.cudnnBackendCreateDescriptor(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return overtok::cuda::functions.cudnnBackendDestroyDescriptor(descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t arguments) {
  return overtok::cuda::functions.cudnnBackendExecute(handle, plan, arguments);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return overtok::cuda::functions.cudnnBackendFinalize(descriptor);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t* count, void* elements) {
  return overtok::cuda::functions.cudnnBackendGetAttribute(descriptor, name, type, room, count,
                                                           elements);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return overtok::cuda::functions.cudnnBackendSetAttribute(descriptor, name, type, count, elements);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return overtok::cuda::functions.cudnnCreate(handle);
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return overtok::cuda::functions.cudnnGetErrorString(status);
}
void cudnnGetLastErrorString(char* message, size_t room) {
  overtok::cuda::functions.cudnnGetLastErrorString(message, room);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return overtok::cuda::functions.cudnnGetStream(handle, stream);
}
size_t cudnnGetVersion() { return overtok::cuda::functions.cudnnGetVersion(); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return overtok::cuda::functions.cudnnSetStream(handle, stream);
}

// Of plans whose shapes change from call to call, and of a norm that the headers compile at run
// time: neither is asked for here.
cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t /*handle*/,
                                                 cudnnBackendDescriptor_t /*plan*/,
                                                 cudnnBackendDescriptor_t /*arguments*/,
                                                 size_t* /*bytes*/) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* /*program*/, const char* /*source*/,
                               const char* /*name*/, int /*count*/, const char* const* /*headers*/,
                               const char* const* /*names*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* /*program*/) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram /*program*/, int /*count*/,
                                const char* const* /*options*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram /*program*/, size_t* /*bytes*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram /*program*/, char* /*log*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram /*program*/, size_t* /*bytes*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram /*program*/, char* /*code*/) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}

}  // extern "C"
