#include "trainer/checkpoint_tensors.h"

#include <algorithm>

#include "core/io/hash.h"
#include "core/io/hdf5.h"

namespace overtok {
namespace {

constexpr int64_t kVersion = 1;
constexpr char kFormat[] = "overtok checkpoint";

std::string DatasetOf(absl::string_view name) { return absl::StrCat("/tensors/", name); }

std::string ToText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

std::vector<int64_t> DimsOf(const Tensor& tensor) {
  std::vector<int64_t> dims;
  dims.reserve(static_cast<size_t>(tensor.rank()));
  for (int i = 0; i < tensor.rank(); ++i) dims.push_back(tensor.dim(i));
  return dims;
}

// The hash of all tensors so far, and one more.
uint64_t Extend(uint64_t hash, const std::string& name, uint64_t tensor_hash) {
  hash = Xxh3(name.data(), static_cast<int64_t>(name.size()), hash);
  return Xxh3(&tensor_hash, sizeof(tensor_hash), hash);
}

absl::Status CheckHeader(const Hdf5File& file, absl::string_view kind, int64_t step) {
  OT_ASSIGN_OR_RETURN(const std::string format, file.GetText("/", "format"));
  OT_ASSIGN_OR_RETURN(const int64_t version, file.GetInt("/", "version"));
  OT_ASSIGN_OR_RETURN(const std::string found_kind, file.GetText("/", "kind"));
  OT_ASSIGN_OR_RETURN(const int64_t found_step, file.GetInt("/", "step"));
  if (format != kFormat || found_kind != kind) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is \"", format, "\" of kind \"", found_kind, "\", expected \"",
                     std::string(kFormat), "\" of kind \"", kind, "\""));
  }
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), " has version ", version, " of the format, this program reads ", kVersion));
  }
  if (found_step != step) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), " is of step ", found_step,
                                                   ", its directory says ", step,
                                                   ": it was put there by hand"));
  }
  return absl::OkStatus();
}

// Everything is compared before the first byte is read.
absl::Status CheckShapes(const Hdf5File& file, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& entry : tensors) {
    const std::string dataset = DatasetOf(entry.name);
    if (!file.Exists(dataset)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), " has no tensor ", entry.name,
                       ", which this configuration's model or optimizer needs"));
    }
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file.Info(dataset));
    if (info.shape != DimsOf(entry.tensor) || info.dtype != entry.tensor.dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": ", entry.name, " is ", NameOf(info.dtype), " ",
                       ToText(info.shape), ", this configuration needs ",
                       NameOf(entry.tensor.dtype()), " ", ToText(DimsOf(entry.tensor))));
    }
  }
  return absl::OkStatus();
}

// Returns one hash of all names and bytes.
absl::StatusOr<uint64_t> ReadAll(const Hdf5File& file, const std::vector<NamedTensor>& tensors) {
  uint64_t hash = 0;
  for (const NamedTensor& entry : tensors) {
    const std::string dataset = DatasetOf(entry.name);
    OT_RETURN_IF_ERROR(file.Read(dataset, entry.tensor));
    OT_ASSIGN_OR_RETURN(const uint64_t expected, file.GetUint(dataset, "xxh3"));
    hash = Extend(hash, entry.name, expected);
    if (Xxh3(entry.tensor.raw(), entry.tensor.bytes()) != expected) {
      return absl::DataLossError(absl::StrCat(
          file.path(), ": the bytes of ", entry.name,
          " do not match their checksum: the file was damaged after it was written; remove this "
          "checkpoint's directory to go on from the one before"));
    }
  }
  return hash;
}

}  // namespace

absl::StatusOr<uint64_t> WriteTensors(absl::string_view path, absl::string_view kind, int64_t step,
                                      const std::vector<NamedTensor>& tensors) {
  OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(path));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "format", absl::string_view(kFormat)));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "version", kVersion));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "kind", kind));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "step", step));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "tensors", static_cast<int64_t>(tensors.size())));
  OT_RETURN_IF_ERROR(file.CreateGroup("/tensors"));
  uint64_t hash = 0;
  for (const NamedTensor& entry : tensors) {
    const std::string dataset = DatasetOf(entry.name);
    const uint64_t tensor_hash = Xxh3(entry.tensor.raw(), entry.tensor.bytes());
    OT_RETURN_IF_ERROR(file.Write(dataset, entry.tensor));
    OT_RETURN_IF_ERROR(file.SetAttribute(dataset, "xxh3", tensor_hash));
    hash = Extend(hash, entry.name, tensor_hash);
  }
  OT_RETURN_IF_ERROR(file.Close());
  return hash;
}

absl::StatusOr<uint64_t> ReadTensors(absl::string_view path, absl::string_view kind, int64_t step,
                                     const std::vector<NamedTensor>& tensors) {
  OT_ASSIGN_OR_RETURN(const Hdf5File file, Hdf5File::OpenRead(path));
  OT_RETURN_IF_ERROR(CheckHeader(file, kind, step));
  OT_RETURN_IF_ERROR(CheckShapes(file, tensors));
  OT_ASSIGN_OR_RETURN(const int64_t count, file.GetInt("/", "tensors"));
  if (count != static_cast<int64_t>(tensors.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", count, " tensors, this configuration has ", tensors.size()));
  }
  return ReadAll(file, tensors);
}

absl::Status ReadSomeTensors(absl::string_view path, absl::string_view kind, int64_t step,
                             const std::vector<NamedTensor>& tensors) {
  OT_ASSIGN_OR_RETURN(const Hdf5File file, Hdf5File::OpenRead(path));
  OT_RETURN_IF_ERROR(CheckHeader(file, kind, step));
  OT_RETURN_IF_ERROR(CheckShapes(file, tensors));
  return ReadAll(file, tensors).status();
}

}  // namespace overtok
