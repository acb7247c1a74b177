// NVIDIA's libraries, found when they are needed instead of linked: a program made with the CUDA
// backend starts on machines that have none of them, and takes cuBLASLt, NCCL and cuDNN from the
// system or from the nvidia folders of Python's packages. Needs no CUDA to build.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok::cuda {

struct LibraryRequest {
  std::string what;                // for people: "cuBLASLt"
  std::vector<std::string> files;  // the first found is taken: "libcublasLt.so.13", ...
  std::string package;             // what to install: "nvidia-cublas (PyPI), or the CUDA toolkit"
};
LibraryRequest CublasLtRequest();  // of CUDA 13 or 12
LibraryRequest NcclRequest();      // libnccl.so.2
LibraryRequest CudnnRequest();     // libcudnn.so.9

// Opens a library and keeps it open until the program ends; asked again for the same files it gives
// the same handle. Looked for, in this order: the folders of OVERTOK_LIBRARY_PATH (colons
// between), the system's own search (LD_LIBRARY_PATH, its cache), the folders of CUDA_HOME and of
// usual installations, and nvidia/*/lib of every Python found by VIRTUAL_ENV, CONDA_PREFIX,
// PYTHONPATH, PATH, and in usual places. NotFound: names the files, each place looked at, and what
// the system said of a file that was there and could not be opened.
absl::StatusOr<void*> OpenLibrary(const LibraryRequest& request);

// The file that a handle of OpenLibrary was read from.
std::string LibraryFile(void* library);

// The folders that OpenLibrary looks into after the system's own search, in order; those that do
// not exist are left out.
std::vector<std::string> LibraryFolders();

// The address of a symbol. NotFound: names the symbol and the file.
absl::StatusOr<void*> FindSymbol(void* library, const std::string& symbol);

// The same with its type: decltype(&cublasLtCreate) create; Resolve(library, "cublasLtCreate",
// &create).
template <class Function>
absl::Status Resolve(void* library, const std::string& symbol, Function** to) {
  OT_ASSIGN_OR_RETURN(void* address, FindSymbol(library, symbol));
  *to = reinterpret_cast<Function*>(address);
  return absl::OkStatus();
}

}  // namespace overtok::cuda
