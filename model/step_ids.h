// StepIds: the ids of one optimizer step, or of one evaluation pass, as the device reads them:
// tokens, segments, rows of hashed tables, and each head's targets and weights. Filled once a step
// from the host's batch; a micro-batch is a range of rows of these tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"
#include "model/batch_view.h"
#include "model/ngram_rows.h"

namespace overtok {

struct StepIdsOptions {
  int64_t sequences = 0, length = 0;  // B, S
  bool training = true;               // false: main head only, no row dropout
  uint64_t seed = 0;                  // of row dropout and re-hashing: train.seed
};

class StepIds {
 public:
  struct HeadIds {
    HeadKind kind;
    Tensor targets;          // [B S] u32, classes of the head
    Tensor loss_weight;      // [B S] f32
    Tensor gradient_weight;  // [B S] f32: lambda * loss_weight / (global sum of it)
    double weight_sum = 0;   // of this batch
  };

  StepIds(const ModelConfig& model, const StepIdsOptions& options, Memory* memory);

  // Everything but gradient weights. `scramble`: see NgramHash.
  void Fill(const BatchView& batch, bool scramble);
  // Once the sums are known over all ranks (in the order of heads()).
  void SetGlobalWeights(const std::vector<double>& weight_sums);

  const Tensor& tokens() const { return tokens_; }      // [B S] u32
  const Tensor& segments() const { return segments_; }  // [B, S] i32
  const std::vector<HeadIds>& heads() const { return heads_; }
  const std::vector<NgramTable>& tables() const { return tables_; }
  // [B S] u32: row of table number t; kNoRow where dropout struck.
  const Tensor& rows(size_t t) const { return rows_[t]; }

 private:
  void DropRows(const BatchView& batch, size_t table);

  ModelConfig model_;
  StepIdsOptions options_;
  std::vector<NgramTable> tables_;
  Tensor tokens_, segments_;
  std::vector<Tensor> rows_;
  std::vector<HeadIds> heads_;
};

}  // namespace overtok
