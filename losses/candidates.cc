#include "losses/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/io/hash.h"
#include "core/rng.h"

namespace overtok {
namespace {

constexpr int64_t kWordBits = 64;

int64_t Words(int64_t classes) { return (classes + kWordBits - 1) / kWordBits; }

bool Has(const uint64_t* bitmap, uint64_t id) { return (bitmap[id / 64] >> (id % 64) & 1) != 0; }

// Whether the class is new.
bool Insert(uint64_t* bitmap, uint64_t id) {
  const uint64_t bit = uint64_t{1} << (id % 64);
  uint64_t& word = bitmap[id / 64];
  const bool fresh = (word & bit) == 0;
  word |= bit;
  return fresh;
}

uint64_t StreamKey(uint64_t seed, absl::string_view purpose, absl::string_view head) {
  const std::string name = absl::StrCat(purpose, head);
  return Xxh3(name.data(), static_cast<int64_t>(name.size()), seed);
}

// A 64-bit word onto [0, n): the upper half of word * n. n < 2^32, so no number is likelier than
// another by more than 2^-32 of itself.
uint64_t Below(uint64_t word, uint64_t n) { return absl::Uint128High64(absl::uint128(word) * n); }

uint64_t Join(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }

}  // namespace

uint64_t SweepStride(uint64_t classes) {
  OT_CHECK_GE(classes, 1U);
  // The product is rounded to double first, as everyone who states this rule computes it.
  auto stride = static_cast<uint64_t>(static_cast<double>(classes) * 0.6180339887498949) | 1;
  while (std::gcd(stride, classes) != 1) stride += 2;
  return stride;
}

uint64_t SweepOffset(uint64_t seed, absl::string_view head, int64_t step, uint64_t classes,
                     int64_t block, int64_t blocks) {
  OT_CHECK(classes >= 1 && block >= 0 && block < blocks) << "block " << block << " of " << blocks;
  const auto words = Philox(StreamKey(seed, "candidates.", head), static_cast<uint64_t>(step), 0);
  const uint64_t first = Below(Join(words[0], words[1]), classes);
  const uint64_t stagger = static_cast<uint64_t>(block) * (classes / static_cast<uint64_t>(blocks));
  return (first + stagger) % classes;
}

double InclusionCorrection(int64_t classes, int64_t candidates, int64_t present) {
  OT_CHECK(present <= candidates && candidates <= classes);
  if (present == candidates) return 0;
  return std::log(static_cast<double>(classes - present) /
                  static_cast<double>(candidates - present));
}

int64_t StageEnd(const SampledStage& stage, int64_t steps) {
  return static_cast<int64_t>(std::nearbyint(stage.until * static_cast<double>(steps)));
}

int64_t StageCandidates(const std::vector<SampledStage>& stages, int64_t classes, int64_t steps,
                        int64_t step) {
  for (const SampledStage& stage : stages) {
    if (step < StageEnd(stage, steps)) return stage.candidates;
  }
  return classes;
}

CandidateSets::CandidateSets(const CandidateOptions& options, int64_t labels, int64_t blocks,
                             int64_t most, Memory* memory)
    : options_(options),
      blocks_(blocks),
      stride_(SweepStride(static_cast<uint64_t>(options.classes))) {
  OT_CHECK(options.classes >= 1 && options.classes < int64_t{1} << 32);
  OT_CHECK(most >= 1 && most <= options.classes) << most << " of " << options.classes;
  OT_CHECK(blocks >= 1 && labels >= blocks && labels % blocks == 0)
      << labels << " labels in " << blocks << " blocks";
  const auto name = [&](const char* what) {
    return absl::StrCat("candidates.", what, "/", options.head);
  };
  const auto take = [&](const char* what, DType dtype, Shape shape) {
    return memory->TakeInput(Purpose::kBatches, name(what), dtype, shape);
  };
  const auto take_host = [&](const char* what, DType dtype, Shape shape) {
    return memory->TakeHost(Purpose::kBatches, name(what), dtype, shape);
  };
  ids_ = take("ids", DType::kU32, {blocks, most});
  if (options.correction == Correction::kInclusion) {
    bias_ = take("bias", DType::kF32, {blocks, most});
  }
  ranks_ = take("ranks", DType::kU32, {labels});
  const int64_t words = Words(options.classes);
  present_ = take_host("present", DType::kU64, {words});
  chosen_ = take_host("chosen", DType::kU64, {words});
  before_ = take_host("before", DType::kU32, {words});
  sets_.reserve(static_cast<size_t>(blocks));
}

void CandidateSets::Build(std::span<const uint32_t> labels, int64_t candidates, int64_t step) {
  const int64_t block_labels = ranks_.dim(0) / blocks_;
  const auto count = static_cast<int64_t>(labels.size());
  OT_CHECK(count > 0 && count <= ranks_.dim(0) && count % block_labels == 0)
      << count << " labels in blocks of " << block_labels;
  OT_CHECK(candidates >= 1 && candidates <= ids_.dim(1)) << candidates;
  candidates_ = candidates;
  sets_.assign(static_cast<size_t>(count / block_labels), CandidateSet());
  for (int64_t b = 0; b < count / block_labels; ++b) {
    BuildBlock(
        labels.subspan(static_cast<size_t>(b * block_labels), static_cast<size_t>(block_labels)), b,
        step);
  }
}

void CandidateSets::BuildBlock(std::span<const uint32_t> labels, int64_t block, int64_t step) {
  const auto classes = static_cast<uint64_t>(options_.classes);
  CandidateSet& set = sets_[static_cast<size_t>(block)];
  uint32_t* ranks = ranks_.data<uint32_t>() + block * static_cast<int64_t>(labels.size());
  if (options_.negatives == Negatives::kSweep) {
    set.offset = SweepOffset(options_.seed, options_.head, step, classes, block,
                             static_cast<int64_t>(sets_.size()));
  }

  const int64_t words = present_.dim(0);
  auto* present = present_.data<uint64_t>();
  std::fill_n(present, words, uint64_t{0});
  for (const uint32_t label : labels) {
    OT_CHECK_LT(label, classes) << "a label is no class of " << options_.head;
    set.present += Insert(present, label) ? 1 : 0;
  }
  set.overflow = set.present > candidates_;
  set.every_class = candidates_ == options_.classes;
  if (set.overflow || set.every_class) std::copy(labels.begin(), labels.end(), ranks);
  if (set.overflow) return;

  const auto row = [&](const Tensor& x) { return x.Rows(block, 1).Reshape({x.dim(1)}); };
  set.ids = row(ids_).Rows(0, candidates_);
  auto* ids = set.ids.data<uint32_t>();
  if (set.every_class) {
    std::iota(ids, ids + candidates_, uint32_t{0});
    return;
  }

  auto* chosen = chosen_.data<uint64_t>();
  std::copy_n(present, words, chosen);
  const int64_t missing = candidates_ - set.present;
  if (options_.negatives == Negatives::kSweep) {
    Sweep(set.offset, missing);
  } else {
    DrawUniform(step, block, missing);
  }

  float* bias = nullptr;
  if (options_.correction == Correction::kInclusion && missing > 0) {
    set.correction = InclusionCorrection(options_.classes, candidates_, set.present);
    set.bias = row(bias_).Rows(0, candidates_);
    bias = set.bias.data<float>();
  }
  auto* before = before_.data<uint32_t>();
  uint32_t rank = 0;
  for (int64_t w = 0; w < words; ++w) {
    before[w] = rank;
    for (uint64_t rest = chosen[w]; rest != 0; rest &= rest - 1) {
      const int bit = std::countr_zero(rest);
      ids[rank] = static_cast<uint32_t>(w * kWordBits + bit);
      if (bias != nullptr) {
        bias[rank] = (present[w] >> bit & 1) != 0 ? 0.0F : static_cast<float>(set.correction);
      }
      ++rank;
    }
  }
  OT_CHECK_EQ(static_cast<int64_t>(rank), candidates_);
  for (size_t i = 0; i < labels.size(); ++i) {
    const uint32_t word = labels[i] / 64, bit = labels[i] % 64;
    const uint64_t below = chosen[word] & ((uint64_t{1} << bit) - 1);
    ranks[i] = before[word] + static_cast<uint32_t>(std::popcount(below));
  }
}

void CandidateSets::Sweep(uint64_t offset, int64_t missing) {
  const auto classes = static_cast<uint64_t>(options_.classes);
  auto* chosen = chosen_.data<uint64_t>();
  uint64_t id = static_cast<uint64_t>(absl::uint128(offset) * stride_ % absl::uint128(classes));
  while (missing > 0) {
    missing -= Insert(chosen, id) ? 1 : 0;
    id += stride_;
    if (id >= classes) id -= classes;
  }
}

// Rejection: a class met before, or a label, is drawn again. Whichever of the chosen and the left
// out negatives are fewer is drawn, so at most V draws are expected however full the set is.
void CandidateSets::DrawUniform(int64_t step, int64_t block, int64_t missing) {
  const auto classes = static_cast<uint64_t>(options_.classes);
  const uint64_t key = StreamKey(options_.seed, "candidates.draws.", options_.head);
  const uint64_t stream = static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(block);
  auto* present = present_.data<uint64_t>();
  auto* chosen = chosen_.data<uint64_t>();
  const int64_t absent = options_.classes - (candidates_ - missing);
  const bool leave_out = missing > absent / 2;
  if (leave_out) {
    const int64_t words = present_.dim(0), tail = options_.classes % kWordBits;
    std::fill_n(chosen, words, ~uint64_t{0});
    if (tail != 0) chosen[words - 1] = (uint64_t{1} << tail) - 1;
  }
  int64_t draws = leave_out ? absent - missing : missing;
  for (uint64_t counter = 0; draws > 0; ++counter) {
    const auto words = Philox(key, counter, stream);
    for (size_t half = 0; half < 4 && draws > 0; half += 2) {
      const uint64_t id = Below(Join(words[half], words[half + 1]), classes);
      if (!leave_out) {
        draws -= Insert(chosen, id) ? 1 : 0;
      } else if (Has(chosen, id) && !Has(present, id)) {
        chosen[id / 64] &= ~(uint64_t{1} << (id % 64));
        --draws;
      }
    }
  }
}

}  // namespace overtok
