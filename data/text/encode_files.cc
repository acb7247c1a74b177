#include "data/text/encode_files.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "core/check.h"
#include "data/text/json_line.h"
#include "data/text/line_reader.h"

namespace overtok {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kShownBadLines = 10;

// Raw documents of one file, and what becomes of them.
struct Piece {
  struct Raw {
    size_t begin, size;
    int64_t line;
  };
  struct Encoded {
    size_t ids_end, text_end;  // where the document ends in `ids` and in `text`
    int64_t line;
  };
  struct Bad {
    int64_t line;
    std::string reason;
  };
  size_t file = 0;
  std::string raw;
  std::vector<Raw> items;
  // Filled by an encoding thread.
  std::vector<uint32_t> ids;
  std::string text;
  std::vector<Encoded> documents;
  std::vector<Bad> bad;
  int64_t empty = 0;
  bool done = false;
};

absl::Status ParseIds(absl::string_view line, int64_t vocab_size, std::vector<uint32_t>* ids) {
  const char* at = line.data();
  const char* end = at + line.size();
  while (true) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
    if (at == end) return absl::OkStatus();
    uint64_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error == std::errc::invalid_argument ||
        (next < end && *next != ' ' && *next != '\t' && *next != '\r')) {
      const char* word_end = std::find_if(at, end, [](char c) { return c == ' ' || c == '\t'; });
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", absl::string_view(at, std::min<size_t>(static_cast<size_t>(word_end - at), 40)),
          "\" is not a decimal id"));
    }
    if (error == std::errc::result_out_of_range || id >= static_cast<uint64_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", absl::string_view(at, static_cast<size_t>(next - at)),
                       " is not below the vocabulary size ", vocab_size));
    }
    ids->push_back(static_cast<uint32_t>(id));
    at = next;
  }
}

class Encoder {
 public:
  Encoder(const std::vector<std::string>& paths, const EncodeOptions& options)
      : paths_(paths), options_(options) {
    int threads = options.threads;
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    threads = std::max(threads, 1);
    most_pieces_ = static_cast<size_t>(threads) * 3;
    threads_.emplace_back([this] { ReadAll(); });
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { EncodeAll(); });
  }

  ~Encoder() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::StatusOr<EncodeCounts> Consume(
      const std::function<absl::Status(const EncodedDocument&)>& consume) {
    EncodeCounts counts;
    while (true) {
      std::unique_ptr<Piece> piece;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] {
          return (!ordered_.empty() && ordered_.front()->done) ||
                 (ordered_.empty() && reading_done_);
        });
        if (ordered_.empty()) {
          OT_RETURN_IF_ERROR(read_error_);
          break;
        }
        piece = std::move(ordered_.front());
        ordered_.pop_front();
      }
      changed_.notify_all();
      OT_RETURN_IF_ERROR(Deliver(*piece, consume, &counts));
      if (options_.progress != nullptr) {
        options_.progress->Update(static_cast<double>(file_bytes_read_.load()) / 1e6);
      }
    }
    counts.byte_order_marks = byte_order_marks_.load();
    return counts;
  }

 private:
  absl::Status Deliver(const Piece& piece,
                       const std::function<absl::Status(const EncodedDocument&)>& consume,
                       EncodeCounts* counts) const {
    size_t ids_begin = 0, text_begin = 0;
    for (const Piece::Encoded& encoded : piece.documents) {
      EncodedDocument document;
      document.ids = absl::MakeConstSpan(piece.ids).subspan(ids_begin, encoded.ids_end - ids_begin);
      document.text =
          absl::string_view(piece.text).substr(text_begin, encoded.text_end - text_begin);
      document.file = piece.file;
      document.line = encoded.line;
      ids_begin = encoded.ids_end;
      text_begin = encoded.text_end;
      ++counts->documents;
      counts->text_bytes += static_cast<int64_t>(document.text.size());
      counts->tokens += static_cast<int64_t>(document.ids.size());
      OT_RETURN_IF_ERROR(consume(document));
    }
    counts->empty_documents += piece.empty;
    for (const Piece::Bad& bad : piece.bad) {
      const std::string where = absl::StrCat(paths_[piece.file], ":", bad.line, ": ", bad.reason);
      ++counts->bad_lines;
      if (counts->bad_examples.size() < kShownBadLines) counts->bad_examples.push_back(where);
      if (options_.largest_bad_count == 0) return absl::InvalidArgumentError(where);
      if (counts->bad_lines > options_.largest_bad_count) {
        return absl::InvalidArgumentError(absl::StrCat("more than ", options_.largest_bad_count,
                                                       " bad lines, the last one ", where,
                                                       "; mend the files or raise the limit"));
      }
    }
    return absl::OkStatus();
  }

  // Hands a piece on; false when the work was cancelled.
  bool Push(std::unique_ptr<Piece> piece) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return cancelled_ || ordered_.size() < most_pieces_; });
    if (cancelled_) return false;
    waiting_.push_back(piece.get());
    ordered_.push_back(std::move(piece));
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  void ReadAll() {
    absl::Status status;
    for (size_t file = 0; file < paths_.size() && status.ok(); ++file) status = ReadOne(file);
    const std::lock_guard<std::mutex> lock(mutex_);
    reading_done_ = true;
    read_error_ = status;
    changed_.notify_all();
  }

  absl::Status ReadOne(size_t file) {
    OT_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(paths_[file]));
    const int64_t before = file_bytes_read_.load();
    const bool whole =
        options_.tokenizer != nullptr && absl::EndsWith(StripCompression(paths_[file]), ".txt");
    auto piece = std::make_unique<Piece>();
    piece->file = file;
    const auto add = [&piece](absl::string_view bytes, int64_t line) {
      piece->items.push_back({piece->raw.size(), bytes.size(), line});
      piece->raw.append(bytes.data(), bytes.size());
    };
    while (true) {
      absl::string_view line;
      if (whole) {
        OT_ASSIGN_OR_RETURN(line, reader.Rest());
        add(line, 1);
      } else {
        OT_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
        if (more) add(line, reader.line());
        if (more && piece->raw.size() < kPieceBytes && piece->items.size() < 100'000) continue;
        if (!more && piece->items.empty()) break;
      }
      file_bytes_read_ = before + reader.file_bytes_read();
      if (!Push(std::move(piece))) return absl::OkStatus();
      if (whole) break;
      piece = std::make_unique<Piece>();
      piece->file = file;
    }
    if (reader.had_byte_order_mark()) ++byte_order_marks_;
    return absl::OkStatus();
  }

  void EncodeAll() {
    JsonLineParser parser;
    while (true) {
      Piece* piece = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return cancelled_ || !waiting_.empty() || reading_done_; });
        if (cancelled_ || waiting_.empty()) return;
        piece = waiting_.front();
        waiting_.pop_front();
      }
      EncodePiece(&parser, piece);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        piece->done = true;
      }
      changed_.notify_all();
    }
  }

  void EncodePiece(JsonLineParser* parser, Piece* piece) const {
    const bool json = options_.tokenizer != nullptr &&
                      absl::EndsWith(StripCompression(paths_[piece->file]), ".jsonl");
    for (const Piece::Raw& item : piece->items) {
      const absl::string_view raw = absl::string_view(piece->raw).substr(item.begin, item.size);
      if (json && raw.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
      absl::Status status;
      absl::string_view text = raw;
      if (json) {
        const absl::StatusOr<absl::string_view> parsed = parser->Text(raw, options_.field);
        if (parsed.ok()) text = *parsed;
        status = parsed.status();
      }
      const size_t ids_before = piece->ids.size(), text_before = piece->text.size();
      bool empty = false;
      if (status.ok()) status = EncodeOne(text, piece, &empty);
      if (status.ok() && !empty) {
        piece->documents.push_back({piece->ids.size(), piece->text.size(), item.line});
        continue;
      }
      piece->ids.resize(ids_before);
      piece->text.resize(text_before);
      if (status.ok()) {
        ++piece->empty;
      } else {
        piece->bad.push_back({item.line, std::string(status.message())});
      }
    }
    piece->raw = std::string();
    piece->items = {};
  }

  absl::Status EncodeOne(absl::string_view text, Piece* piece, bool* empty) const {
    const ShardIdentity& identity = options_.identity;
    const DocumentForm& form = identity.form;
    std::vector<uint32_t>& ids = piece->ids;
    if (form.bos) ids.push_back(*identity.bos);
    const size_t before = ids.size();
    if (options_.tokenizer == nullptr) {
      OT_RETURN_IF_ERROR(ParseIds(text, identity.vocab_size, &ids));
    } else if (!text.empty()) {
      piece->text.append(text.data(), text.size());
      // The space belongs to the text when it is encoded: it may merge with what stands before it.
      if (form.space_before_eos) {
        OT_RETURN_IF_ERROR(
            options_.tokenizer->Encode(absl::StrCat(text, " "), form.added_tokens, &ids));
      } else {
        OT_RETURN_IF_ERROR(options_.tokenizer->Encode(text, form.added_tokens, &ids));
      }
    }
    *empty = ids.size() == before;
    if (form.eos) ids.push_back(*identity.eos);
    return absl::OkStatus();
  }

  const std::vector<std::string>& paths_;
  const EncodeOptions& options_;
  size_t most_pieces_ = 0;
  std::atomic<int64_t> file_bytes_read_{0}, byte_order_marks_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Piece>> ordered_;  // in the order of the files, until delivered
  std::deque<Piece*> waiting_;                  // not yet taken by an encoding thread
  bool reading_done_ = false, cancelled_ = false;
  absl::Status read_error_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::Status CheckInputNames(const std::vector<std::string>& paths, bool ids) {
  if (paths.empty()) return absl::InvalidArgumentError("no input files");
  for (const std::string& path : paths) {
    const absl::string_view name = StripCompression(path);
    if (!ids && !absl::EndsWith(name, ".jsonl") && !absl::EndsWith(name, ".txt")) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": expected a file called *.jsonl or *.txt, or one of these with .gz or .zst"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardIdentity> IdentityOf(const Tokenizer& tokenizer, const DocumentForm& form) {
  ShardIdentity identity;
  identity.tokenizer_name = tokenizer.name();
  identity.tokenizer_hash = tokenizer.hash();
  identity.vocab_size = tokenizer.vocab_size();
  identity.bos = tokenizer.bos();
  identity.eos = tokenizer.eos();
  identity.form = form;
  if (form.bos && !identity.bos.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer ", tokenizer.name(),
                     " names no token for the beginning of a document; give one with --bos, or "
                     "leave it out with --no-bos"));
  }
  if (form.eos && !identity.eos.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer ", tokenizer.name(),
                     " names no token for the end of a document; give one with --eos, or leave it "
                     "out with --no-eos"));
  }
  return identity;
}

absl::StatusOr<EncodeCounts> EncodeFiles(
    const std::vector<std::string>& paths, const EncodeOptions& options,
    const std::function<absl::Status(const EncodedDocument&)>& consume) {
  OT_RETURN_IF_ERROR(CheckInputNames(paths, options.tokenizer == nullptr));
  const ShardIdentity& identity = options.identity;
  OT_CHECK(!identity.form.bos || identity.bos.has_value());
  OT_CHECK(!identity.form.eos || identity.eos.has_value());
  Encoder encoder(paths, options);
  return encoder.Consume(consume);
}

}  // namespace overtok
