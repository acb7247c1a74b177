// How often each piece of text occurs: the input of BPE training. Documents are counted on several
// threads and never kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace overtok {

// Stores the next document in `*document` and returns true; false at the end. Called by one thread
// at a time.
using DocumentSource = std::function<absl::StatusOr<bool>(std::string* document)>;

struct WordCount {
  std::string bytes;
  int64_t count = 0;
};

// Sorted by bytes, so that the result does not depend on threads. A document that is not valid
// UTF-8 is an error with its number. `progress` (may be empty) gets the bytes counted so far, from
// one thread at a time.
absl::StatusOr<std::vector<WordCount>> CountWords(
    const DocumentSource& source, const PreTokenizer& pre_tokenizer, int threads,
    const std::function<void(int64_t bytes)>& progress);

}  // namespace overtok
