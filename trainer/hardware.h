// A machine in numbers, for predicting a step on paper: `overtok plan --hardware FILE`. Read from
// YAML as strictly as a run's configuration. docs/planning.md lists the keys.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/ops/work.h"
#include "core/status.h"

namespace overtok {

// FLOP/s by the dtype of the operands.
struct Rates {
  double f32 = 0, bf16 = 0;
};

// FLOP/s of attention in bf16 for one width of a head. A forward pass counts 2 products over the
// causal half of the scores, a backward pass 5.
struct AttentionRates {
  double forward = 0, backward = 0;
};

// One direction, of one rank.
struct Link {
  double bandwidth = 0;  // bytes/s
  double latency = 0;    // seconds from the start of a message to its use
};

struct Hardware {
  // Of one device: a GPU, or one core of a CPU. What programs reach, not what data sheets promise.
  Rates matmul;
  double matmul_tf32 = 0;  // of f32 operands rounded to TF32; default: matmul.f32
  Rates attention;         // forward and backward together, the backward pass counted as 4 products
  // Default: 0.6 of matmul. Where known, kernels for heads of up to 64, and of up to 128; default:
  // attention.bf16 in both directions, however a backward pass is counted.
  AttentionRates attention_64, attention_128;
  double memory_bandwidth = 0;  // bytes/s of passes over tensors
  double row_bandwidth = 0;     // of rows named by ids; default: 0.75 of memory_bandwidth
  double memory = 0;            // bytes; 0: the devices of a node share node_memory

  int64_t devices = 1;  // of a node
  // Ranks of a node divide its devices among them (cores of a CPU); else each rank has one (GPU).
  bool divided = false;
  double node_memory_bandwidth = 0;  // that all devices of a node reach together; 0: no limit
  double node_memory = 0;            // bytes that all ranks of a node share; 0: no limit
  Link within, between;              // ranks of one node, and of different ones

  // Share of an exchange that can run beside computing, 0 to 1: 0 where the processor copies.
  double overlap = 0;

  AttentionRates AttentionOf(DType dtype, int64_t head_width) const;
};

// Seconds of an op on one device that does nothing else: its bytes at the memory's rates or its
// operations at that of their kind, whichever takes longer. Launches are left out.
double SecondsOf(const Work& work, const Hardware& hardware);

// Errors list every mistake, one a line, each with file and line.
absl::StatusOr<Hardware> ParseHardware(absl::string_view text, absl::string_view file);
absl::StatusOr<Hardware> LoadHardware(absl::string_view path);

}  // namespace overtok
