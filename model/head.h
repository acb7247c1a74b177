// A head: states of the model in, loss sums and d(states) out, in one fused pass over tiles.
// Next-token and second-token heads score rows of a [V, d] matrix; hashed n-gram heads score
// classes u_c = W_out table[c] as (W_out^T state) . table[c], which takes w and not d operations a
// class. Blocks of windows that sample share one candidate set, whose rows are gathered once. No
// [tokens, classes] and no vector u_c is ever made. In a tensor group every rank scores all tokens
// against its share of the classes. docs/methods/, docs/parallel.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "losses/candidate_shard.h"
#include "losses/candidates.h"
#include "losses/config.h"
#include "losses/linear_cross_entropy.h"
#include "model/config.h"
#include "model/step_ids.h"
#include "model/table_exchange.h"
#include "model/token_shards.h"
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
// all blocks that this rank has windows of; 0 where nothing is trained.
HeadParameters DeclareHead(const ModelConfig& config, HeadKind kind, int64_t touched,
                           ParameterSet* parameters);

struct HeadOptions {
  int64_t sequences = 0, length = 0;    // of a step
  int64_t first_row = 0, own_rows = 0;  // this rank's windows
  int64_t pass_tokens = 0;              // T of a micro-batch
  int64_t steps = 0;                    // of the run
  uint64_t seed = 0;
  DType act = DType::kF32;
  bool training = true;
};

// Blocks of windows that this rank has windows of: [first, end).
struct BlockRange {
  int64_t first = 0, end = 0;
  int64_t count() const { return end - first; }
};
BlockRange OwnBlocks(const LossConfig& loss, const HeadOptions& options);

// What heads share: none of it outlives a call of Run.
struct HeadWorkspace {
  LinearCrossEntropy* cross_entropy = nullptr;  // for T tokens and the MostClasses of all heads
  const TokenShards* tokens = nullptr;
  GradientSum* gradients = nullptr;  // null where nothing is trained
  const Mesh* mesh = nullptr;
  Tensor whole, d_whole;  // [T d] act of several ranks in a tensor group
};

// Most classes that a call of the cross-entropy may see on any rank.
int64_t MostClasses(const ModelConfig& model, const LossConfig& loss, HeadKind kind,
                    const HeadOptions& options, const Layout& layout);

class Head {
 public:
  Head(const ModelConfig& model, const LossConfig& loss, const HeadParameters& parameters,
       const HeadOptions& options, const HeadWorkspace& workspace, Memory* memory);

  // Collective. Candidate sets of this step, and the rows of the table that this rank reads.
  absl::Status BeginStep(const StepIds::HeadIds& ids, int64_t step);
  // Collective, once those rows are up to date: they set out, and the first Run waits for them.
  void Fetch(const Context& context);

  // Loss and gradients at positions [first, first + T) of the step. hidden: [U, d] act, this rank's
  // share; d_hidden: [U, d] act, written by the main head, added to by the others. Collective; in
  // the step's last micro-batch gradients of a table's rows set out.
  void Run(const Context& context, const StepIds::HeadIds& ids, int64_t first, const Tensor& hidden,
           const Tensor& d_hidden);
  // What every Run since BeginStep left, one part behind the other: [parts, 3] f64 on the device,
  // LossSums in its order; and how many parts each Run had.
  Tensor sums() const { return sums_.Rows(0, scored_); }
  const std::vector<int64_t>& parts() const { return parts_; }
  // Collective, after the last micro-batch: waits for other ranks' gradients of a table's rows and
  // sums them.
  void ReturnGradients(const Context& context);

  // Inputs of an evaluation, before they are sent: targets among this rank's classes, and its part
  // of the bias ([V] f32 on the host, or undefined).
  void PlaceClasses(const StepIds::HeadIds& ids, const Tensor& bias);
  // Main head, full softmax, no gradients: losses per token are in the cross-entropy's
  // token_losses(). bias: [V] f32 added to the logits, an input, or undefined; as it was placed.
  LossSums Evaluate(const Context& context, const StepIds::HeadIds& ids, const Tensor& hidden,
                    const Tensor& bias);

  // Dense parameters in the order in which Run completes their gradients.
  void AppendBackwardOrder(std::vector<Parameter*>* order) const;

  HeadKind kind() const { return parameters_.kind; }
  double loss_weight() const { return loss_weight_; }
  // The sets of this step; null while the head uses its full softmax.
  const CandidateSets* candidates() const { return sampling_ ? sets_.get() : nullptr; }

 private:
  bool hashed() const { return parameters_.table != nullptr; }
  bool divided() const { return workspace_.tokens->divided(); }
  int64_t first_position() const { return options_.first_row * options_.length; }
  absl::Status NameRows();
  // Positions [begin, begin + args.hidden.dim(0)) of one block that samples, or any range against
  // all classes.
  void RunShare(const Context& context, int64_t block, const Tensor& sums,
                LinearCrossEntropyArgs* args);
  void RunAll(const Context& context, const Tensor& sums, LinearCrossEntropyArgs* args);
  // Brings the rows of a block's candidates together, when its first position comes.
  void OpenBlock(const Context& context, int64_t block);
  Tensor Slots(int64_t block) const;  // of a block's candidates, into the touched rows
  // What is scored, [U, e] act with e = d, or w for hashed heads; and from its gradient to the
  // parameters' and d_hidden.
  Tensor Features(const Context& context, const Tensor& hidden);
  void FeaturesBackward(const Context& context, const Tensor& hidden, const Tensor& d_hidden);
  int64_t width() const { return hashed() ? model_.ngram_head->width : model_.hidden_size; }

  ModelConfig model_;
  LossConfig loss_;
  HeadParameters parameters_;
  HeadOptions options_;
  HeadWorkspace workspace_;
  double loss_weight_;
  int64_t block_positions_;
  int64_t most_rows_ = 0;  // of the weight on any rank
  std::unique_ptr<CandidateSets> sets_;
  std::unique_ptr<CandidateShares> shares_;
  bool sampling_ = false;
  int64_t open_block_ = -1;
  Tensor sums_;                 // [parts, 3] f64: LossSums of every part that was scored
  std::vector<int64_t> parts_;  // of each Run: how many parts it had
  int64_t scored_ = 0;          // parts in all

  Tensor states_, d_states_;      // [U, d] act: W_2 h, of all but the main head
  Tensor narrow_, d_narrow_;      // [U, w] act: W_out^T W_2 h, of hashed heads
  Tensor gathered_, d_gathered_;  // [P, e] act, f32: candidates' rows of the open block
  Tensor places_;                 // [own T] u32, of several ranks: targets in this rank's classes
  Tensor bias_;                   // [V] f32 of this rank's classes, in evaluation
  std::unique_ptr<RowSlots> slots_builder_;
  std::unique_ptr<TableExchange> exchange_;
  Tensor slots_;                      // [own blocks P] u32 into the touched rows
  std::vector<int64_t> slots_begin_;  // of each own block, and the end
};

}  // namespace overtok
