// The merge loop keeps, for every adjacent pair, its count and the words it may occur in, so that a
// merge touches only those words. The heap holds counts that may have fallen since: a popped entry
// that is out of date goes back with the present count.
#include "data/tokenizer/train.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/check.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/portable_pattern.h"

namespace overtok {
namespace {

constexpr int64_t kMinCount = 2;  // a pair seen once teaches nothing
constexpr int64_t kSpecials = 2;

uint64_t PairKey(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

class Merger {
 public:
  Merger(const std::vector<WordCount>& words, BpeDefinition* definition) : definition_(definition) {
    std::array<uint32_t, 256> id_of_byte{};
    for (int i = 0; i < 256; ++i) {
      const uint8_t byte = ByteAlphabetOrder(i);
      id_of_byte[byte] = static_cast<uint32_t>(i);
      definition_->tokens.emplace_back(1, static_cast<char>(byte));
      known_.insert(definition_->tokens.back());
    }
    for (const WordCount& word : words) {
      OT_CHECK(word.bytes.size() <= 0xFFFFFFFFu) << "piece of " << word.bytes.size() << " bytes";
      if (word.bytes.size() < 2) continue;  // holds no pair
      const uint32_t index = static_cast<uint32_t>(words_.size());
      words_.push_back({symbols_.size(), static_cast<uint32_t>(word.bytes.size()), word.count});
      for (char c : word.bytes) symbols_.push_back(id_of_byte[static_cast<uint8_t>(c)]);
      const uint32_t* symbols = &symbols_[words_.back().begin];
      for (uint32_t i = 0; i + 1 < words_.back().length; ++i) {
        Change(symbols[i], symbols[i + 1], word.count, index);
      }
    }
    grown_.clear();
    heap_.reserve(pairs_.size());
    for (const auto& [key, pair] : pairs_) {
      if (pair.count >= kMinCount) heap_.push_back({pair.count, key});
    }
    std::make_heap(heap_.begin(), heap_.end());
  }

  // Learns one more entry; false when no pair occurs often enough.
  bool Step() {
    while (!heap_.empty()) {
      const Candidate top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      const int64_t count = pairs_[top.key].count;
      if (count < kMinCount) continue;
      if (count != top.count) {
        Push({count, top.key});
        continue;
      }
      const uint32_t left = static_cast<uint32_t>(top.key >> 32);
      const uint32_t right = static_cast<uint32_t>(top.key & 0xFFFFFFFFu);
      std::string joined = definition_->tokens[left] + definition_->tokens[right];
      if (!known_.insert(joined).second) continue;
      const uint32_t result = static_cast<uint32_t>(definition_->tokens.size());
      definition_->tokens.push_back(std::move(joined));
      definition_->merges.push_back({result - 256, left, right, result});
      Merge(left, right, result);
      return true;
    }
    return false;
  }

 private:
  struct Word {
    size_t begin;  // in symbols_
    uint32_t length;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // may name a word twice, or one that lost the pair since
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    bool operator<(const Candidate& other) const {  // the heap's top is the largest
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void Push(Candidate candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end());
  }

  void Change(uint32_t left, uint32_t right, int64_t by, uint32_t word) {
    const uint64_t key = PairKey(left, right);
    Pair& pair = pairs_[key];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty()) grown_.push_back(key);
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  }

  void Merge(uint32_t left, uint32_t right, uint32_t result) {
    const std::vector<uint32_t> words = std::move(pairs_[PairKey(left, right)].words);
    for (uint32_t index : words) {
      Word& word = words_[index];
      uint32_t* symbols = &symbols_[word.begin];
      uint32_t out = 0;
      for (uint32_t in = 0; in < word.length; ++in) {
        if (in + 1 == word.length || symbols[in] != left || symbols[in + 1] != right) {
          symbols[out++] = symbols[in];
          continue;
        }
        if (out > 0) {
          Change(symbols[out - 1], left, -word.count, index);
          Change(symbols[out - 1], result, word.count, index);
        }
        if (in + 2 < word.length) {
          Change(right, symbols[in + 2], -word.count, index);
          Change(result, symbols[in + 2], word.count, index);
        }
        symbols[out++] = result;
        ++in;
      }
      word.length = out;
    }
    // Every occurrence was joined or, as in "aaa", lost a neighbour to one that was.
    pairs_.erase(PairKey(left, right));
    // Only pairs with the new entry can have grown, and they are all new.
    for (uint64_t key : grown_) {
      const auto it = pairs_.find(key);
      if (it != pairs_.end() && it->second.count >= kMinCount) Push({it->second.count, key});
    }
    grown_.clear();
  }

  BpeDefinition* definition_;
  std::vector<uint32_t> symbols_;
  std::vector<Word> words_;
  absl::flat_hash_map<uint64_t, Pair> pairs_;
  std::vector<Candidate> heap_;
  std::vector<uint64_t> grown_;
  absl::flat_hash_set<std::string> known_;
};

}  // namespace

absl::StatusOr<BpeDefinition> TrainBpe(const DocumentSource& source, const TrainOptions& options) {
  if (options.vocab_size < 256 + kSpecials || options.vocab_size > (int64_t{1} << 24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary size ", options.vocab_size, "; expected ", 256 + kSpecials,
                     " (the bytes and two special tokens) to ", int64_t{1} << 24));
  }
  BpeDefinition definition;
  definition.name = "trained";
  OT_ASSIGN_OR_RETURN(std::string pattern, ResolvePattern(options.pattern));
  OT_RETURN_IF_ERROR(CheckPortablePattern(pattern));
  definition.pre_tokenizer.splits.push_back({std::move(pattern), /*literal=*/false});
  OT_ASSIGN_OR_RETURN(const PreTokenizer pre_tokenizer,
                      PreTokenizer::Create(definition.pre_tokenizer));
  OT_ASSIGN_OR_RETURN(std::vector<WordCount> words,
                      CountWords(source, pre_tokenizer, options.threads, [&](int64_t bytes) {
                        if (options.progress) {
                          options.progress("counting", static_cast<double>(bytes), 0);
                        }
                      }));
  Merger merger(words, &definition);
  words = {};
  const int64_t merges = options.vocab_size - 256 - kSpecials;
  for (int64_t done = 0; done < merges; ++done) {
    if (!merger.Step()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text is too small for a vocabulary of ", options.vocab_size,
                       ": it gives ", 256 + done + kSpecials,
                       " entries before no pair occurs twice; give more text or ask for fewer"));
    }
    if (options.progress) {
      options.progress("merging", static_cast<double>(done + 1), static_cast<double>(merges));
    }
  }
  uint32_t id = static_cast<uint32_t>(definition.tokens.size());
  for (const char* content : {"<|begin_of_text|>", "<|end_of_text|>"}) {
    AddedToken token;
    token.content = content;
    token.id = id++;
    definition.added.push_back(std::move(token));
  }
  OT_RETURN_IF_ERROR(FinishDefinition(&definition));
  return definition;
}

}  // namespace overtok
