#include "core/cuda/nccl.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/comm/agreement.h"
#include "core/comm/device_place.h"
#include "core/cuda/libraries.h"
#include "core/cuda/nccl_communicator.h"
#include "core/cuda/nccl_streams_cuda.h"

namespace overtok {
namespace {

struct Library {
  NcclApi api;
  std::string version;
};

absl::StatusOr<Library> OpenNccl() {
  OT_ASSIGN_OR_RETURN(void* const handle, cuda::OpenLibrary(cuda::NcclRequest()));
  OT_ASSIGN_OR_RETURN(NcclApi api, FindNccl([handle](const char* name) -> void* {
                        const auto found = cuda::FindSymbol(handle, name);
                        return found.ok() ? *found : nullptr;
                      }));
  int version = 0;
  if (api.GetVersion(&version) != ncclSuccess) {
    return absl::InternalError(
        absl::StrCat("NCCL in ", cuda::LibraryFile(handle), " does not tell its version"));
  }
  return Library{api, NcclVersionText(version)};
}

// A name of this thread's GPU that no other has.
absl::StatusOr<std::string> NameOfGpu() {
  int index = 0;
  char name[32] = "";
  cudaError_t error = cudaGetDevice(&index);
  if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(name, sizeof name, index);
  if (error != cudaSuccess) {
    return absl::InternalError(
        absl::StrCat("CUDA does not tell which GPU this rank has: ", cudaGetErrorString(error)));
  }
  return std::string(name);
}

}  // namespace

bool HaveNccl() { return true; }

absl::StatusOr<std::unique_ptr<Communicator>> NcclWorld(std::unique_ptr<Communicator>* bootstrap,
                                                        Device* device) {
  Communicator& world = **bootstrap;
  OT_ASSIGN_OR_RETURN(const std::string gpu, Agree(world, NameOfGpu()));
  OT_RETURN_IF_ERROR(CheckOwnDevices(world, HostName(), gpu));
  OT_ASSIGN_OR_RETURN(const Library library, Agree(world, OpenNccl()));
  OT_RETURN_IF_ERROR(CheckSame(world, "the version of NCCL", library.version));
  OT_ASSIGN_OR_RETURN(std::unique_ptr<NcclStreams> streams,
                      Agree(world, CudaNcclStreams(device->stream(StreamName::kMain))));
  return MakeNcclWorld(std::move(*bootstrap), device, library.api, std::move(streams));
}

}  // namespace overtok
