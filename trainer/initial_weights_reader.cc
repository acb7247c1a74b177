#include "trainer/initial_weights_reader.h"

#include <bit>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace overtok::internal {
namespace {

// Stretches whose gap is below a page come in together anyway.
constexpr int64_t kPage = 4096;

// "[3, 5]" of the row-major element number.
std::string FormatPlace(const SafetensorsEntry& stored, int64_t element) {
  std::vector<int64_t> place(stored.shape.size());
  for (size_t i = place.size(); i-- > 0;) {
    place[i] = element % stored.shape[i];
    element /= stored.shape[i];
  }
  return FormatShape(place);
}

// Without a branch in the loop, so that it is cheap beside the conversion.
bool AllFinite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000U;  // all ones: infinity or NaN
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
  }
  return found == 0;
}

}  // namespace

PieceReader::PieceReader(const Safetensors& files, const std::vector<Piece>& pieces,
                         int64_t piece_elements)
    : files_(files), pieces_(pieces), buffers_(kBuffers) {
  bool twins = false;
  for (const Piece& piece : pieces_) {
    OT_CHECK_LE(piece.region.count, piece_elements);
    twins = twins || piece.twin != nullptr;
  }
  for (std::vector<float>& buffer : buffers_) buffer.resize(static_cast<size_t>(piece_elements));
  if (twins) twin_.resize(static_cast<size_t>(piece_elements));
  thread_ = std::thread([this] { Run(); });
}

PieceReader::~PieceReader() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PieceReader::Run() {
  if (!pieces_.empty()) WillNeed(pieces_[0]);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || i < returned_ + static_cast<size_t>(kBuffers); });
      if (stop_) return;
    }
    // The device reads the next piece while this one is converted.
    if (i + 1 < pieces_.size()) WillNeed(pieces_[i + 1]);
    const absl::Status status = Read(pieces_[i], buffers_[i % kBuffers].data());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_ = status;
      if (status.ok()) ++read_;
    }
    changed_.notify_all();
    if (!status.ok()) return;
  }
}

const float* PieceReader::Next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  OT_CHECK_LT(taken_, pieces_.size());
  returned_ = taken_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return read_ > taken_ || !status_.ok(); });
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (read_ == taken_) return nullptr;
  return buffers_[taken_++ % kBuffers].data();
}

absl::Status PieceReader::status() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

absl::Status PieceReader::Read(const Piece& piece, float* buffer) {
  int64_t bad = -1;
  ForEachRun(piece.region, [&](int64_t from, int64_t to, int64_t count) {
    files_.ReadF32(*piece.stored, from, count, buffer + to);
    if (bad >= 0 || AllFinite(buffer + to, count)) return;
    for (int64_t i = 0; i < count && bad < 0; ++i) {
      if (!std::isfinite(buffer[to + i])) bad = from + i;
    }
  });
  Done(*piece.stored, piece);
  if (bad >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.PathOf(*piece.stored), ": ", piece.stored->name, ": element ",
                     FormatPlace(*piece.stored, bad), " (", NameOf(piece.stored->type),
                     ") is no finite f32 number"));
  }
  return piece.twin == nullptr ? absl::OkStatus() : Compare(piece, buffer);
}

absl::Status PieceReader::Compare(const Piece& piece, const float* values) {
  int64_t bad = -1;
  ForEachRun(piece.region, [&](int64_t from, int64_t to, int64_t count) {
    files_.ReadF32(*piece.twin, from, count, twin_.data() + to);
    for (int64_t i = 0; i < count && bad < 0; ++i) {
      const float twin = twin_[static_cast<size_t>(to + i)];
      if (std::bit_cast<uint32_t>(twin) != std::bit_cast<uint32_t>(values[to + i])) {
        bad = from + i;
      }
    }
  });
  Done(*piece.twin, piece);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      files_.PathOf(*piece.twin), ": ", piece.twin->name, ": element ",
      FormatPlace(*piece.twin, bad), " differs from that of ", piece.stored->name,
      ", and model.tie_word_embeddings is true; expected equal values, or an untied model"));
}

void PieceReader::WillNeed(const Piece& piece) const {
  const int64_t size = SizeOf(piece.stored->type);
  int64_t begin = 0, end = 0;
  const auto flush = [&] {
    if (begin == end) return;
    files_.WillNeed(*piece.stored, begin, end - begin);
    if (piece.twin != nullptr) files_.WillNeed(*piece.twin, begin, end - begin);
  };
  ForEachRun(piece.region, [&](int64_t from, int64_t, int64_t count) {
    if (begin == end || (from - end) * size >= kPage) {
      flush();
      begin = from;
    }
    end = from + count;
  });
  flush();
}

void PieceReader::Done(const SafetensorsEntry& stored, const Piece& piece) const {
  int64_t begin = -1, end = 0;
  ForEachRun(piece.region, [&](int64_t from, int64_t, int64_t count) {
    if (begin < 0) begin = from;
    end = from + count;
  });
  if (begin >= 0) files_.Done(stored, begin, end - begin);
}

}  // namespace overtok::internal
