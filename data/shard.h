// Token shards: HDF5 files that hold documents as one run of ids (docs/formats/shard.md). The
// writer knows nothing of text; the reader validates everything on open, then serves ids by mmap
// (or pread) without HDF5 in the hot path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// How a document became ids: [bos] text [one space] [eos]. Evaluation text has to be encoded the
// same way as the training data, so shards remember it.
struct DocumentForm {
  bool bos = true, space_before_eos = false, eos = true;
  bool added_tokens = false;  // added-token strings inside text became added tokens
  bool operator==(const DocumentForm& other) const = default;
  std::string ToString() const;  // "bos+text+space+eos", ", added tokens" where they were parsed
};

struct ShardIdentity {
  std::string tokenizer_name;
  std::string tokenizer_hash;
  int64_t vocab_size = 0;  // ids are below it; u16 storage when it is <= 65,536, else u32
  std::optional<uint32_t> bos, eos, pad;
  DocumentForm form;
};

// Streams documents into `directory`/shard_00000.h5, ... of at most `tokens_per_shard` ids (whole
// documents: one that is longer gets a larger shard of its own), each written under a temporary
// name and renamed when complete. The directory may not hold shards yet. An id >= vocab_size is an
// error, and so is a document without ids. After any error the writer is dead. Finish() completes
// the last shard; without it nothing of the last shard looks finished.
class ShardWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(absl::string_view directory,
                                                             ShardIdentity identity,
                                                             int64_t tokens_per_shard);
  virtual ~ShardWriter() = default;
  // `text_bytes`: UTF-8 bytes of the document's text (0 where unknown), kept per document for bits
  // per byte.
  virtual absl::Status Append(const uint32_t* ids, int64_t count, int64_t text_bytes) = 0;
  virtual absl::Status Finish() = 0;
  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
};

class Shard {
 public:
  // Checks format, version, completion mark, sizes and the range of ids; block checksums only with
  // `verify_blocks`.
  static absl::StatusOr<std::shared_ptr<const Shard>> Open(absl::string_view path,
                                                           bool verify_blocks = false);
  virtual ~Shard() = default;
  virtual const std::string& path() const = 0;
  virtual const ShardIdentity& identity() const = 0;
  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
  virtual const std::vector<uint64_t>& document_offsets() const = 0;     // documents + 1
  virtual const std::vector<uint64_t>& document_text_bytes() const = 0;  // empty where unknown
  virtual uint64_t content_hash() const = 0;  // of all ids, from the stored block checksums
  virtual uint32_t min_id() const = 0;        // smallest and largest id, as the writer saw them
  virtual uint32_t max_id() const = 0;
  // Reads everything and compares every block with its checksum; an error names the first that
  // differs.
  virtual absl::Status VerifyBlocks() const = 0;
  // Copies ids [begin, begin + count) into `out`, widened to u32. Thread-safe. An id >= vocab_size
  // found here (a file changed under us) is an error that names shard and position.
  virtual absl::Status Read(int64_t begin, int64_t count, uint32_t* out) const = 0;
};

// "" when two identities are the same mapping between text and ids, else what differs. The name of
// a tokenizer is no part of that, its hash is.
std::string DescribeDifference(const ShardIdentity& a, const ShardIdentity& b);

// The shards of a run as one stream of ids: patterns (or directories, which stand for their *.h5)
// in the order given, natural order of paths inside each. They must agree in identity (an error
// names the first that differs and in what); naming one file twice is an error.
class Corpus {
 public:
  static absl::StatusOr<std::shared_ptr<const Corpus>> Open(
      const std::vector<std::string>& patterns);
  const ShardIdentity& identity() const { return identity_; }
  int64_t tokens() const { return begins_.back(); }
  int64_t documents() const;
  uint64_t content_hash() const;
  uint32_t max_id() const;
  const std::vector<std::shared_ptr<const Shard>>& shards() const { return shards_; }
  absl::Status Read(int64_t begin, int64_t count, uint32_t* out) const;  // may cross shards

 private:
  ShardIdentity identity_;
  std::vector<std::shared_ptr<const Shard>> shards_;
  std::vector<int64_t> begins_;  // shards + 1
};

}  // namespace overtok
