// The tiled head on several ranks that divide the classes, every rank a thread; with one rank, the
// undivided head in the same clothes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sharding.h"
#include "core/tensor.h"
#include "tests/losses/head_reference.h"

namespace overtok::testing {

struct Division {
  int ranks = 1;
  Split split = Split::kBlocks;
  DType act = DType::kF32;
  int64_t tile_bytes = 4;  // the least: tiles of 64 rows
  bool accumulate = false, gradients = true;
  bool claim_ignored = true;  // false: no rank is given the target of a token of weight 0
};

struct RankOutcome {
  LossSums sums;
  std::vector<float> token_loss;
  std::vector<float> own_dh, dh;  // this rank's part, and the sum of all ranks' formed on this rank
  int64_t classes = 0, tile_rows = 0, bytes_sent = 0;
};

struct DividedOutcome {
  std::vector<RankOutcome> ranks;
  std::vector<float> dw;  // of all classes, put together from the ranks' parts
};

DividedOutcome RunDivided(const HeadProblem& p, const HeadOptions& options, const Division& how);

}  // namespace overtok::testing
