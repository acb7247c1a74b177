// Batch: what one optimizer step reads. One function makes segments and loss weights for training
// and evaluation alike.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "data/shard.h"

namespace overtok {

// B windows of S ids on the host, in batch order.
struct Batch {
  int64_t sequences = 0, length = 0;  // B, S
  std::vector<uint32_t> tokens;       // [B, S]
  std::vector<int32_t> segments;   // [B, S] document index inside the window, from 0; never falls
  std::vector<float> loss_weight;  // [B, S] weight of predicting t + 1 from t
  std::vector<int64_t> windows;    // [B] window of the corpus
  int64_t first_sequence = 0;      // sequence number of row 0 in the run
  int64_t pass = 0;                // pass that the step is counted to: Order::StepPass of row 0
  bool begins_pass = false;        // the step before, if there was one, was of another pass
  double weight_sum = 0;           // sum of loss_weight

  void Resize(int64_t b, int64_t s);
};

// Fills segments and loss_weight of one row from its ids: the segment grows after each EOS (the EOS
// belongs to the document it ends); weight 0 at the last position; where the data has a pad id:
// weight 0 where the target or the position itself is padding, and every pad position gets a
// segment of its own, so that it attends to nothing and is history to nothing.
void FillSegmentsAndWeights(const ShardIdentity& identity, const uint32_t* tokens, int64_t length,
                            int32_t* segments, float* loss_weight);

}  // namespace overtok
