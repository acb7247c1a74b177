// Documents out of plain text files, one after another: a .txt file is one document (cut into
// blocks at line ends when it is large), a line of a .jsonl file is one document under a key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "data/tokenizer/word_counts.h"

namespace overtok {

// Checks now that every file exists and ends in .txt or .jsonl; errors of the returned source name
// file and line. `*total_bytes` becomes the size of all files.
absl::StatusOr<DocumentSource> OpenDocumentFiles(const std::vector<std::string>& paths,
                                                 absl::string_view field, int64_t* total_bytes);

}  // namespace overtok
