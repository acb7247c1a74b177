// A run's configuration as plain values: everything resolved (no `auto`, no missing value) and
// checked. trainer/config/load.h reads it from YAML; docs/configuration.md lists the keys. Each
// component owns the struct of its section.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/gradient_sum.h"
#include "core/sharding.h"
#include "core/tensor.h"
#include "data/order.h"
#include "losses/config.h"
#include "model/config.h"
#include "model/hf_names.h"
#include "optim/config.h"

namespace overtok {

struct DataConfig {
  // Paths or glob patterns of token shards, relative to the working directory; the matches of one
  // pattern are taken in natural order, the patterns in the order given. May be empty where no
  // corpus is read (`overtok plan`, `overtok bench`).
  std::vector<std::string> train;
  int64_t sequence_length = 0;  // S, tokens in a window
  OrderOptions order;
  // At most one of the two is set. See KeptBatches (derived.h) for what they keep.
  std::optional<double> passes;          // p: keep the first round(steps / p) batches, wrap there
  std::optional<int64_t> unique_tokens;  // keep this many tokens, rounded down to whole batches
};

// The length of a run, as the configuration states it.
struct Horizon {
  enum class Kind { kSteps, kTokens, kPassesOverData, kTokensPerParameter };
  Kind kind = Kind::kSteps;
  double value = 0;  // steps, tokens, passes, or tokens per parameter (all parameters count)
};

enum class Recompute { kNone, kBlock };

struct TrainConfig {
  Horizon horizon;
  int64_t steps = 0;  // T, optimizer steps; 0 until ResolveHorizon when the corpus decides it
  int64_t batch_sequences = 0;        // B, windows per optimizer step
  int64_t micro_batch_sequences = 0;  // windows per forward and backward pass; divides B
  uint64_t seed = 0;                  // of the initial values
  // Weights to begin with in their place (docs/initial_weights.md); a run that has a checkpoint
  // continues from that.
  std::optional<std::string> initial_weights;
  NewParameters new_parameters = NewParameters::kRefuse;  // those that initial_weights lack
  DeviceKind device = DeviceKind::kCpu;
  DType precision = DType::kF32;  // of compute: kF32 or kBF16; values and state stay f32
  AttentionKind attention = AttentionKind::kKernels;  // kCudnn: on cuda, in bf16
  Recompute recompute = Recompute::kNone;  // kBlock: keep a block's input, redo its forward pass
  bool cuda_graphs = true;                 // on a device: hand a micro-batch over as one
};

struct EvalConfig {
  enum class Tail { kDrop, kKeep };
  std::optional<std::string> paloma;  // directory in Paloma's layout; tags eval/paloma/...
  std::vector<std::string> held_out;  // directories in that layout; tags eval/held_out/<set>/...
  // Tokenizer of collections that are text (.jsonl, .jsonl.gz), as `overtok tokenize --tokenizer`
  // takes it; it must be the corpus's own.
  std::optional<std::string> tokenizer;
  int64_t every_steps = 0;  // evaluate after every so many steps; 0: only at the end
  bool at_start = false;    // and before the first step
  Tail tail = Tail::kDrop;  // kKeep: the part of a set that fills no window is scored as well
  // Score the current weights a second time, with log of every class's probability of being a
  // candidate added to its logit, under a name of its own; while candidates are sampled only.
  bool inclusion_adjusted = false;
  // Evaluate also this many steps after (negative: before) the first step of every pass over the
  // data but the first.
  std::vector<int64_t> pass_offsets;

  bool enabled() const { return paloma.has_value() || !held_out.empty(); }
};

struct CheckpointConfig {
  std::string directory;      // the run directory, relative to the working directory
  double every_minutes = 10;  // save after so many minutes of wall time; 0: not by time
  int64_t every_steps = 0;    // save after every so many steps; 0: not by steps
  int64_t keep = 2;           // newest checkpoints that stay
  bool background = false;    // write a copy while training goes on
};

// What the number of ranks cannot tell; data-parallel ranks are all ranks over `tensor`.
struct ParallelConfig {
  int64_t tensor = 1;                     // ranks that share one replica of the model
  Split vocabulary_map = Split::kBlocks;  // rows of embedding and heads: kBlocks or kRows
  GradientOrder gradient_sum = GradientOrder::kTree;
};

struct Config {
  ModelConfig model;
  LossConfig loss;
  OptimizerConfig optimizer;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
  // optimizer.tables.freeze_after_passes, until it has become optimizer.tables.freeze_step: at the
  // latest in ResolveHorizon, because the length of a pass may need the corpus. 0 afterwards.
  double freeze_after_passes = 0;

  int64_t tokens_per_step() const { return train.batch_sequences * data.sequence_length; }
};

}  // namespace overtok
