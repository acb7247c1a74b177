// The one wrapper around HDF5 (C API, serial build): every other file of the project reads and
// writes HDF5 through it. Datasets are contiguous, little-endian, with early allocation and
// 4,096-byte alignment, so that their bytes can be mapped. Not thread-safe by itself: one mutex
// inside guards every library call. File locking is off for read-only opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"

namespace overtok {

struct Hdf5DatasetInfo {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  bool contiguous = false;  // one block of bytes at `offset`, in this machine's byte order
  int64_t offset = -1;      // address in the file; -1 when not contiguous or not allocated
};

class Hdf5File {
 public:
  // Creates (truncates) `path`. Close() reports errors that only show then; the destructor closes
  // silently.
  static absl::StatusOr<Hdf5File> Create(absl::string_view path);
  static absl::StatusOr<Hdf5File> OpenRead(absl::string_view path);
  Hdf5File(Hdf5File&& other) noexcept;
  Hdf5File& operator=(Hdf5File&& other) noexcept;
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;
  ~Hdf5File();
  absl::Status Flush();
  absl::Status Close();  // flushes, closes and fsyncs a file that was created
  const std::string& path() const { return path_; }

  // Object paths look like "/step_000000/grads/embed.weight"; missing groups on the way are
  // created.
  absl::Status CreateGroup(absl::string_view group);
  absl::Status Write(absl::string_view dataset, const Tensor& host_tensor);
  // A dataset of `shape` that is filled piece by piece; `begin` counts elements of the flattened
  // dataset.
  absl::Status CreateDataset(absl::string_view dataset, DType dtype,
                             const std::vector<int64_t>& shape);
  absl::Status WriteRange(absl::string_view dataset, int64_t begin, const Tensor& host_tensor);

  bool Exists(absl::string_view object) const;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view group) const;  // names, sorted
  absl::StatusOr<Hdf5DatasetInfo> Info(absl::string_view dataset) const;
  // Reads the whole dataset into `host_tensor`; dtype and number of elements must agree, else an
  // error naming both.
  absl::Status Read(absl::string_view dataset, const Tensor& host_tensor) const;
  absl::Status ReadRange(absl::string_view dataset, int64_t begin, const Tensor& host_tensor) const;

  // Attributes of a group or dataset ("/" is the root). Reading a missing one is a NotFound error
  // naming it.
  absl::Status SetAttribute(absl::string_view object, absl::string_view name,
                            absl::string_view text);
  absl::Status SetAttribute(absl::string_view object, absl::string_view name, int64_t value);
  absl::Status SetAttribute(absl::string_view object, absl::string_view name, uint64_t value);
  absl::Status SetAttribute(absl::string_view object, absl::string_view name, double value);
  absl::StatusOr<std::string> GetText(absl::string_view object, absl::string_view name) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view object, absl::string_view name) const;
  absl::StatusOr<uint64_t> GetUint(absl::string_view object, absl::string_view name) const;
  absl::StatusOr<double> GetDouble(absl::string_view object, absl::string_view name) const;
  bool HasAttribute(absl::string_view object, absl::string_view name) const;

 private:
  Hdf5File() = default;
  std::string path_;
  int64_t id_ = -1;  // hid_t
  bool writable_ = false;
};

}  // namespace overtok
