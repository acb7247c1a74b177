// A run small enough to be trained many times in a test: a model of width 32, a corpus of ten
// windows of random documents, held-out sets, all below one directory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/status.h"
#include "trainer/checkpoint.h"
#include "trainer/config/load.h"

namespace overtok::testing {

inline constexpr int64_t kTinyVocabulary = 64, kTinyWindow = 16, kTinyWindows = 10;
inline constexpr uint32_t kTinyEos = 63;

// What shards of the tiny corpus say of themselves.
ShardIdentity TinyIdentity();

// Writes shards of documents of random ids (a pure function of `seed`): `tokens` in all, cut into
// shards of about `tokens_per_shard`.
absl::Status WriteTinyShards(const std::string& directory, uint64_t seed, int64_t tokens,
                             int64_t tokens_per_shard, const ShardIdentity& identity);

// Adds the tokenized subset `name` to the collection `root`/held_out.
absl::Status WriteTinySubset(const std::string& root, const std::string& name, uint64_t seed,
                             int64_t tokens);

// Directory with train/ (in two shards) and held_out/ (subsets a, three windows and a tail of seven
// ids, and b, five windows).
absl::Status MakeTinyCorpus(const std::string& root);

// The configuration of a run in `root`/`run`, plus overrides ("key.path=value").
absl::StatusOr<LoadedConfig> TinyConfig(const std::string& root, const std::string& run,
                                        const std::vector<std::string>& overrides = {});

// Overrides that turn on input tables, the second-token head and a sampled softmax: 24 candidates
// for steps 0 to 4, 32 for 5 to 7, all 64 classes for 8 and 9.
std::vector<std::string> MethodOverrides();

// The world of a run of one process.
Communicator* Alone();

// What two runs have to share to be called the same, times apart: the state of the newest
// checkpoint (hashes of weights, moments and ids among it) and the lines of metrics.jsonl.
struct RunTrace {
  TrainingState state;
  std::vector<std::string> metrics;  // without times and machine readings
};
absl::StatusOr<RunTrace> TraceOf(const std::string& run_directory);

// Lines of a metrics.jsonl with the measured values taken out.
absl::StatusOr<std::vector<std::string>> StableMetrics(const std::string& path);

}  // namespace overtok::testing
