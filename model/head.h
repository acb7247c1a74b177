// A head: states of the model in, loss sums and d(states) out, in one fused pass over tiles.
// Next-token and second-token heads score rows of a [V, d] matrix; hashed n-gram heads score
// classes u_c = W_out table[c] as (W_out^T state) . table[c], which takes w and not d operations a
// class. Blocks of windows that sample share one candidate set, whose rows are gathered once. No
// [tokens, classes] and no vector u_c is ever made. docs/methods/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "losses/candidates.h"
#include "losses/config.h"
#include "losses/linear_cross_entropy.h"
#include "model/config.h"
#include "model/step_ids.h"
#include "model/touched_rows.h"

namespace overtok {

// The parameters of one head; those it has no use for are null.
struct HeadParameters {
  HeadKind kind = HeadKind::kMain;
  Parameter* proj = nullptr;    // [d, d]: W_2 of all but the main head
  Parameter* weight = nullptr;  // [V, d]: rows of the vocabulary
  Parameter* table = nullptr;   // [R, w] and
  Parameter* out = nullptr;     // [d, w]: hashed n-gram heads
};

// Declares all but the main head's parameters (head2.*, gram2.*, gram3.*). `touched`: candidates of
// all blocks of a step; 0 where nothing is trained.
HeadParameters DeclareHead(const ModelConfig& config, HeadKind kind, int64_t touched,
                           ParameterSet* parameters);

struct HeadOptions {
  int64_t sequences = 0, length = 0;  // of a step
  int64_t pass_tokens = 0;            // T of a micro-batch
  int64_t steps = 0;                  // of the run
  uint64_t seed = 0;
  DType act = DType::kF32;
  bool training = true;
};

// Most classes that a call of the cross-entropy may see.
int64_t MostClasses(const ModelConfig& model, const LossConfig& loss, HeadKind kind,
                    const HeadOptions& options);

class Head {
 public:
  // `cross_entropy`: shared by all heads, for T tokens and the MostClasses of all of them.
  Head(const ModelConfig& model, const LossConfig& loss, const HeadParameters& parameters,
       const HeadOptions& options, LinearCrossEntropy* cross_entropy, Memory* memory);

  // Candidate sets of this step, and the rows of the table that it touches.
  void BeginStep(const Context& context, const StepIds::HeadIds& ids, int64_t step);

  // Loss and gradients at positions [first, first + T) of the step. hidden: [T, d] act; d_hidden:
  // [T, d] act, written by the main head, added to by the others.
  LossSums Run(const Context& context, const StepIds::HeadIds& ids, int64_t first,
               const Tensor& hidden, const Tensor& d_hidden);

  // Main head, full softmax, no gradients: losses per token are in the cross-entropy's
  // token_losses(). bias: [V] f32 added to the logits, or undefined.
  LossSums Evaluate(const Context& context, const StepIds::HeadIds& ids, const Tensor& hidden,
                    const Tensor& bias);

  HeadKind kind() const { return parameters_.kind; }
  double loss_weight() const { return loss_weight_; }
  // The sets of this step; null while the head uses its full softmax.
  const CandidateSets* candidates() const { return sampling_ ? sets_.get() : nullptr; }

 private:
  bool hashed() const { return parameters_.table != nullptr; }
  // The rows of a block's candidates are gathered when its first position comes, and their gradient
  // is handed on after its last.
  void OpenBlock(const Context& context, const CandidateSet& set, int64_t block);
  void CloseBlock(const Context& context, const CandidateSet& set, int64_t block);
  void CompleteArgs(int64_t block, LinearCrossEntropyArgs* args);
  // What is scored, [T, e] act with e = d, or w for hashed heads; and from its gradient to the
  // parameters' and d_hidden.
  Tensor Features(const Context& context, const Tensor& hidden);
  void FeaturesBackward(const Context& context, const Tensor& hidden, const Tensor& d_hidden);

  ModelConfig model_;
  LossConfig loss_;
  HeadParameters parameters_;
  HeadOptions options_;
  LinearCrossEntropy* cross_entropy_;
  double loss_weight_;
  int64_t block_positions_;
  std::unique_ptr<CandidateSets> sets_;
  bool sampling_ = false;
  int64_t open_block_ = -1;
  bool block_gradient_written_ = false;

  Tensor states_, d_states_;      // [T, d] act: W_2 h, of all but the main head
  Tensor narrow_, d_narrow_;      // [T, w] act: W_out^T W_2 h, of hashed heads
  Tensor gathered_, d_gathered_;  // [P, e] act, f32: candidates' rows of the open block
  std::unique_ptr<RowSlots> slots_builder_;
  Tensor slots_;  // [blocks P] u32 into the touched rows
};

}  // namespace overtok
