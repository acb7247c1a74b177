// The sets that a configuration evaluates on, opened and checked: eval.paloma as the collection
// "eval/paloma", all of eval.held_out together as the collection "eval/held_out". Held in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "data/paloma.h"
#include "data/shard.h"
#include "trainer/config/config.h"

namespace overtok {

inline constexpr char kPalomaPrefix[] = "eval/paloma";
inline constexpr char kHeldOutPrefix[] = "eval/held_out";

// Windows that are scored of a subset of so many tokens: whole ones, and with `keep` a last,
// shorter one where it has a target.
int64_t WindowsToScore(int64_t tokens, int64_t sequence_length, EvalConfig::Tail tail);

struct EvaluationSubset {
  EvalSubset data;
  int64_t windows = 0;  // that are scored, at least 1
};

struct EvaluationCollection {
  std::string prefix;  // of its tags
  ShardIdentity identity;
  std::vector<EvaluationSubset> subsets;
  std::vector<std::string> left_out;  // subsets without documents, or that fill no window
  std::vector<std::string> missing;   // Paloma's subsets that the directory lacks
  // All of Paloma is scored, or the collection is not Paloma.
  bool complete = true;
  bool has_exact_bytes = false, has_levanter_bytes = false;
};

class EvaluationData {
 public:
  // `corpus`: of the data that the model is trained on; text is encoded in its document form, and
  // sets of another tokenizer are an error. Further errors: what LoadEvalCollection reports; a
  // subset under eval.paloma that is not Paloma's; two held-out subsets of one name; a collection
  // of which nothing fills a window.
  static absl::StatusOr<std::unique_ptr<EvaluationData>> Open(const Config& config,
                                                              const ShardIdentity& corpus);

  // A collection that is ready to be scored (windows of the training data, seen_split.h).
  void Append(EvaluationCollection collection) { collections_.push_back(std::move(collection)); }

  const std::vector<EvaluationCollection>& collections() const { return collections_; }
  int64_t windows() const;  // of all subsets
  int64_t bytes() const;    // of memory that the ids take
  // Content hashes of the directories, for the manifest.
  const std::vector<std::pair<std::string, std::string>>& hashes() const { return hashes_; }

 private:
  absl::Status Add(const Config& config, EvalCollection loaded, const std::string& directory,
                   EvaluationCollection* into);
  absl::Status Finish(EvaluationCollection collection, const Config& config);

  std::vector<EvaluationCollection> collections_;
  std::vector<std::pair<std::string, std::string>> hashes_;
};

}  // namespace overtok
