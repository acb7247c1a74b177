// The part of NCCL that is used, as a table of its C functions: the library's, opened at run time
// (core/cuda/libraries.h), or a stand-in's in tests. Only sources that are compiled with NCCL's
// header (OVERTOK_HAVE_NCCL) include this.
#pragma once

#include <nccl.h>

#include <functional>

#include "core/status.h"

namespace overtok {

struct NcclApi {
  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
};

// The oldest NCCL that is used, as its GetVersion counts: 2.18, of CUDA 12.
inline constexpr int kOldestNccl = 21800;

// "2.28.9" of 22809.
std::string NcclVersionText(int version);
// The table from a function that finds symbols by name (null: there is none). Errors: a function
// that is missing, a library that is too old; both name what to install.
absl::StatusOr<NcclApi> FindNccl(const std::function<void*(const char* name)>& find);

}  // namespace overtok
