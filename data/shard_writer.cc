// Writes token shards. HDF5 wants to know the length of a contiguous dataset before the first id,
// so the ids of the shard at hand go to a plain staging file, and a finished shard is copied from
// it block by block: memory holds one block of ids and the index of documents, never the shard.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "data/shard_format.h"

namespace overtok {

namespace shard_format {

absl::Status CheckIdentity(const ShardIdentity& identity) {
  if (identity.vocab_size <= 0 || identity.vocab_size > int64_t{1} << 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", identity.vocab_size, " ids: expected 1 to 4294967296"));
  }
  const std::pair<const char*, std::optional<uint32_t>> specials[] = {
      {"bos", identity.bos}, {"eos", identity.eos}, {"pad", identity.pad}};
  for (const auto& [name, id] : specials) {
    if (id.has_value() && static_cast<int64_t>(*id) >= identity.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", name, " id ", *id, " is not below the vocabulary size ", identity.vocab_size));
    }
  }
  if (identity.pad.has_value() && (identity.pad == identity.eos || identity.pad == identity.bos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pad id ", *identity.pad,
                     " is also the bos or eos id; padding needs an id of its own, because it is "
                     "neither attended to nor scored"));
  }
  return absl::OkStatus();
}

}  // namespace shard_format

namespace {

using shard_format::kChecksumBlock;

class ShardWriterImpl final : public ShardWriter {
 public:
  ShardWriterImpl(std::string directory, ShardIdentity identity, int64_t tokens_per_shard)
      : directory_(std::move(directory)),
        identity_(std::move(identity)),
        tokens_per_shard_(tokens_per_shard),
        type_(shard_format::IdType(identity_.vocab_size)) {}

  ~ShardWriterImpl() override { DiscardShard(); }

  absl::Status Append(const uint32_t* ids, int64_t count, int64_t text_bytes) override {
    OT_CHECK(!dead_) << "Append after an error or after Finish";
    absl::Status status = AppendOrFail(ids, count, text_bytes);
    if (!status.ok()) dead_ = true;
    return status;
  }

  absl::Status Finish() override {
    OT_CHECK(!dead_) << "Finish after an error or a second time";
    dead_ = true;
    return CompleteShard();
  }

  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return documents_; }

 private:
  std::string ShardPath() const {
    return JoinPath(directory_, absl::StrFormat("shard_%05d.h5", shards_));
  }
  std::string StagingPath() const { return ShardPath() + ".ids.tmp"; }
  std::string TemporaryPath() const { return ShardPath() + ".tmp"; }

  absl::Status AppendOrFail(const uint32_t* ids, int64_t count, int64_t text_bytes) {
    if (count <= 0) {
      return absl::InvalidArgumentError("a document without ids cannot be stored");
    }
    for (int64_t i = 0; i < count; ++i) {
      if (static_cast<int64_t>(ids[i]) >= identity_.vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(
            "id ", ids[i], " at position ", i, " of document ", documents_,
            " is not below the vocabulary size ", identity_.vocab_size, "; nothing of it is kept"));
      }
    }
    if (!offsets_.empty() && static_cast<int64_t>(offsets_.back()) + count > tokens_per_shard_) {
      OT_RETURN_IF_ERROR(CompleteShard());
    }
    if (offsets_.empty()) OT_RETURN_IF_ERROR(StartShard());
    for (int64_t i = 0; i < count;) {
      const int64_t n = std::min(count - i, kChecksumBlock - static_cast<int64_t>(block_.size()));
      block_.insert(block_.end(), ids + i, ids + i + n);
      i += n;
      if (static_cast<int64_t>(block_.size()) == kChecksumBlock) OT_RETURN_IF_ERROR(StageBlock());
    }
    const auto [low, high] = std::minmax_element(ids, ids + count);
    min_id_ = std::min(min_id_, *low);
    max_id_ = std::max(max_id_, *high);
    offsets_.push_back(offsets_.back() + static_cast<uint64_t>(count));
    text_bytes_.push_back(static_cast<uint64_t>(std::max<int64_t>(text_bytes, 0)));
    tokens_ += count;
    ++documents_;
    return absl::OkStatus();
  }

  absl::Status StartShard() {
    const std::string path = StagingPath();
    OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
    staging_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (staging_ < 0) return Failed("create");
    offsets_ = {0};
    return absl::OkStatus();
  }

  absl::Status Failed(absl::string_view what) const {
    const std::string message =
        absl::StrCat("cannot ", what, " ", StagingPath(), ": ", std::string(std::strerror(errno)));
    return errno == ENOSPC ? absl::ResourceExhaustedError(message)
                           : absl::UnavailableError(message);
  }

  // Narrows the block to its stored form, remembers its checksum and appends it to the staging
  // file.
  absl::Status StageBlock() {
    if (block_.empty()) return absl::OkStatus();
    stored_.resize(block_.size() * static_cast<size_t>(SizeOf(type_)));
    if (type_ == DType::kU16) {
      auto* narrow = reinterpret_cast<uint16_t*>(stored_.data());
      for (size_t i = 0; i < block_.size(); ++i) narrow[i] = static_cast<uint16_t>(block_[i]);
    } else {
      std::memcpy(stored_.data(), block_.data(), stored_.size());
    }
    block_.clear();
    checksums_.push_back(Xxh3(stored_.data(), static_cast<int64_t>(stored_.size())));
    OT_RETURN_IF_ERROR(RunFileFaultHook("write", StagingPath()));
    for (size_t done = 0; done < stored_.size();) {
      const ssize_t n = write(staging_, stored_.data() + done, stored_.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("write");
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  absl::Status CompleteShard() {
    if (offsets_.empty()) return absl::OkStatus();
    OT_RETURN_IF_ERROR(StageBlock());
    const int64_t tokens = static_cast<int64_t>(offsets_.back());
    OT_RETURN_IF_ERROR(CheckFreeSpace(
        directory_, tokens * SizeOf(type_) + static_cast<int64_t>(offsets_.size()) * 16));
    OT_RETURN_IF_ERROR(WriteShard(tokens));
    OT_RETURN_IF_ERROR(RenamePath(TemporaryPath(), ShardPath()));
    DiscardShard();
    ++shards_;
    return absl::OkStatus();
  }

  absl::Status WriteShard(int64_t tokens) {
    OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(TemporaryPath()));
    OT_RETURN_IF_ERROR(file.CreateDataset("/tokens", type_, {tokens}));
    stored_.resize(static_cast<size_t>(kChecksumBlock * SizeOf(type_)));
    for (int64_t begin = 0; begin < tokens; begin += kChecksumBlock) {
      const int64_t count = std::min(kChecksumBlock, tokens - begin);
      const int64_t bytes = count * SizeOf(type_);
      for (int64_t done = 0; done < bytes;) {
        const ssize_t n = pread(staging_, stored_.data() + done, static_cast<size_t>(bytes - done),
                                static_cast<off_t>(begin * SizeOf(type_) + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return Failed("read back");
        done += n;
      }
      OT_RETURN_IF_ERROR(file.WriteRange("/tokens", begin, Tensor(stored_.data(), type_, {count})));
    }
    const auto write_u64 = [&](const char* name, std::vector<uint64_t>& values) {
      return file.Write(name, Tensor(values.data(), {static_cast<int64_t>(values.size())}));
    };
    OT_RETURN_IF_ERROR(write_u64("/document_offsets", offsets_));
    // Zero is "unknown": where nothing is known, nothing is stored.
    if (std::all_of(text_bytes_.begin(), text_bytes_.end(), [](uint64_t n) { return n == 0; })) {
      text_bytes_.clear();
    } else {
      OT_RETURN_IF_ERROR(write_u64("/document_text_bytes", text_bytes_));
    }
    OT_RETURN_IF_ERROR(write_u64("/block_checksums", checksums_));
    const auto set = [&](const char* name, auto value) {
      return file.SetAttribute("/", name, value);
    };
    OT_RETURN_IF_ERROR(set("format", absl::string_view(shard_format::kFormat)));
    OT_RETURN_IF_ERROR(set("version", shard_format::kVersion));
    OT_RETURN_IF_ERROR(set("creator", absl::string_view("overtok")));
    OT_RETURN_IF_ERROR(set("tokenizer_name", absl::string_view(identity_.tokenizer_name)));
    OT_RETURN_IF_ERROR(set("tokenizer_hash", absl::string_view(identity_.tokenizer_hash)));
    OT_RETURN_IF_ERROR(set("vocab_size", identity_.vocab_size));
    OT_RETURN_IF_ERROR(set("document_form", absl::string_view(identity_.form.ToString())));
    if (identity_.bos) OT_RETURN_IF_ERROR(set("bos_id", int64_t{*identity_.bos}));
    if (identity_.eos) OT_RETURN_IF_ERROR(set("eos_id", int64_t{*identity_.eos}));
    if (identity_.pad) OT_RETURN_IF_ERROR(set("pad_id", int64_t{*identity_.pad}));
    OT_RETURN_IF_ERROR(set("num_tokens", tokens));
    OT_RETURN_IF_ERROR(set("num_documents", static_cast<int64_t>(offsets_.size()) - 1));
    OT_RETURN_IF_ERROR(set("min_id", int64_t{min_id_}));
    OT_RETURN_IF_ERROR(set("max_id", int64_t{max_id_}));
    OT_RETURN_IF_ERROR(set("checksum_block", kChecksumBlock));
    OT_RETURN_IF_ERROR(set("index_checksum", shard_format::IndexChecksum(offsets_, text_bytes_)));
    OT_RETURN_IF_ERROR(file.Flush());
    OT_RETURN_IF_ERROR(set("complete", int64_t{1}));
    return file.Close();
  }

  // Forgets the shard at hand and removes its temporary files.
  void DiscardShard() {
    if (staging_ >= 0) close(staging_);
    staging_ = -1;
    if (!offsets_.empty()) {
      unlink(StagingPath().c_str());
      unlink(TemporaryPath().c_str());
    }
    offsets_.clear();
    text_bytes_.clear();
    checksums_.clear();
    block_.clear();
    min_id_ = ~uint32_t{0};
    max_id_ = 0;
  }

  const std::string directory_;
  const ShardIdentity identity_;
  const int64_t tokens_per_shard_;
  const DType type_;
  int64_t shards_ = 0;  // completed
  int64_t tokens_ = 0, documents_ = 0;
  bool dead_ = false;
  // The shard at hand; `offsets_` is empty when there is none.
  int staging_ = -1;
  std::vector<uint64_t> offsets_, text_bytes_, checksums_;
  std::vector<uint32_t> block_;
  std::vector<char> stored_;
  uint32_t min_id_ = ~uint32_t{0}, max_id_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(absl::string_view directory,
                                                                 ShardIdentity identity,
                                                                 int64_t tokens_per_shard) {
  OT_RETURN_IF_ERROR(shard_format::CheckIdentity(identity));
  if (tokens_per_shard < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens per shard is ", tokens_per_shard, ", expected at least 1"));
  }
  OT_RETURN_IF_ERROR(CreateDirectories(directory));
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  for (const std::string& name : names) {
    const bool ours = absl::StartsWith(name, "shard_");
    if (ours && absl::EndsWith(name, ".h5")) {
      return absl::AlreadyExistsError(
          absl::StrCat(directory, " holds ", name,
                       " already: two corpora in one directory would "
                       "be read as one; choose another, or remove its shards"));
    }
    if (ours && absl::EndsWith(name, ".tmp")) {  // left by a run that was killed
      OT_RETURN_IF_ERROR(RemoveTree(JoinPath(directory, name)));
    }
  }
  return std::unique_ptr<ShardWriter>(
      new ShardWriterImpl(std::string(directory), std::move(identity), tokens_per_shard));
}

}  // namespace overtok
