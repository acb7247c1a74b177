// Reading weights from safetensors files: one file, or several with an index. Files are mapped, so
// that of a tensor only the elements asked for are read; a file is never held in memory whole.
// Format: docs/formats/safetensors.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/io/mapped_file.h"
#include "core/io/safetensors_header.h"
#include "core/status.h"

namespace overtok {

class Safetensors {
 public:
  // `path` is a file *.safetensors, an index *.index.json whose `weight_map` names files beside it,
  // or a directory with model.safetensors or model.safetensors.index.json (both: an error). Errors
  // are those of the headers, and of an index: not JSON, a name twice, a file name with a
  // directory in it, a tensor that its file lacks or that a file has and the index does not place
  // there.
  static absl::StatusOr<Safetensors> Open(absl::string_view path);

  // All tensors, ascending names, each once.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  const SafetensorsEntry* Find(absl::string_view name) const;  // null when there is none
  // Of the file that holds it.
  const std::string& PathOf(const SafetensorsEntry& tensor) const { return File(tensor).path(); }
  // What was opened: the file or the index.
  const std::string& path() const { return path_; }
  std::string directory() const;

  // Elements [begin, begin + count) as f32. The type is a readable float (core/io/stored_type.h),
  // the range inside the tensor; anything else is a bug. Threads may read at once.
  void ReadF32(const SafetensorsEntry& tensor, int64_t begin, int64_t count, float* out) const;
  // The elements will be read soon: their pages begin to come in.
  void WillNeed(const SafetensorsEntry& tensor, int64_t begin, int64_t count) const;
  // The elements are done with: their pages leave this process.
  void Done(const SafetensorsEntry& tensor, int64_t begin, int64_t count) const;

  // Bytes of tensors that ReadF32 has read so far, and those of all tensors of the files.
  int64_t bytes_read() const { return bytes_read_->load(std::memory_order_relaxed); }
  int64_t total_bytes() const;

 private:
  Safetensors() : bytes_read_(std::make_unique<std::atomic<int64_t>>(0)) {}
  absl::Status AddFile(const std::string& path);
  absl::Status OpenIndex();
  const MappedFile& File(const SafetensorsEntry& tensor) const {
    return files_[static_cast<size_t>(tensor.file)];
  }

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<SafetensorsEntry> tensors_;
  std::unique_ptr<std::atomic<int64_t>> bytes_read_;  // apart, so that the object can be moved
};

}  // namespace overtok
