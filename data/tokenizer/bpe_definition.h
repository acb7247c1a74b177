// What a byte-level BPE tokenizer is, whatever file it came from: the common form of tokenizer.json
// files, rank files and freshly trained vocabularies. Tokens are bytes here, never the byte
// alphabet's characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// A string with an id of its own that the model's merges do not produce.
struct AddedToken {
  std::string content;  // UTF-8 text as it stands in documents
  uint32_t id = 0;
  bool special = true;       // control token: stands for no bytes of text
  bool normalized = false;   // matched in the normalised text instead of the raw one
  bool single_word = false;  // these three are read and written but cannot be parsed out of text
  bool lstrip = false;
  bool rstrip = false;
};

struct BpeMerge {
  uint32_t rank = 0;  // lower merges first; several pairs share one in rank files
  uint32_t left = 0, right = 0, result = 0;
};

struct SplitSpec {
  std::string pattern;
  bool literal = false;  // the pattern is a plain string, not an expression
};

// How text falls into pieces that merges never cross: every split in turn, applied to each piece
// of the one before; then a space in front of every piece without one, if asked; then GPT-2's
// pattern, if asked.
struct PreTokenizerSpec {
  std::vector<SplitSpec> splits;
  bool add_prefix_space = false;
  bool gpt2_split = false;
};

struct BpeDefinition {
  std::string name;
  std::vector<std::string> tokens;  // bytes by id; empty where the model has no token of that id
  std::vector<BpeMerge> merges;     // by rank, ascending
  // A piece that is a token as a whole is that token, whatever the merges would make of it.
  bool ignore_merges = false;
  bool nfc = false;
  PreTokenizerSpec pre_tokenizer;
  std::vector<AddedToken> added;  // by id, ascending
};

// One more than the largest id.
int64_t VocabSize(const BpeDefinition& definition);

// Sorts the added tokens by id and checks what encoding relies on: every byte has a token, tokens
// and ids are unique, merges join to their result, and no merge makes a special token.
absl::Status FinishDefinition(BpeDefinition* definition);

// SHA-256 in hex over everything that decides the mapping from text to ids (not the name).
std::string HashDefinition(const BpeDefinition& definition);

}  // namespace overtok
