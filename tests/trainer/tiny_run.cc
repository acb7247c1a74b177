#include "tests/trainer/tiny_run.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/io/files.h"
#include "core/rng.h"
#include "trainer/run_directory.h"

namespace overtok::testing {

ShardIdentity TinyIdentity() {
  ShardIdentity identity;
  identity.tokenizer_name = "tiny";
  identity.tokenizer_hash = "0123456789abcdef";
  identity.vocab_size = kTinyVocabulary;
  identity.eos = kTinyEos;
  identity.form.bos = false;
  return identity;
}

absl::Status WriteTinyShards(const std::string& directory, uint64_t seed, int64_t tokens,
                             int64_t tokens_per_shard, const ShardIdentity& identity) {
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardWriter> writer,
                      ShardWriter::Create(directory, identity, tokens_per_shard));
  uint64_t draw = 0;
  const auto next = [&](uint32_t below) { return Philox(seed, draw++, 0)[0] % below; };
  for (int64_t left = tokens; left > 0;) {
    const int64_t length = std::min<int64_t>(left, 2 + next(25));
    std::vector<uint32_t> ids;
    for (int64_t i = 0; i + 1 < length; ++i)
      ids.push_back(next(static_cast<uint32_t>(*identity.eos)));
    ids.push_back(*identity.eos);
    OT_RETURN_IF_ERROR(writer->Append(ids.data(), length, length));
    left -= length;
  }
  return writer->Finish();
}

absl::Status MakeTinyCorpus(const std::string& root) {
  // Windows cross the shards, and the last five ids fill no window.
  OT_RETURN_IF_ERROR(WriteTinyShards(JoinPath(root, "train"), 1, kTinyWindows * kTinyWindow + 5,
                                     100, TinyIdentity()));
  OT_RETURN_IF_ERROR(WriteTinySubset(root, "a", 11, 3 * kTinyWindow + 7));
  return WriteTinySubset(root, "b", 12, 5 * kTinyWindow);
}

absl::Status WriteTinySubset(const std::string& root, const std::string& name, uint64_t seed,
                             int64_t tokens) {
  const std::string directory = absl::StrCat(root, "/held_out/", name, "/val");
  OT_RETURN_IF_ERROR(CreateDirectories(directory));
  return WriteTinyShards(directory, seed, tokens, tokens, TinyIdentity());
}

absl::StatusOr<LoadedConfig> TinyConfig(const std::string& root, const std::string& run,
                                        const std::vector<std::string>& overrides) {
  const std::string yaml = absl::StrCat(
      "model: {vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16}\n"
      "optimizer: {lr: 0.02, adam_lr: 0.008}\n"
      "data: {train: ['",
      root, "/train/*.h5'], sequence_length: 16, order: {block: 4}}\n",
      "train: {steps: 10, batch_sequences: 3, micro_batch_sequences: 1}\n"
      "eval: {held_out: ['",
      root, "/held_out'], every_steps: 4, at_start: true}\n", "checkpoint: {directory: '", root,
      "/", run, "', every_minutes: 0, keep: 2}\n");
  return LoadConfigText(yaml, "tiny.yaml", overrides);
}

std::vector<std::string> MethodOverrides() {
  return {"model.ngram_embedding={orders: [2, 3], rows: 101, splits: 1, width: 6}",
          "model.second_token_head={weight: 0.1}",
          "loss.sampled_softmax={stages: [{until: 0.5, candidates: 24}, {until: 0.8, candidates: "
          "32}], block_sequences: 1}"};
}

absl::StatusOr<std::vector<std::string>> StableMetrics(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", line));
    // The list of docs/formats/metrics.md.
    for (const char* measured :
         {"time", "throughput/duration", "throughput/loading_time", "throughput/tokens_per_second",
          "throughput/examples_per_second", "memory/peak_gib"}) {
      json.erase(measured);
    }
    lines.push_back(json.dump());
  }
  return lines;
}

Communicator* Alone() {
  static Communicator* const world = OneRank().release();
  return world;
}

absl::StatusOr<RunTrace> TraceOf(const std::string& run_directory) {
  const CheckpointStore store(RunDirectory::CheckpointsOf(run_directory), 2, Alone());
  OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, store.Marked());
  if (marked.empty()) return absl::NotFoundError(absl::StrCat(run_directory, ": no checkpoint"));
  RunTrace trace;
  OT_ASSIGN_OR_RETURN(trace.state, store.ReadState(marked.back()));
  OT_ASSIGN_OR_RETURN(trace.metrics, StableMetrics(RunDirectory::MetricsOf(run_directory)));
  return trace;
}

}  // namespace overtok::testing
