#include "core/cuda/nccl_api.h"

namespace overtok {

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<NcclApi> FindNccl(const std::function<void*(const char* name)>& find) {
  NcclApi api;
  const char* missing = nullptr;
  const auto take = [&](auto& function, const char* name) {
    void* const found = find(name);
    if (found == nullptr && missing == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  take(api.GetVersion, "ncclGetVersion");
  take(api.GetUniqueId, "ncclGetUniqueId");
  take(api.GetErrorString, "ncclGetErrorString");
  take(api.GetLastError, "ncclGetLastError");
  take(api.CommInitRankConfig, "ncclCommInitRankConfig");
  take(api.CommGetAsyncError, "ncclCommGetAsyncError");
  take(api.CommFinalize, "ncclCommFinalize");
  take(api.CommDestroy, "ncclCommDestroy");
  take(api.CommAbort, "ncclCommAbort");
  take(api.GroupStart, "ncclGroupStart");
  take(api.GroupEnd, "ncclGroupEnd");
  take(api.Send, "ncclSend");
  take(api.Recv, "ncclRecv");
  take(api.AllGather, "ncclAllGather");
  int version = 0;
  if (api.GetVersion != nullptr && api.GetVersion(&version) == ncclSuccess &&
      version < kOldestNccl) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL ", NcclVersionText(version), " is too old: ranks on GPUs need ",
                     NcclVersionText(kOldestNccl), " or later; install a newer libnccl2"));
  }
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NCCL library has no function ", missing, ": ranks on GPUs need NCCL ",
                     NcclVersionText(kOldestNccl), " or later; install a newer libnccl2"));
  }
  return api;
}

}  // namespace overtok
