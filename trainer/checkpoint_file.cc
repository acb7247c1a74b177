#include "trainer/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_format.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "core/io/hdf5.h"
#include "trainer/checkpoint_hash.h"

namespace overtok {
namespace {

// Small enough to stay in a core's cache between reading, hashing and copying.
constexpr int64_t kWindow = int64_t{1} << 18;
// Between two wanted stretches, so many bytes are read over rather than asking again.
constexpr int64_t kGap = int64_t{1} << 16;

// A part keeps its shape, so that a file of one rank shows the logical tensors.
Tensor AsStored(const ShardedTensor& entry) {
  const Shape part = LocalShape(entry.region.sharding, entry.region.logical);
  return entry.tensor.Reshape(entry.region.count == part.elements() ? part
                                                                    : Shape{entry.region.count});
}

absl::Status WritePieces(CheckpointKind kind, const std::vector<ShardedTensor>& tensors,
                         Hdf5File* file, StoredFile* stored) {
  std::set<std::string> taken;
  OT_RETURN_IF_ERROR(file->CreateGroup(absl::StrCat("/", NameOf(kind))));
  for (const ShardedTensor& entry : tensors) {
    OT_CHECK_EQ(entry.region.count, entry.tensor.elements()) << entry.name;
    if (entry.region.count == 0) continue;
    std::string dataset = absl::StrCat("/", NameOf(kind), "/", entry.name);
    for (int again = 1; !taken.insert(dataset).second; ++again) {
      dataset = absl::StrCat("/", NameOf(kind), "/", entry.name, "~", again);
    }
    OT_RETURN_IF_ERROR(file->Write(dataset, AsStored(entry)));
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file->Info(dataset));
    OT_CHECK(info.contiguous) << dataset;
    StoredPiece piece;
    piece.kind = kind;
    piece.name = entry.name;
    piece.dtype = entry.tensor.dtype();
    piece.region = entry.region;
    piece.offset = info.offset;
    piece.xxh3 = Xxh3(entry.tensor.raw(), entry.tensor.bytes());
    piece.sum = PositionHash(entry.region, entry.tensor);
    stored->pieces.push_back(std::move(piece));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StoredFile> WriteRankFile(absl::string_view directory, int rank, int64_t step,
                                         const std::vector<ShardedTensor>& model,
                                         const std::vector<ShardedTensor>& optimizer) {
  StoredFile stored;
  stored.name = absl::StrFormat("rank-%05d.h5", rank);
  const std::string path = JoinPath(directory, stored.name);
  OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(path));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "format", absl::string_view("overtok checkpoint")));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "version", int64_t{kCheckpointVersion}));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "step", step));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "rank", int64_t{rank}));
  OT_RETURN_IF_ERROR(WritePieces(CheckpointKind::kModel, model, &file, &stored));
  OT_RETURN_IF_ERROR(WritePieces(CheckpointKind::kOptimizer, optimizer, &file, &stored));
  OT_RETURN_IF_ERROR(file.Close());
  OT_ASSIGN_OR_RETURN(stored.bytes, FileSize(path));
  return stored;
}

int64_t RankFileBytes(const std::vector<ShardedTensor>& model,
                      const std::vector<ShardedTensor>& optimizer) {
  // A dataset starts on a page and has a header of less than a kilobyte.
  constexpr int64_t kPerPiece = 4096 + 1024 + 512, kRest = int64_t{1} << 16;
  int64_t bytes = kRest;
  for (const std::vector<ShardedTensor>* tensors : {&model, &optimizer}) {
    for (const ShardedTensor& entry : *tensors) bytes += entry.tensor.bytes() + kPerPiece;
  }
  return bytes;
}

std::vector<ElementRun> RunsOf(const Region& region) {
  std::vector<ElementRun> runs;
  ForEachRun(region, [&](int64_t logical, int64_t place, int64_t count) {
    runs.push_back({logical, place, count});
  });
  return runs;
}

std::vector<PieceCopy> Overlap(const std::vector<ElementRun>& piece,
                               const std::vector<ElementRun>& wanted, int64_t element_bytes) {
  std::vector<PieceCopy> copies;
  if (piece.empty()) return copies;
  auto p = piece.begin();
  // The first wanted run that reaches into the piece.
  auto w = std::partition_point(wanted.begin(), wanted.end(), [&](const ElementRun& run) {
    return run.logical + run.count <= p->logical;
  });
  while (p != piece.end() && w != wanted.end()) {
    const int64_t begin = std::max(p->logical, w->logical);
    const int64_t p_end = p->logical + p->count, w_end = w->logical + w->count;
    const int64_t end = std::min(p_end, w_end);
    if (begin < end) {
      const int64_t from = (p->place + begin - p->logical) * element_bytes;
      const int64_t to = (w->place + begin - w->logical) * element_bytes;
      const int64_t bytes = (end - begin) * element_bytes;
      if (!copies.empty() && copies.back().from + copies.back().bytes == from &&
          copies.back().to + copies.back().bytes == to) {
        copies.back().bytes += bytes;
      } else {
        copies.push_back({from, to, bytes});
      }
    }
    if (p_end <= w_end) ++p;
    if (w_end <= p_end) ++w;
  }
  return copies;
}

absl::Status ReadPiece(const InputFile& file, const StoredPiece& piece,
                       const std::vector<PieceCopy>& copies, void* to, bool verify) {
  std::vector<char> window(static_cast<size_t>(std::min(kWindow, piece.bytes())));
  Xxh3Stream hash;
  int64_t at = 0;  // bytes of the piece that are done with
  auto copy = copies.begin();
  while (verify ? at < piece.bytes() : copy != copies.end()) {
    if (!verify) at = std::max(at, copy->from);
    int64_t end = std::min(at + kWindow, piece.bytes());
    if (!verify) {
      int64_t useful = at;
      for (auto next = copy; next != copies.end() && next->from <= useful + kGap; ++next) {
        useful = next->from + next->bytes;
        if (useful >= end) break;
      }
      end = std::min(end, useful);
    }
    OT_RETURN_IF_ERROR(file.Read(piece.offset + at, window.data(), end - at));
    if (verify) hash.Update(window.data(), end - at);
    for (; copy != copies.end() && copy->from < end; ++copy) {
      const int64_t first = std::max(copy->from, at);
      const int64_t last = std::min(copy->from + copy->bytes, end);
      std::memcpy(static_cast<char*>(to) + copy->to + (first - copy->from),
                  window.data() + (first - at), static_cast<size_t>(last - first));
      if (copy->from + copy->bytes > end) break;  // goes on in the next window
    }
    at = end;
  }
  if (verify && hash.Digest() != piece.xxh3) {
    return absl::DataLossError(absl::StrCat(
        file.path(), ": the bytes of ", piece.name,
        " do not match their checksum: the file was damaged after it was written; remove this "
        "checkpoint's directory to go on from the one before"));
  }
  return absl::OkStatus();
}

}  // namespace overtok
