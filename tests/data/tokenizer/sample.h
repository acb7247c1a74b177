// Text and vocabularies for the tests of data/tokenizer: made up on the spot, the same every time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/bpe_definition.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/word_counts.h"

namespace overtok::testing {

// About `bytes` bytes of word salad with punctuation, numbers, contractions and some Unicode.
std::string SampleText(size_t bytes, uint32_t seed = 1);

// A random mixture of Unicode ranges, line ends, runs and words; valid UTF-8.
std::string MixedText(std::mt19937* random);

// A source that hands out `documents`.
DocumentSource SourceOf(std::vector<std::string> documents);

// A vocabulary trained on SampleText; fails the test on an error.
BpeDefinition TrainedDefinition(int64_t vocab_size, const std::string& pattern = "llama3");

std::unique_ptr<BpeTokenizer> MakeTokenizer(BpeDefinition definition,
                                            const TokenizerOptions& options = {});

// Ids of `text`; fails the test on an error.
std::vector<uint32_t> Ids(const Tokenizer& tokenizer, absl::string_view text, bool parse = false);

// BPE by its definition alone: a list of symbols, merge the best pair, repeat.
class NaiveBpe {
 public:
  explicit NaiveBpe(const BpeDefinition& definition);
  std::vector<uint32_t> Merge(absl::string_view piece) const;

 private:
  bool ignore_merges_;
  std::map<std::pair<uint32_t, uint32_t>, BpeMerge> merges_;
  std::map<std::string, uint32_t> ids_;
};

}  // namespace overtok::testing
