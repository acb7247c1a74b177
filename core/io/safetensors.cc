#include "core/io/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/io/files.h"

namespace overtok {
namespace {

constexpr char kFileName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndex = int64_t{1} << 28;

std::string DirectoryOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

// The file or index that a directory holds.
absl::StatusOr<std::string> FindInDirectory(absl::string_view directory) {
  const std::string file = JoinPath(directory, kFileName), index = JoinPath(directory, kIndexName);
  const bool has_file = PathExists(file), has_index = PathExists(index);
  if (has_file && has_index) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": holds both ", kFileName, " and ",
                                                   kIndexName, "; name the one that is meant"));
  }
  if (!has_file && !has_index) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": holds neither ", kFileName, " nor ", kIndexName));
  }
  return has_file ? file : index;
}

// The index's `weight_map`: tensor, name of its file.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndex));
  namespace dom = simdjson::dom;
  const auto invalid = [&path](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
  };
  dom::parser parser;
  dom::element root;
  const simdjson::error_code error = parser.parse(text.data(), text.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return invalid("not valid JSON: ", std::string(simdjson::error_message(error)));
  }
  dom::object entries;
  if (root["weight_map"].get(entries) != simdjson::SUCCESS) {
    return invalid("has no weight_map; expected a JSON object with weight_map: {tensor: file}");
  }
  std::map<std::string, std::string> map;
  for (const dom::key_value_pair& entry : entries) {
    const std::string tensor(entry.key);
    std::string_view file;
    if (entry.value.get(file) != simdjson::SUCCESS || file.empty()) {
      return invalid("weight_map: ", tensor, ": expected the name of a file");
    }
    if (file.find('/') != std::string_view::npos || file == "." || file == "..") {
      return invalid("weight_map: ", tensor, ": ", std::string(file),
                     " names a directory; expected a file beside the index");
    }
    if (!map.emplace(tensor, std::string(file)).second) {
      return invalid("weight_map: two entries named ", tensor);
    }
  }
  return map;
}

}  // namespace

absl::StatusOr<Safetensors> Safetensors::Open(absl::string_view path) {
  Safetensors files;
  files.path_ = std::string(path);
  if (IsDirectory(path)) {
    OT_ASSIGN_OR_RETURN(files.path_, FindInDirectory(path));
  }
  if (absl::EndsWith(files.path_, ".index.json")) {
    OT_RETURN_IF_ERROR(files.OpenIndex());
  } else {
    OT_RETURN_IF_ERROR(files.AddFile(files.path_));
  }
  std::sort(files.tensors_.begin(), files.tensors_.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  return files;
}

absl::Status Safetensors::AddFile(const std::string& path) {
  OT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  OT_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(path, file.data(), file.size()));
  for (SafetensorsEntry& tensor : header.tensors) {
    tensor.file = static_cast<int>(files_.size());
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Safetensors::OpenIndex() {
  OT_ASSIGN_OR_RETURN(const auto weight_map, ReadWeightMap(path_));
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  for (const std::string& name : names) {
    OT_RETURN_IF_ERROR(AddFile(JoinPath(directory(), name)));
  }
  // Each tensor is where the index places it, and nowhere else; all of the differences at once.
  std::string differences;
  std::set<std::string> found;
  for (const SafetensorsEntry& tensor : tensors_) {
    const auto placed = weight_map.find(tensor.name);
    if (placed == weight_map.end()) {
      absl::StrAppend(&differences, "\n  ", tensor.name, ": in ", PathOf(tensor),
                      ", not in the index");
    } else if (JoinPath(directory(), placed->second) != PathOf(tensor)) {
      absl::StrAppend(&differences, "\n  ", tensor.name, ": in ", PathOf(tensor),
                      ", the index says ", placed->second);
    } else {
      found.insert(tensor.name);
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (found.count(tensor) == 0) {
      absl::StrAppend(&differences, "\n  ", tensor, ": not in ", file,
                      ", where the index places it");
    }
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": the index and its files do not agree:", differences));
}

std::string Safetensors::directory() const { return DirectoryOf(path_); }

const SafetensorsEntry* Safetensors::Find(absl::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const SafetensorsEntry& tensor, absl::string_view wanted) {
                                     return tensor.name < wanted;
                                   });
  return at == tensors_.end() || at->name != name ? nullptr : &*at;
}

void Safetensors::ReadF32(const SafetensorsEntry& tensor, int64_t begin, int64_t count,
                          float* out) const {
  OT_CHECK(begin >= 0 && count >= 0 && begin + count <= tensor.elements) << tensor.name;
  const int64_t size = SizeOf(tensor.type);
  StoredToF32(tensor.type, File(tensor).data() + tensor.begin + begin * size, count, out);
  bytes_read_->fetch_add(count * size, std::memory_order_relaxed);
}

void Safetensors::WillNeed(const SafetensorsEntry& tensor, int64_t begin, int64_t count) const {
  const int64_t size = SizeOf(tensor.type);
  File(tensor).WillNeed(tensor.begin + begin * size, tensor.begin + (begin + count) * size);
}

void Safetensors::Done(const SafetensorsEntry& tensor, int64_t begin, int64_t count) const {
  const int64_t size = SizeOf(tensor.type);
  File(tensor).Done(tensor.begin + begin * size, tensor.begin + (begin + count) * size);
}

int64_t Safetensors::total_bytes() const {
  int64_t bytes = 0;
  for (const SafetensorsEntry& tensor : tensors_) bytes += tensor.end - tensor.begin;
  return bytes;
}

}  // namespace overtok
