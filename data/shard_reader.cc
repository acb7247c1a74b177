// Opens token shards: everything about them is checked through the HDF5 wrapper, then the ids are
// mapped and HDF5 is out of the way. Shards whose ids are not one native block of bytes (repacked
// in chunks, big-endian) are read through the wrapper instead, with a warning about the speed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "data/shard_format.h"

namespace overtok {
namespace {

// Read-only mapping of a range of a file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (base_ != nullptr) munmap(base_, length_);
  }

  absl::Status Map(const std::string& path, int64_t offset, int64_t bytes) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Failed("open", path);
    // A mapping starts on a page; the data need not.
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t start = offset / page * page;
    const size_t length = static_cast<size_t>(offset - start + bytes);
    void* base = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(start));
    const absl::Status status = base == MAP_FAILED ? Failed("map", path) : absl::OkStatus();
    close(fd);
    OT_RETURN_IF_ERROR(status);
    base_ = base;
    length_ = length;
    data_ = static_cast<const char*>(base) + (offset - start);
    return absl::OkStatus();
  }

  const char* data() const { return data_; }

 private:
  static absl::Status Failed(absl::string_view what, const std::string& path) {
    return absl::UnavailableError(
        absl::StrCat("cannot ", what, " ", path, ": ", std::string(std::strerror(errno))));
  }
  void* base_ = nullptr;
  size_t length_ = 0;
  const char* data_ = nullptr;
};

// Copies and widens; returns the largest id, so that the caller checks the range without a second
// pass. The source need not be aligned to its type.
template <class T>
uint32_t Widen(const char* source, int64_t count, uint32_t* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, source + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = id;
    largest = std::max<uint32_t>(largest, id);
  }
  return largest;
}

class ShardImpl final : public Shard {
 public:
  explicit ShardImpl(std::string path) : path_(std::move(path)) {}

  absl::Status Load() {
    OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::OpenRead(path_));
    OT_RETURN_IF_ERROR(CheckFormat(file));
    OT_RETURN_IF_ERROR(LoadIdentity(file));
    OT_RETURN_IF_ERROR(LoadIndex(file));
    return LoadTokens(std::move(file));
  }

  const std::string& path() const override { return path_; }
  const ShardIdentity& identity() const override { return identity_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return static_cast<int64_t>(offsets_.size()) - 1; }
  const std::vector<uint64_t>& document_offsets() const override { return offsets_; }
  const std::vector<uint64_t>& document_text_bytes() const override { return text_bytes_; }
  uint64_t content_hash() const override {
    return Xxh3(checksums_.data(), static_cast<int64_t>(checksums_.size()) * 8,
                static_cast<uint64_t>(tokens_));
  }
  uint32_t min_id() const override { return min_id_; }
  uint32_t max_id() const override { return max_id_; }

  absl::Status Read(int64_t begin, int64_t count, uint32_t* out) const override {
    OT_CHECK(begin >= 0 && count >= 0 && begin <= tokens_ - count)
        << path_ << ": [" << begin << ", " << begin << " + " << count << ") of " << tokens_;
    uint32_t largest = 0;
    if (mapping_.data() != nullptr) {
      const char* source = mapping_.data() + begin * SizeOf(type_);
      largest = type_ == DType::kU16 ? Widen<uint16_t>(source, count, out)
                                     : Widen<uint32_t>(source, count, out);
    } else if (type_ == DType::kU16) {
      std::vector<uint16_t> narrow(static_cast<size_t>(count));
      OT_RETURN_IF_ERROR(file_->ReadRange("/tokens", begin, Tensor(narrow.data(), {count})));
      largest = Widen<uint16_t>(reinterpret_cast<const char*>(narrow.data()), count, out);
    } else {
      OT_RETURN_IF_ERROR(file_->ReadRange("/tokens", begin, Tensor(out, {count})));
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, out[i]);
    }
    if (static_cast<int64_t>(largest) < identity_.vocab_size) return absl::OkStatus();
    int64_t at = 0;
    while (static_cast<int64_t>(out[at]) < identity_.vocab_size) ++at;
    return absl::DataLossError(absl::StrCat(
        path_, ": id ", out[at], " at position ", begin + at, " is not below the vocabulary size ",
        identity_.vocab_size,
        "; the file is damaged or was changed: `overtok data verify` finds the damaged blocks, "
        "then tokenize again"));
  }

  absl::Status VerifyBlocks() const override {
    std::vector<uint32_t> ids(static_cast<size_t>(std::min(block_, tokens_)));
    std::vector<uint16_t> narrow;
    uint32_t low = ~uint32_t{0}, high = 0;
    for (int64_t b = 0; b * block_ < tokens_; ++b) {
      const int64_t count = std::min(block_, tokens_ - b * block_);
      // The checksum first: it also says which block a bad id lies in.
      absl::Status read = Read(b * block_, count, ids.data());
      if (!read.ok() && read.code() != absl::StatusCode::kDataLoss) return read;
      uint64_t checksum = 0;
      if (type_ == DType::kU16) {
        narrow.assign(ids.begin(), ids.begin() + count);
        checksum = Xxh3(narrow.data(), count * 2);
      } else {
        checksum = Xxh3(ids.data(), count * 4);
      }
      if (checksum != checksums_[static_cast<size_t>(b)]) {
        return absl::DataLossError(
            absl::StrCat(path_, ": the ids in positions [", b * block_, ", ", b * block_ + count,
                         ") do not match their checksum; the file is damaged, tokenize again"));
      }
      OT_RETURN_IF_ERROR(read);
      const auto [smallest, largest] = std::minmax_element(ids.begin(), ids.begin() + count);
      low = std::min(low, *smallest);
      high = std::max(high, *largest);
    }
    if (low != min_id_ || high != max_id_) {
      return Damaged(absl::StrCat("its ids lie in [", low, ", ", high, "], its header says [",
                                  min_id_, ", ", max_id_, "]"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat(path_, ": ", what, "; the shard is damaged, tokenize again"));
  }

  absl::Status CheckFormat(const Hdf5File& file) const {
    const absl::StatusOr<std::string> format = file.GetText("/", "format");
    if (!format.ok() || *format != shard_format::kFormat) {
      std::string hint;
      for (const char* alias : {"/input_ids", "/data", "/tokens"}) {
        const absl::StatusOr<Hdf5DatasetInfo> info = file.Info(alias);
        if (info.ok()) {
          hint = absl::StrCat(" (its dataset ", alias,
                              " may hold ids; write them out, one document "
                              "a line, and import them with `overtok tokenize --tokenizer ids`)");
          break;
        }
      }
      return absl::InvalidArgumentError(
          absl::StrCat(path_, " is not a shard of overtok: the attribute \"format\" is ",
                       format.ok() ? absl::StrCat("\"", *format, "\"") : "missing", ", expected \"",
                       shard_format::kFormat, "\"", hint));
    }
    OT_ASSIGN_OR_RETURN(const int64_t version, file.GetInt("/", "version"));
    if (version != shard_format::kVersion) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": shard version ", version, ", this program reads version ",
          shard_format::kVersion, "; use the program that wrote it, or tokenize again"));
    }
    const absl::StatusOr<int64_t> complete = file.GetInt("/", "complete");
    if (!complete.ok() || *complete != 1) {
      return absl::DataLossError(absl::StrCat(
          path_, " is not complete: its writer was stopped before the end; tokenize again"));
    }
    return absl::OkStatus();
  }

  absl::Status LoadIdentity(const Hdf5File& file) {
    OT_ASSIGN_OR_RETURN(identity_.tokenizer_name, file.GetText("/", "tokenizer_name"));
    OT_ASSIGN_OR_RETURN(identity_.tokenizer_hash, file.GetText("/", "tokenizer_hash"));
    OT_ASSIGN_OR_RETURN(identity_.vocab_size, file.GetInt("/", "vocab_size"));
    OT_ASSIGN_OR_RETURN(const std::string form_text, file.GetText("/", "document_form"));
    const std::optional<DocumentForm> form = shard_format::ParseDocumentForm(form_text);
    if (!form.has_value()) {
      return Damaged(absl::StrCat("its attribute document_form is \"", form_text, "\""));
    }
    identity_.form = *form;
    const std::pair<const char*, std::optional<uint32_t>*> specials[] = {
        {"bos_id", &identity_.bos}, {"eos_id", &identity_.eos}, {"pad_id", &identity_.pad}};
    for (const auto& [name, target] : specials) {
      if (!file.HasAttribute("/", name)) continue;
      OT_ASSIGN_OR_RETURN(const int64_t id, file.GetInt("/", name));
      if (id < 0 || id >= identity_.vocab_size) {
        return Damaged(absl::StrCat(name, " is ", id, ", outside the vocabulary"));
      }
      *target = static_cast<uint32_t>(id);
    }
    return Annotate(shard_format::CheckIdentity(identity_), path_);
  }

  absl::Status ReadU64(const Hdf5File& file, const char* name, std::vector<uint64_t>* out) const {
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file.Info(name));
    if (info.dtype != DType::kU64 || info.shape.size() != 1) {
      return Damaged(absl::StrCat("the dataset ", name, " is not a list of u64"));
    }
    out->resize(static_cast<size_t>(info.shape[0]));
    return file.Read(name, Tensor(out->data(), {info.shape[0]}));
  }

  absl::Status LoadIndex(const Hdf5File& file) {
    OT_ASSIGN_OR_RETURN(tokens_, file.GetInt("/", "num_tokens"));
    OT_ASSIGN_OR_RETURN(const int64_t documents, file.GetInt("/", "num_documents"));
    OT_ASSIGN_OR_RETURN(block_, file.GetInt("/", "checksum_block"));
    OT_ASSIGN_OR_RETURN(const uint64_t index_checksum, file.GetUint("/", "index_checksum"));
    OT_RETURN_IF_ERROR(ReadU64(file, "/document_offsets", &offsets_));
    if (file.Exists("/document_text_bytes")) {
      OT_RETURN_IF_ERROR(ReadU64(file, "/document_text_bytes", &text_bytes_));
    }
    OT_RETURN_IF_ERROR(ReadU64(file, "/block_checksums", &checksums_));
    if (tokens_ < 1 || documents < 1 || block_ < 1 ||
        static_cast<int64_t>(offsets_.size()) != documents + 1 || offsets_.front() != 0 ||
        offsets_.back() != static_cast<uint64_t>(tokens_) ||
        !std::is_sorted(offsets_.begin(), offsets_.end()) ||
        (!text_bytes_.empty() && static_cast<int64_t>(text_bytes_.size()) != documents) ||
        static_cast<int64_t>(checksums_.size()) != (tokens_ - 1) / block_ + 1) {
      return Damaged(absl::StrCat("its counts do not fit together (", tokens_, " ids, ", documents,
                                  " documents, ", offsets_.size(), " offsets, ", text_bytes_.size(),
                                  " text lengths, ", checksums_.size(), " checksums)"));
    }
    if (shard_format::IndexChecksum(offsets_, text_bytes_) != index_checksum) {
      return Damaged("its document index does not match its checksum");
    }
    OT_ASSIGN_OR_RETURN(const int64_t low, file.GetInt("/", "min_id"));
    OT_ASSIGN_OR_RETURN(const int64_t high, file.GetInt("/", "max_id"));
    if (low < 0 || low > high || high >= identity_.vocab_size) {
      return Damaged(absl::StrCat("its ids lie in [", low, ", ", high, "], its vocabulary has ",
                                  identity_.vocab_size));
    }
    min_id_ = static_cast<uint32_t>(low);
    max_id_ = static_cast<uint32_t>(high);
    return absl::OkStatus();
  }

  absl::Status LoadTokens(Hdf5File file) {
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file.Info("/tokens"));
    type_ = shard_format::IdType(identity_.vocab_size);
    if (info.dtype != type_ || info.shape != std::vector<int64_t>{tokens_}) {
      return Damaged(absl::StrCat("the dataset /tokens is ", NameOf(info.dtype), " of ",
                                  info.shape.size(), " dimensions and ",
                                  info.shape.empty() ? 0 : info.shape[0], " ids, expected ",
                                  NameOf(type_), " [", tokens_, "]"));
    }
    if (!info.contiguous) {
      LogWarning(absl::StrCat(path_,
                              ": ids are stored in chunks or in foreign byte order, which is "
                              "slow to read; `h5repack -l tokens:CONTI` makes one block of them, "
                              "tokenizing again the native order"));
      file_ = std::make_unique<Hdf5File>(std::move(file));
      return absl::OkStatus();
    }
    OT_ASSIGN_OR_RETURN(const int64_t size, FileSize(path_));
    const int64_t bytes = tokens_ * SizeOf(type_);
    if (info.offset > size - bytes) {
      return Damaged(absl::StrCat("it has ", size, " bytes, its ids end at ", info.offset + bytes));
    }
    OT_RETURN_IF_ERROR(file.Close());
    return mapping_.Map(path_, info.offset, bytes);
  }

  const std::string path_;
  ShardIdentity identity_;
  int64_t tokens_ = 0, block_ = 0;
  std::vector<uint64_t> offsets_, text_bytes_, checksums_;
  uint32_t min_id_ = 0, max_id_ = 0;
  DType type_ = DType::kU32;
  Mapping mapping_;
  std::unique_ptr<Hdf5File> file_;  // only where the ids cannot be mapped
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Shard>> Shard::Open(absl::string_view path,
                                                         bool verify_blocks) {
  auto shard = std::make_shared<ShardImpl>(std::string(path));
  OT_RETURN_IF_ERROR(shard->Load());
  if (verify_blocks) OT_RETURN_IF_ERROR(shard->VerifyBlocks());
  return std::shared_ptr<const Shard>(std::move(shard));
}

}  // namespace overtok
