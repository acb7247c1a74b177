// StepIds: the ids of one optimizer step, or of one evaluation pass, as the device reads them:
// tokens, segments, rows of hashed tables, and each head's targets and weights. Filled once a step
// from the host's batch; a micro-batch is a range of rows of these tensors. Every rank is given the
// whole batch, and keeps targets and weights of all of it, so that label sets and sums of weights
// need no communication; tokens, segments and rows it keeps of its own windows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/sharding.h"
#include "core/tensor.h"
#include "model/batch_view.h"
#include "model/ngram_rows.h"

namespace overtok {

struct StepIdsOptions {
  int64_t sequences = 0, length = 0;    // B, S
  int64_t first_row = 0, own_rows = 0;  // this rank's windows: [first_row, first_row + own_rows)
  Sharding vocabulary;                  // of the token embedding's rows
  bool training = true;                 // false: main head only, no row dropout
  uint64_t seed = 0;                    // of row dropout and re-hashing: train.seed
};

// Place of every id (below `classes`) in this rank's part, kNoRow where another rank has it.
// places: [n] u32.
void FillPlaces(const Sharding& sharding, int64_t classes, const uint32_t* ids,
                const Tensor& places);

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

  // Of this rank's windows, b of them. [b S] u32: each token's place in this rank's part of the
  // embedding, kNoRow where another rank has it.
  const Tensor& places() const { return places_; }
  const Tensor& segments() const { return segments_; }  // [b, S] i32
  // [b S] u32: row of table number t; kNoRow where dropout struck.
  const Tensor& rows(size_t t) const { return rows_[t]; }
  const std::vector<NgramTable>& tables() const { return tables_; }

  const std::vector<HeadIds>& heads() const { return heads_; }
  int64_t first_position() const { return options_.first_row * options_.length; }

 private:
  void DropRows(int64_t step, size_t table);

  ModelConfig model_;
  StepIdsOptions options_;
  std::vector<NgramTable> tables_;
  Tensor places_, segments_;
  std::vector<Tensor> rows_;
  std::vector<HeadIds> heads_;
};

}  // namespace overtok
