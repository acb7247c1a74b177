// Content hashes: xxh3 for block checksums and rolling hashes, SHA-256 for provenance (tokenizer
// files, configs, binaries).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

uint64_t Xxh3(const void* data, int64_t bytes, uint64_t seed = 0);

// The same hash of bytes that come in pieces, seed 0.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  void Update(const void* data, int64_t bytes);
  uint64_t Digest() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string Sha256Hex(absl::string_view bytes);  // 64 lower-case hex digits
absl::StatusOr<std::string> Sha256HexOfFile(
    absl::string_view path);  // streams; for files of any size

}  // namespace overtok
