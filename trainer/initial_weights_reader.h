// The reading half of initial weights: a thread that goes through a list of pieces, reads each from
// the mapped files as f32, checks it, and hands it over in one of a few buffers of equal size. The
// other half places the pieces in the order of the list.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "core/io/safetensors.h"
#include "core/sharding.h"
#include "core/status.h"

namespace overtok::internal {

struct Piece {
  const SafetensorsEntry* stored;
  const SafetensorsEntry* twin;  // has to hold the same values; null: nothing has to
  Region region;                 // of the logical tensor
  float* destination;            // region.count elements
};

class PieceReader {
 public:
  // At most kBuffers pieces of `piece_elements` or fewer elements each are held at once. Both
  // references must outlive the reader.
  static constexpr int64_t kBuffers = 4;
  PieceReader(const Safetensors& files, const std::vector<Piece>& pieces, int64_t piece_elements);
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;
  ~PieceReader();

  // The values of the next piece of the list, valid until the next call; null after an error. To
  // be called once for each piece.
  const float* Next();
  absl::Status status();
  double waited() const { return waited_; }  // seconds inside Next()

 private:
  void Run();
  absl::Status Read(const Piece& piece, float* buffer);
  absl::Status Compare(const Piece& piece, const float* values);
  void WillNeed(const Piece& piece) const;
  void Done(const SafetensorsEntry& stored, const Piece& piece) const;

  const Safetensors& files_;
  const std::vector<Piece>& pieces_;
  std::vector<std::vector<float>> buffers_;
  std::vector<float> twin_;
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Pieces read, given to the caller, and given back. Guarded, as are the next two.
  size_t read_ = 0, taken_ = 0, returned_ = 0;
  bool stop_ = false;
  absl::Status status_;
  std::thread thread_;  // the last member: it starts when all others exist
};

}  // namespace overtok::internal
