#include "core/cuda/libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace overtok::cuda {
namespace {

std::vector<std::string> Environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return {};
  return absl::StrSplit(value, ':', absl::SkipEmpty());
}

std::vector<std::string> Glob(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

bool IsFolder(const std::string& path) {
  struct stat facts = {};
  return stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

bool IsThere(const std::string& path) {
  struct stat facts = {};
  return stat(path.c_str(), &facts) == 0;
}

// Adds each folder that exists and is new.
class Folders {
 public:
  void Add(const std::string& path) {
    if (IsFolder(path) && std::find(list_.begin(), list_.end(), path) == list_.end())
      list_.push_back(path);
  }
  // The folders in which a Python's packages of NVIDIA keep their libraries.
  void AddPackages(const std::string& packages) {
    for (const std::string& folder : Glob(packages + "/nvidia/*/lib")) Add(folder);
  }
  // Those of a Python installed under `prefix`.
  void AddPython(const std::string& prefix) {
    for (const char* packages : {"site-packages", "dist-packages"})
      AddPackages(absl::StrCat(prefix, "/lib*/python3*/", packages));
  }
  std::vector<std::string> Take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// What dlopen says, with an empty result instead of a null pointer.
std::string LastError() {
  const char* error = dlerror();
  return error == nullptr ? "no reason given" : error;
}

absl::StatusOr<void*> Open(const LibraryRequest& request) {
  std::vector<std::string> refused;
  const auto try_file = [&refused](const std::string& file) -> void* {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) refused.push_back(LastError());
    return library;
  };
  const auto try_folders = [&](const std::vector<std::string>& folders) -> void* {
    for (const std::string& folder : folders) {
      for (const std::string& file : request.files) {
        const std::string path = absl::StrCat(folder, "/", file);
        if (!IsThere(path)) continue;
        if (void* library = try_file(path)) return library;
      }
    }
    return nullptr;
  };
  const std::vector<std::string> first = Environment("OVERTOK_LIBRARY_PATH");
  if (void* library = try_folders(first)) return library;
  for (const std::string& file : request.files)
    if (void* library = try_file(file)) return library;
  const std::vector<std::string> folders = LibraryFolders();
  if (void* library = try_folders(folders)) return library;

  std::string message = absl::StrCat(request.what, " was not found: none of ",
                                     absl::StrJoin(request.files, ", "), " could be opened");
  absl::StrAppend(&message, "; looked into OVERTOK_LIBRARY_PATH (",
                  first.empty() ? "not set" : absl::StrJoin(first, ", "),
                  "), the system's library folders and LD_LIBRARY_PATH, and ",
                  folders.empty() ? "no other folder, as none of the usual ones exists"
                                  : absl::StrJoin(folders, ", "));
  absl::StrAppend(&message, "; the system said: ", absl::StrJoin(refused, "; "), ". Install ",
                  request.package, ", or name its folder in OVERTOK_LIBRARY_PATH");
  return absl::NotFoundError(message);
}

}  // namespace

LibraryRequest CublasLtRequest() {
  return {.what = "cuBLASLt",
          .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
          .package = "the CUDA toolkit's libcublas, or nvidia-cublas from PyPI"};
}
LibraryRequest NcclRequest() {
  return {
      .what = "NCCL", .files = {"libnccl.so.2"}, .package = "libnccl2, or nvidia-nccl from PyPI"};
}
LibraryRequest CudnnRequest() {
  return {.what = "cuDNN",
          .files = {"libcudnn.so.9"},
          .package = "libcudnn9 (9.25 or later), or nvidia-cudnn-cu13 from PyPI"};
}

std::vector<std::string> LibraryFolders() {
  Folders folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    for (const std::string& home : Environment(name)) {
      folders.Add(home + "/lib64");
      folders.Add(home + "/lib");
    }
  }
  for (const char* usual :
       {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu", "/usr/lib/wsl/lib"})
    folders.Add(usual);
  for (const std::string& versioned : Glob("/usr/local/cuda-1[23]*/lib64")) folders.Add(versioned);

  for (const std::string& packages : Environment("PYTHONPATH")) folders.AddPackages(packages);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    for (const std::string& prefix : Environment(name)) {
      folders.Add(prefix + "/lib");
      folders.AddPython(prefix);
    }
  }
  for (const std::string& programs : Environment("PATH"))
    if (IsThere(programs + "/python3")) folders.AddPython(programs + "/..");
  for (const std::string& home : Environment("HOME")) folders.AddPython(home + "/.local");
  for (const char* prefix : {"/usr/local", "/usr", "/opt/conda", "/opt/venv"})
    folders.AddPython(prefix);
  folders.AddPackages("/usr/lib/python3/dist-packages");
  return folders.Take();
}

absl::StatusOr<void*> OpenLibrary(const LibraryRequest& request) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, void*> opened;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at = opened.find(request.files);
  if (at != opened.end()) return at->second;
  OT_ASSIGN_OR_RETURN(void* library, Open(request));
  opened[request.files] = library;
  return library;
}

std::string LibraryFile(void* library) {
  struct link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "an unknown file";
  return map->l_name;
}

absl::StatusOr<void*> FindSymbol(void* library, const std::string& symbol) {
  dlerror();
  void* address = dlsym(library, symbol.c_str());
  if (address == nullptr) {
    return absl::NotFoundError(absl::StrCat(LibraryFile(library), " has no ", symbol,
                                            ": a version that this program was not made for"));
  }
  return address;
}

}  // namespace overtok::cuda
