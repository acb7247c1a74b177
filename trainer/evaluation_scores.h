// What an evaluation found, and the means that are reported of it. Sums come in, every mean is
// formed here: a loss is (sum of w l) / (sum of w) over all targets of a set, never a mean of
// means of batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/metrics.h"

namespace overtok {

// One subset. Nats throughout; w is the weight of a target (1, or 0 at window ends and padding).
struct SubsetScore {
  std::string name;  // as in tags: Paloma's 4chan_meta_sep is 4chan
  int64_t windows = 0;
  double loss_sum = 0;  // of w l
  double weight = 0;    // of w
  // Of the scored targets; absent where no tokenizer tells the bytes of a token.
  std::optional<double> bytes;         // UTF-8 bytes, special tokens 0
  std::optional<double> levanter_sum;  // of (weight of a batch) * (its bits per byte, see below)

  double loss() const { return loss_sum / weight; }
  // Bits per byte over all targets: loss_sum * log2(e) / bytes.
  std::optional<double> bpb_exact() const;
  // As levanter forms it: per batch of evaluation, loss * log2(e) / (bytes per token), bytes being
  // the length of each token decoded alone; then the mean over batches weighted by tokens.
  std::optional<double> bpb() const;
};

// Subsets that are reported together.
struct CollectionScore {
  std::string prefix;  // "eval/paloma" or "eval/held_out"
  std::vector<SubsetScore> subsets;
  std::vector<std::string> left_out;  // fill no window
  // All of Paloma's subsets were scored, or the collection is not Paloma: only then does the macro
  // mean have the plain name. A mean over a part of Paloma is called partial_macro_loss.
  bool complete = true;

  double macro_loss() const;  // unweighted mean over subsets
  double micro_loss() const;  // over all targets
  std::optional<double> macro_bpb(bool exact) const;
  // The tag of the macro loss: "<prefix>/macro_loss" or "<prefix>/partial_macro_loss".
  std::string macro_tag() const;
};

// Of collections scored with log inclusion probabilities added to the logits (inclusion.h): at the
// end of their prefix.
inline constexpr char kAdjustedSuffix[] = "/inclusion_adjusted";

struct EvaluationScores {
  std::vector<CollectionScore> collections;  // with at least one subset each
  std::vector<CollectionScore> adjusted;     // the same subsets, adjusted; or none

  // The value that decides which evaluation is best: the first collection's macro loss.
  const CollectionScore* primary() const {
    return collections.empty() ? nullptr : &collections.front();
  }
  void AddTo(MetricsLine* line) const;
};

}  // namespace overtok
