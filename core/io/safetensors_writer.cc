#include "core/io/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/io/files.h"

namespace overtok {
namespace {

int64_t BytesOf(const TensorToStore& tensor) {
  return tensor.values.elements() * SizeOf(tensor.type);
}

// Never throws: a name that is no UTF-8 is spelled with replacement characters.
std::string Dump(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The length, the header and its padding.
std::string Header(const std::vector<TensorToStore>& tensors) {
  nlohmann::json header;  // keys ascending
  header["__metadata__"]["format"] = "pt";
  int64_t at = 0;
  for (const TensorToStore& tensor : tensors) {
    nlohmann::json shape = nlohmann::json::array();
    for (int i = 0; i < tensor.values.rank(); ++i) shape.push_back(tensor.values.dim(i));
    OT_CHECK(!header.contains(tensor.name)) << "two tensors named " << tensor.name;
    header[tensor.name] = {{"dtype", NameOf(tensor.type)},
                           {"shape", std::move(shape)},
                           {"data_offsets", {at, at + BytesOf(tensor)}}};
    at += BytesOf(tensor);
  }
  std::string text = Dump(header, -1);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path), file_(std::fopen(path.c_str(), "wbe"), std::fclose) {}
  bool open() const { return file_ != nullptr; }
  absl::Status Failed(absl::string_view what) const {
    const std::string message =
        absl::StrCat("cannot ", what, " ", path_, ": ", std::string(std::strerror(errno)));
    return errno == ENOSPC || errno == EDQUOT ? absl::ResourceExhaustedError(message)
                                              : absl::UnavailableError(message);
  }
  absl::Status Write(const char* data, size_t bytes) {
    if (std::fwrite(data, 1, bytes, file_.get()) != bytes) return Failed("write");
    return absl::OkStatus();
  }
  absl::Status Close() {
    if (std::fclose(file_.release()) != 0) return Failed("close");
    return absl::OkStatus();
  }

 private:
  std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
};

absl::Status WriteData(const TensorToStore& tensor, OutputFile* out) {
  constexpr int64_t kChunk = int64_t{1} << 18;
  const int64_t size = SizeOf(tensor.type), elements = tensor.values.elements();
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunk, elements) * size));
  for (int64_t i = 0; i < elements; i += kChunk) {
    const int64_t count = std::min(kChunk, elements - i);
    F32ToStored(tensor.type, tensor.values.data<float>() + i, count, chunk.data());
    OT_RETURN_IF_ERROR(out->Write(chunk.data(), static_cast<size_t>(count * size)));
  }
  return absl::OkStatus();
}

absl::Status WriteTo(const std::string& temporary, const std::vector<TensorToStore>& tensors) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", temporary));
  OutputFile out(temporary);
  if (!out.open()) return out.Failed("create");
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", temporary));
  const std::string header = Header(tensors);
  OT_RETURN_IF_ERROR(out.Write(header.data(), header.size()));
  for (const TensorToStore& tensor : tensors) OT_RETURN_IF_ERROR(WriteData(tensor, &out));
  OT_RETURN_IF_ERROR(out.Close());
  return FsyncFile(temporary);
}

}  // namespace

absl::Status WriteSafetensors(absl::string_view path, std::vector<TensorToStore> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToStore& a, const TensorToStore& b) {
    const int64_t size_a = SizeOf(a.type), size_b = SizeOf(b.type);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteTo(temporary, tensors);
  if (status.ok()) status = RenamePath(temporary, path);
  if (!status.ok()) std::remove(temporary.c_str());
  return status;
}

absl::Status WriteSafetensorsFiles(absl::string_view directory,
                                   const std::vector<TensorToStore>& tensors,
                                   int64_t bytes_of_file) {
  std::vector<std::vector<TensorToStore>> files(1);
  std::set<std::string> names;
  int64_t total = 0, in_file = 0;
  for (const TensorToStore& tensor : tensors) {
    OT_CHECK(names.insert(tensor.name).second) << "two tensors named " << tensor.name;
    const int64_t bytes = BytesOf(tensor);
    if (in_file + bytes > bytes_of_file && !files.back().empty()) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(tensor);
    in_file += bytes;
    total += bytes;
  }
  if (files.size() == 1) {
    return WriteSafetensors(JoinPath(directory, "model.safetensors"), std::move(files[0]));
  }
  nlohmann::json index;
  index["metadata"]["total_size"] = total;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    for (const TensorToStore& tensor : files[i]) index["weight_map"][tensor.name] = name;
    OT_RETURN_IF_ERROR(WriteSafetensors(JoinPath(directory, name), std::move(files[i])));
  }
  return WriteFileAtomically(JoinPath(directory, "model.safetensors.index.json"),
                             absl::StrCat(Dump(index, 2), "\n"));
}

}  // namespace overtok
