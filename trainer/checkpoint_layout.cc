#include "trainer/checkpoint_layout.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/checkpoint_hash.h"

namespace overtok {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "overtok checkpoint tensors";
constexpr std::array<const char*, 5> kSplits = {"whole", "rows", "columns", "blocks", "scattered"};
constexpr std::array<DType, 9> kDTypes = {DType::kF32, DType::kF64, DType::kBF16,
                                          DType::kI32, DType::kU32, DType::kU16,
                                          DType::kU8,  DType::kI64, DType::kU64};

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }
uint64_t FromHex(const Json& json) { return std::stoull(json.get<std::string>(), nullptr, 16); }

Json ToJson(const StoredPiece& piece) {
  Json shape = Json::array();
  for (int i = 0; i < piece.region.logical.rank(); ++i) shape.push_back(piece.region.logical[i]);
  const Sharding& sharding = piece.region.sharding;
  return {{"kind", NameOf(piece.kind)},
          {"tensor", piece.name},
          {"dtype", NameOf(piece.dtype)},
          {"shape", shape},
          {"split", kSplits[static_cast<size_t>(sharding.split)]},
          {"parts", sharding.parts},
          {"part", sharding.part},
          {"unit", sharding.unit},
          {"begin", piece.region.begin},
          {"count", piece.region.count},
          {"offset", piece.offset},
          {"xxh3", Hex(piece.xxh3)},
          {"sum", Hex(piece.sum)}};
}

absl::StatusOr<Shape> ShapeFrom(const std::vector<int64_t>& d) {
  int64_t left = int64_t{1} << 60;  // elements: products stay within 64 bits
  for (const int64_t size : d) {
    if (size < 1 || size > left) return absl::InvalidArgumentError("impossible shape");
    left /= size;
  }
  switch (d.size()) {
    case 1:
      return Shape{d[0]};
    case 2:
      return Shape{d[0], d[1]};
    case 3:
      return Shape{d[0], d[1], d[2]};
    case 4:
      return Shape{d[0], d[1], d[2], d[3]};
    default:
      return absl::InvalidArgumentError(absl::StrCat("a tensor of ", d.size(), " dimensions"));
  }
}

// Whether the functions of core/sharding.h can be asked about the region.
bool Sound(const Region& region) {
  const Sharding& s = region.sharding;
  const Shape& shape = region.logical;
  if (s.parts < 1 || s.part < 0 || s.part >= s.parts || s.unit < 1) return false;
  if (s.split != Split::kWhole && shape.rank() > 2) return false;
  if (s.split == Split::kColumns && shape.rank() != 2) return false;
  if (s.split == Split::kWhole && s.parts != 1) return false;
  if (DividedSize(s, shape) % s.unit != 0) return false;
  const int64_t all = LocalShape(s, shape).elements();
  return region.begin >= 0 && region.count > 0 && region.count <= all &&
         region.begin <= all - region.count;
}

absl::StatusOr<StoredPiece> PieceFrom(const Json& json, int64_t file_bytes) {
  StoredPiece piece;
  piece.name = json.at("tensor").get<std::string>();
  const std::string kind = json.at("kind").get<std::string>();
  const std::string dtype = json.at("dtype").get<std::string>();
  const std::string split = json.at("split").get<std::string>();
  const auto type = std::find_if(kDTypes.begin(), kDTypes.end(),
                                 [&](DType known) { return dtype == NameOf(known); });
  const auto division = std::find(kSplits.begin(), kSplits.end(), split);
  if (type == kDTypes.end() || division == kSplits.end() ||
      (kind != NameOf(CheckpointKind::kModel) && kind != NameOf(CheckpointKind::kOptimizer))) {
    return absl::InvalidArgumentError(absl::StrCat("unknown kind ", kind, ", dtype ", dtype,
                                                   " or split ", split, " of ", piece.name));
  }
  piece.kind =
      kind == NameOf(CheckpointKind::kModel) ? CheckpointKind::kModel : CheckpointKind::kOptimizer;
  piece.dtype = *type;
  const std::vector<int64_t> dims = json.at("shape").get<std::vector<int64_t>>();
  OT_ASSIGN_OR_RETURN(piece.region.logical, ShapeFrom(dims));
  piece.region.sharding = {static_cast<Split>(division - kSplits.begin()),
                           json.at("parts").get<int64_t>(), json.at("part").get<int64_t>(),
                           json.at("unit").get<int64_t>()};
  piece.region.begin = json.at("begin").get<int64_t>();
  piece.region.count = json.at("count").get<int64_t>();
  piece.offset = json.at("offset").get<int64_t>();
  piece.xxh3 = FromHex(json.at("xxh3"));
  piece.sum = FromHex(json.at("sum"));
  if (!Sound(piece.region) || piece.offset < 0 || piece.bytes() > file_bytes ||
      piece.offset > file_bytes - piece.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("impossible piece of ", piece.name));
  }
  return piece;
}

// The pieces of one tensor make up each of its parts without gap or overlap.
absl::Status CheckComplete(const CheckpointLayout& layout, const StoredTensor& tensor) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> stretches;  // part, begin, count
  Sharding division =
      layout.files[tensor.pieces[0].file].pieces[tensor.pieces[0].piece].region.sharding;
  division.part = 0;
  for (const StoredTensor::Place& place : tensor.pieces) {
    const StoredPiece& piece = layout.files[place.file].pieces[place.piece];
    Sharding other = piece.region.sharding;
    stretches.emplace_back(other.part, piece.region.begin, piece.region.count);
    other.part = 0;
    if (!(other == division) || piece.dtype != tensor.dtype ||
        !(piece.region.logical == tensor.shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pieces of ", tensor.name, " disagree in dtype, shape or division"));
    }
  }
  std::sort(stretches.begin(), stretches.end());
  auto next = stretches.begin();
  for (division.part = 0; division.part < division.parts; ++division.part) {
    const int64_t all = LocalShape(division, tensor.shape).elements();
    int64_t at = 0;
    for (; next != stretches.end() && std::get<0>(*next) == division.part; ++next) {
      if (std::get<1>(*next) != at) break;
      at += std::get<2>(*next);
    }
    const bool more = next != stretches.end() && std::get<0>(*next) == division.part;
    if (at != all || more) {
      return absl::DataLossError(absl::StrCat(
          "the pieces of ", tensor.name, " are not every element once: part ", division.part,
          " of ", division.parts, " has ", all, " elements, its pieces go up to ", at,
          more ? ", where another does not go on" : ""));
    }
  }
  return absl::OkStatus();
}

absl::Status Group(CheckpointLayout* layout) {
  std::map<std::pair<CheckpointKind, std::string>, size_t> index;
  for (size_t f = 0; f < layout->files.size(); ++f) {
    const std::vector<StoredPiece>& pieces = layout->files[f].pieces;
    for (size_t p = 0; p < pieces.size(); ++p) {
      const StoredPiece& piece = pieces[p];
      const auto [it, added] = index.try_emplace({piece.kind, piece.name}, layout->tensors.size());
      if (added) {
        layout->tensors.push_back({piece.kind, piece.name, piece.dtype, piece.region.logical, {}});
      }
      layout->tensors[it->second].pieces.push_back({f, p});
    }
  }
  for (const StoredTensor& tensor : layout->tensors) {
    OT_RETURN_IF_ERROR(CheckComplete(*layout, tensor));
  }
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, CheckpointLayout* layout) {
  layout->step = json.at("step").get<int64_t>();
  for (const Json& entry : json.at("files")) {
    StoredFile file;
    file.name = entry.at("name").get<std::string>();
    file.bytes = entry.at("bytes").get<int64_t>();
    if (file.name.empty() || file.name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("impossible file name ", file.name));
    }
    for (const Json& piece : entry.at("pieces")) {
      file.pieces.emplace_back();
      OT_ASSIGN_OR_RETURN(file.pieces.back(), PieceFrom(piece, file.bytes));
    }
    layout->files.push_back(std::move(file));
  }
  return Group(layout);
}

}  // namespace

const char* NameOf(CheckpointKind kind) {
  return kind == CheckpointKind::kModel ? "model" : "optimizer";
}

uint64_t CheckpointLayout::Hash(CheckpointKind kind) const {
  uint64_t hash = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.kind != kind) continue;
    uint64_t sum = 0;
    for (const StoredTensor::Place& place : tensor.pieces) {
      sum += files[place.file].pieces[place.piece].sum;
    }
    hash += TensorHash(tensor.name, tensor.dtype, tensor.shape, sum);
  }
  return hash;
}

// A line per piece: readable, and shorter than a line per key.
std::string ToText(const StoredFile& file) {
  std::vector<std::string> lines;
  lines.reserve(file.pieces.size());
  for (const StoredPiece& piece : file.pieces) lines.push_back("  " + ToJson(piece).dump());
  return absl::StrCat(" {\"name\":", Json(file.name).dump(), ",\"bytes\":", file.bytes,
                      ",\"pieces\":[\n", absl::StrJoin(lines, ",\n"), "\n ]}");
}

std::string LayoutText(int64_t step, const std::vector<std::string>& files) {
  return absl::StrCat("{\"format\":\"", std::string(kFormat), "\",\"version\":", kCheckpointVersion,
                      ",\"step\":", step, ",\"files\":[\n", absl::StrJoin(files, ",\n"), "\n]}\n");
}

absl::StatusOr<CheckpointLayout> ParseLayout(absl::string_view path, const std::string& text) {
  CheckpointLayout layout;
  try {
    const Json json = Json::parse(text);
    const int64_t version = json.at("version").get<int64_t>();
    if (version != kCheckpointVersion) return OtherVersion(path, version);
    OT_RETURN_IF_ERROR(Annotate(Parse(json, &layout), path));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " does not describe the tensors of a checkpoint: ", std::string(error.what())));
  }
  return layout;
}

absl::Status OtherVersion(absl::string_view path, int64_t version) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " has version ", version,
                   " of the checkpoint format, this program reads and writes ", kCheckpointVersion,
                   "; finish that run with the program that began it, or start anew in another "
                   "checkpoint.directory"));
}

}  // namespace overtok
