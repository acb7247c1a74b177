#include "trainer/checkpoint_load.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "core/comm/agreement.h"
#include "core/io/files.h"
#include "trainer/checkpoint_file.h"

namespace overtok {
namespace {

// What this rank wants of each tensor of the layout: indices into `wanted`.
using WantedByTensor = std::vector<std::vector<size_t>>;

absl::Status MatchNames(const std::string& directory, const CheckpointLayout& layout,
                        CheckpointKind kind, const std::vector<ShardedTensor>& wanted,
                        WantedByTensor* by_tensor) {
  std::map<std::string, size_t> index;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    if (layout.tensors[t].kind == kind) index[layout.tensors[t].name] = t;
  }
  for (size_t w = 0; w < wanted.size(); ++w) {
    const ShardedTensor& entry = wanted[w];
    OT_CHECK_EQ(entry.region.count, entry.tensor.elements()) << entry.name;
    const auto it = index.find(entry.name);
    if (it == index.end()) {
      return absl::InvalidArgumentError(absl::StrCat(directory, " has no tensor ", entry.name,
                                                     ", which this configuration's ", NameOf(kind),
                                                     " needs"));
    }
    const StoredTensor& stored = layout.tensors[it->second];
    if (!(stored.shape == entry.region.logical) || stored.dtype != entry.tensor.dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, ": ", entry.name, " is ", NameOf(stored.dtype), " ",
                       stored.shape.ToString(), ", this configuration needs ",
                       NameOf(entry.tensor.dtype()), " ", entry.region.logical.ToString()));
    }
    (*by_tensor)[it->second].push_back(w);
  }
  return absl::OkStatus();
}

// Which tensors any rank wants. Collective.
std::vector<double> WantedAnywhere(Communicator& world, const WantedByTensor& by_tensor) {
  std::vector<double> flags(by_tensor.size());
  for (size_t t = 0; t < flags.size(); ++t) flags[t] = by_tensor[t].empty() ? 0 : 1;
  world.AllReduceMax(std::span<double>(flags), Traffic::kFiles);
  return flags;
}

absl::Status CheckNothingIsLeft(const std::string& directory, const CheckpointLayout& layout,
                                CheckpointKind kind, const std::vector<double>& flags) {
  int64_t stored = 0, wanted = 0;
  std::string first;
  for (size_t t = 0; t < flags.size(); ++t) {
    if (layout.tensors[t].kind != kind) continue;
    ++stored;
    if (flags[t] > 0) {
      ++wanted;
    } else if (first.empty()) {
      first = layout.tensors[t].name;
    }
  }
  if (stored == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      directory, ": its ", NameOf(kind), " has ", stored, " tensors, this configuration has ",
      wanted, "; ", first,
      " is one that has no place here: restore the configuration it was made with, or choose "
      "another checkpoint.directory"));
}

}  // namespace

std::vector<std::vector<int>> Verifiers(const CheckpointLayout& layout, int ranks) {
  const auto files = static_cast<int64_t>(layout.files.size());
  std::vector<std::vector<int>> verifiers;
  for (int64_t f = 0; f < files; ++f) {
    // Ranks [begin, end) share the file, or one rank has several.
    const auto begin = static_cast<int>(f * ranks / files);
    const int end = std::max(begin + 1, static_cast<int>((f + 1) * ranks / files));
    std::vector<int64_t> load(static_cast<size_t>(end - begin));
    std::vector<int> of_file;
    for (const StoredPiece& piece : layout.files[static_cast<size_t>(f)].pieces) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += piece.bytes();
      of_file.push_back(begin + static_cast<int>(least - load.begin()));
    }
    verifiers.push_back(std::move(of_file));
  }
  return verifiers;
}

absl::Status LoadTensors(Communicator& world, const std::string& directory,
                         const CheckpointLayout& layout, CheckpointKind kind,
                         const std::vector<ShardedTensor>& wanted, bool all) {
  WantedByTensor by_tensor(layout.tensors.size());
  OT_RETURN_IF_ERROR(Agree(world, MatchNames(directory, layout, kind, wanted, &by_tensor)));
  const std::vector<double> anywhere = WantedAnywhere(world, by_tensor);
  if (all) {
    OT_RETURN_IF_ERROR(Agree(world, CheckNothingIsLeft(directory, layout, kind, anywhere)));
  }
  std::vector<std::vector<size_t>> tensor_of;
  tensor_of.reserve(layout.files.size());
  for (const StoredFile& file : layout.files) tensor_of.emplace_back(file.pieces.size());
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    for (const StoredTensor::Place& place : layout.tensors[t].pieces) {
      tensor_of[place.file][place.piece] = t;
    }
  }
  std::vector<std::vector<ElementRun>> wanted_runs;
  wanted_runs.reserve(wanted.size());
  for (const ShardedTensor& entry : wanted) wanted_runs.push_back(RunsOf(entry.region));
  const std::vector<std::vector<int>> verifiers = Verifiers(layout, world.size());

  const auto read = [&]() -> absl::Status {
    for (size_t f = 0; f < layout.files.size(); ++f) {
      std::optional<InputFile> file;
      const auto read_piece = [&](const StoredPiece& piece, const std::vector<PieceCopy>& copies,
                                  void* to, bool verify) -> absl::Status {
        if (!file.has_value()) {
          OT_ASSIGN_OR_RETURN(file, InputFile::Open(JoinPath(directory, layout.files[f].name)));
        }
        return ReadPiece(*file, piece, copies, to, verify);
      };
      for (size_t p = 0; p < layout.files[f].pieces.size(); ++p) {
        const StoredPiece& piece = layout.files[f].pieces[p];
        const size_t tensor = tensor_of[f][p];
        if (piece.kind != kind || anywhere[tensor] == 0) continue;
        bool verify = verifiers[f][p] == world.rank();
        const std::vector<ElementRun> runs =
            by_tensor[tensor].empty() ? std::vector<ElementRun>() : RunsOf(piece.region);
        for (const size_t w : by_tensor[tensor]) {
          const std::vector<PieceCopy> copies = Overlap(runs, wanted_runs[w], SizeOf(piece.dtype));
          if (copies.empty()) continue;
          // Who reads some of a piece that it has to verify does both at once.
          OT_RETURN_IF_ERROR(read_piece(piece, copies, wanted[w].tensor.raw(), verify));
          verify = false;
        }
        if (verify) OT_RETURN_IF_ERROR(read_piece(piece, {}, nullptr, true));
      }
    }
    return absl::OkStatus();
  };
  return Agree(world, read());
}

}  // namespace overtok
