#include "trainer/initial_weights.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/io/files.h"
#include "model/hf_config.h"
#include "trainer/initial_weights_reader.h"

namespace overtok {
namespace {

bool SameShape(const std::vector<int64_t>& stored, const Shape& expected) {
  if (static_cast<int>(stored.size()) != expected.rank()) return false;
  for (int i = 0; i < expected.rank(); ++i) {
    if (stored[static_cast<size_t>(i)] != expected[i]) return false;
  }
  return true;
}

// What is wrong with a stored tensor that should be a weight of this shape; "" when nothing is.
std::string Fault(const Safetensors& files, const SafetensorsEntry& stored, const Shape& expected) {
  if (!SameShape(stored.shape, expected)) {
    return absl::StrCat(stored.name, ": shape ", FormatShape(stored.shape), " in ",
                        files.PathOf(stored), ", expected ", expected.ToString());
  }
  if (!IsReadableFloat(stored.type)) {
    return absl::StrCat(stored.name, ": type ", std::string(NameOf(stored.type)), " in ",
                        files.PathOf(stored), ", expected F32, BF16, F16 or F64");
  }
  return "";
}

// Between the files and the model, as far as tensors go.
std::vector<std::string> TensorDifferences(const Safetensors& files, const ModelConfig& model,
                                           const std::vector<HfPlace>& places) {
  std::vector<std::string> differences;
  std::set<std::string> expected;
  const auto look_at = [&](const SafetensorsEntry& stored, const Shape& shape) {
    expected.insert(stored.name);
    std::string fault = Fault(files, stored, shape);
    if (!fault.empty()) differences.push_back(std::move(fault));
  };
  for (const HfPlace& place : places) {
    const SafetensorsEntry* stored = files.Find(place.hf_name);
    if (stored != nullptr) {
      look_at(*stored, place.shape);
      continue;
    }
    differences.push_back(absl::StrCat(
        place.hf_name, ": missing, expected ", place.shape.ToString(), " for ", place.name,
        place.hf_name == kHfHead
            ? "; model.tie_word_embeddings is false, and the head is not made from the embedding"
            : ""));
  }
  // Some tied checkpoints store the head as well; Fill compares its values.
  const SafetensorsEntry* head = files.Find(kHfHead);
  if (model.tie_word_embeddings && head != nullptr) {
    look_at(*head, {model.vocab_size, model.hidden_size});
  }
  for (const SafetensorsEntry& stored : files.tensors()) {
    if (expected.count(stored.name) == 0) {
      differences.push_back(absl::StrCat(stored.name, ": ", FormatShape(stored.shape), " in ",
                                         files.PathOf(stored),
                                         ", has no place in the configured model"));
    }
  }
  return differences;
}

absl::Status DifferencesError(const Safetensors& files,
                              const std::vector<std::string>& differences) {
  constexpr size_t kMost = 200;
  std::string text = absl::StrCat(files.path(), ": does not fit the section model, ",
                                  differences.size(), " differences:");
  for (size_t i = 0; i < std::min(kMost, differences.size()); ++i) {
    absl::StrAppend(&text, "\n  ", differences[i]);
  }
  if (differences.size() > kMost) {
    absl::StrAppend(&text, "\n  and ", differences.size() - kMost, " more");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<InitialWeights> InitialWeights::Open(absl::string_view path,
                                                    const ModelConfig& model,
                                                    NewParameters policy) {
  OT_ASSIGN_OR_RETURN(Safetensors files, Safetensors::Open(path));
  const std::string config = JoinPath(files.directory(), "config.json");
  if (!PathExists(config)) {
    return absl::NotFoundError(
        absl::StrCat(config,
                     ": missing; the model's config.json has to lie beside its weights, "
                     "because shapes alone do not say which model they are of"));
  }
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> of_config, CompareWithHfConfig(config, model));
  std::vector<std::string> differences;
  differences.reserve(of_config.size());
  for (const std::string& difference : of_config) {
    differences.push_back(absl::StrCat(config, ": ", difference));
  }
  std::vector<HfPlace> places = HfPlaces(model);
  for (std::string& difference : TensorDifferences(files, model, places)) {
    differences.push_back(std::move(difference));
  }
  if (policy == NewParameters::kRefuse) {
    for (const std::string& key : WithoutHfPlace(model)) {
      differences.push_back(absl::StrCat(key,
                                         ": not in a Qwen3 checkpoint; turn it off, or let "
                                         "new parameters be drawn"));
    }
  }
  if (!differences.empty()) return DifferencesError(files, differences);
  InitialWeights weights(std::move(files), std::move(places), policy);
  if (model.tie_word_embeddings) weights.tied_head_ = weights.files_.Find(kHfHead);
  return weights;
}

absl::StatusOr<FilledWeights> InitialWeights::Fill(const std::vector<ShardedTensor>& wanted,
                                                   int64_t buffer_bytes) const {
  const auto start = std::chrono::steady_clock::now();
  const int64_t read_before = files_.bytes_read();
  const int64_t piece_elements =
      buffer_bytes / static_cast<int64_t>(sizeof(float)) / internal::PieceReader::kBuffers;
  OT_CHECK_GE(piece_elements, 4);
  std::map<std::string, const HfPlace*> places;
  for (const HfPlace& place : places_) places[place.name] = &place;

  FilledWeights filled;
  std::vector<internal::Piece> pieces;
  for (const ShardedTensor& part : wanted) {
    const auto at = places.find(part.name);
    if (at == places.end()) {
      OT_CHECK(policy_ == NewParameters::kDraw) << part.name << " has no place in the files";
      if (std::find(filled.drawn.begin(), filled.drawn.end(), part.name) == filled.drawn.end()) {
        filled.drawn.push_back(part.name);
      }
      continue;
    }
    const HfPlace& place = *at->second;
    OT_CHECK(part.region.logical == place.shape && part.tensor.dtype() == DType::kF32 &&
             part.tensor.elements() == part.region.count)
        << part.name;
    if (part.region.count > 0) ++filled.tensors;
    const SafetensorsEntry* stored = files_.Find(place.hf_name);
    const SafetensorsEntry* twin = place.hf_name == kHfEmbedding ? tied_head_ : nullptr;
    for (int64_t i = 0; i < part.region.count; i += piece_elements) {
      Region region = part.region;
      region.begin += i;
      region.count = std::min(piece_elements, part.region.count - i);
      pieces.push_back({stored, twin, region, part.tensor.data<float>() + i});
    }
  }

  internal::PieceReader reader(files_, pieces, piece_elements);
  for (const internal::Piece& piece : pieces) {
    const float* values = reader.Next();
    if (values == nullptr) return reader.status();
    std::memcpy(piece.destination, values, static_cast<size_t>(piece.region.count) * sizeof(float));
  }
  filled.bytes_read = files_.bytes_read() - read_before;
  filled.file_bytes = files_.total_bytes();
  filled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  filled.waited = reader.waited();
  return filled;
}

absl::StatusOr<FilledWeights> LoadInitialWeights(absl::string_view path, const ModelConfig& model,
                                                 NewParameters policy,
                                                 const std::vector<ShardedTensor>& wanted) {
  OT_ASSIGN_OR_RETURN(const InitialWeights weights, InitialWeights::Open(path, model, policy));
  return weights.Fill(wanted);
}

}  // namespace overtok
