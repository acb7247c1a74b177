// Candidate sets of the sampled softmax: per block of windows, the classes that are labels there
// and enough negatives to make P, ascending (docs/methods/sampled_softmax.md). Integer work on the
// host over a bitmap of the classes; no list of all classes is made or sorted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "losses/config.h"

namespace overtok {

// Step between neighbours of the sweep: floor(classes * 0.6180339887498949), made odd, then raised
// by 2 until coprime to `classes`. The sweep's k-th class is (k * stride) mod classes.
uint64_t SweepStride(uint64_t classes);

// Where block `block` of `blocks` begins in the sweep at `step`: uniform in [0, classes) by (seed,
// head, step), plus block * floor(classes / blocks), modulo classes. `head`: "main", "head2", ...
uint64_t SweepOffset(uint64_t seed, absl::string_view head, int64_t step, uint64_t classes,
                     int64_t block, int64_t blocks);

// log((V - T) / (P - T)); 0 when P = T.
double InclusionCorrection(int64_t classes, int64_t candidates, int64_t present);

// round(until * steps), half to even: the first step after the stage.
int64_t StageEnd(const SampledStage& stage, int64_t steps);
// P of `step` (from 0) in a run of `steps`; `classes` for the full softmax.
int64_t StageCandidates(const std::vector<SampledStage>& stages, int64_t classes, int64_t steps,
                        int64_t step);

struct CandidateOptions {
  int64_t classes = 0;  // V
  Correction correction = Correction::kNone;
  Negatives negatives = Negatives::kSweep;
  uint64_t seed = 0;
  absl::string_view head;  // names the head's own random stream; must outlive the sets
};

// One block's set.
struct CandidateSet {
  bool overflow = false;     // more than P distinct labels: the block uses the full softmax
  bool every_class = false;  // P = V: ids are 0 ... V - 1
  int64_t present = 0;       // T, distinct labels of the block
  uint64_t offset = 0;       // index in the sweep of the first class looked at; 0 without a sweep
  double correction = 0;     // log weight added to negatives
  Tensor ids;                // [P] u32, ascending; undefined on overflow
  Tensor bias;               // [P] f32: 0 for labels, `correction` for negatives; undefined where
                             // nothing is added
};

// The sets of all blocks of one step for one head, and every label's rank in its block's set.
class CandidateSets {
 public:
  // For `labels` labels a step (windows * length) in up to `blocks` blocks of equal size, and P up
  // to `most`. Takes ids, bias, ranks and the bitmap from `memory`.
  CandidateSets(const CandidateOptions& options, int64_t labels, int64_t blocks, int64_t most,
                Memory* memory);

  // Builds all sets. labels: every label of the step in batch order, below V; fewer than the sets
  // were made for make fewer blocks of the same size. P <= most, <= V.
  void Build(std::span<const uint32_t> labels, int64_t candidates, int64_t step);

  const std::vector<CandidateSet>& sets() const { return sets_; }
  // [labels] u32: the rank of each label in its block's set; the label itself where the block
  // overflowed.
  const Tensor& ranks() const { return ranks_; }
  int64_t candidates() const { return candidates_; }  // P of the last Build

 private:
  void BuildBlock(std::span<const uint32_t> labels, int64_t block, int64_t step);
  // Negatives into the bitmap, until it has P classes.
  void Sweep(uint64_t offset, int64_t missing);
  void DrawUniform(int64_t step, int64_t block, int64_t missing);

  CandidateOptions options_;
  int64_t blocks_;
  int64_t candidates_ = 0;
  uint64_t stride_;
  Tensor ids_, bias_, ranks_;         // [blocks, most] u32, f32; [labels] u32
  Tensor present_, chosen_, before_;  // bitmaps [V / 64] u64; set classes before each word, u32
  std::vector<CandidateSet> sets_;
};

}  // namespace overtok
