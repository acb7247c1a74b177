// The data file of one rank in a checkpoint: written through HDF5, so that other programs can open
// it, and read by the places that tensors.json gives, without HDF5. Tensors go from and to their
// own memory; of a piece no more than a window is ever copied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/io/input_file.h"
#include "core/sharding.h"
#include "core/status.h"
#include "trainer/checkpoint_layout.h"

namespace overtok {

// Writes rank-XXXXX.h5 into `directory` and fsyncs it: dataset /model/<name> or /optimizer/<name>
// per tensor, in the shape of the part where it is all of it, else flat; a second piece of the same
// tensor has "~1" behind its name. Pieces without elements are left out. Returns what it wrote.
absl::StatusOr<StoredFile> WriteRankFile(absl::string_view directory, int rank, int64_t step,
                                         const std::vector<ShardedTensor>& model,
                                         const std::vector<ShardedTensor>& optimizer);

// Bytes that such a file takes at most, and its lines in tensors.json.
int64_t RankFileBytes(const std::vector<ShardedTensor>& model,
                      const std::vector<ShardedTensor>& optimizer);

// A stretch of a piece's bytes and where it belongs.
struct PieceCopy {
  int64_t from;  // byte in the piece
  int64_t to;    // byte in the buffer of the wanted region
  int64_t bytes;
};

// A stretch of a region that is contiguous in the logical tensor.
struct ElementRun {
  int64_t logical, place, count;
};
std::vector<ElementRun> RunsOf(const Region& region);  // ascending

// What a piece has of a wanted region, in ascending order in both; neighbours are joined.
std::vector<PieceCopy> Overlap(const std::vector<ElementRun>& piece,
                               const std::vector<ElementRun>& wanted, int64_t element_bytes);

// Reads the piece's bytes that `copies` name into `to`, a window at a time: short stretches that
// lie near each other are read at once. With `verify` every byte of the piece is read and its
// checksum compared; the error names file and tensor.
absl::Status ReadPiece(const InputFile& file, const StoredPiece& piece,
                       const std::vector<PieceCopy>& copies, void* to, bool verify);

}  // namespace overtok
