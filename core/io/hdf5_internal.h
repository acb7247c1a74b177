// What the files of the HDF5 wrapper share: the lock, owning handles, errors, and the map between
// our dtypes and HDF5 types. Included by the wrapper's own sources only.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"

namespace overtok::internal {

// Held around every library call. Also silences the library's own printing of errors, which is a
// setting of each thread.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::mutex> lock_;
};

class Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) closer_(id_);
  }
  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  Closer closer_;
};

// "cannot <what> in <path>: <the library's innermost reason>".
absl::Status Hdf5Error(absl::string_view what, absl::string_view path);

hid_t NativeType(DType dtype);  // type in memory; the caller does not own it
hid_t FileType(DType dtype);    // little-endian type in the file; not owned either
// The dtype of a stored type (of either byte order); an Unimplemented error for any other.
absl::StatusOr<DType> DTypeOfStored(hid_t type);
// Whether the stored bytes are in this machine's order.
bool IsNativeOrder(hid_t type);

}  // namespace overtok::internal
