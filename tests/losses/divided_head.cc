#include "tests/losses/divided_head.h"

#include <algorithm>
#include <cmath>

#include "core/memory.h"
#include "core/ops/embedding.h"
#include "tests/support/thread_ranks.h"

namespace overtok::testing {
namespace {

// Values in storage of either kind.
class Stored {
 public:
  Stored(DType dtype, Shape shape, const std::vector<float>& values)
      : dtype_(dtype), shape_(shape) {
    floats_ = values;
    for (const float x : values) halves_.emplace_back(x);
  }
  Tensor tensor() {
    return dtype_ == DType::kF32 ? Tensor(floats_.data(), shape_) : Tensor(halves_.data(), shape_);
  }
  std::vector<float> Values() const {
    if (dtype_ == DType::kF32) return floats_;
    std::vector<float> out;
    for (const bf16 x : halves_) out.push_back(static_cast<float>(x));
    return out;
  }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<float> floats_;
  std::vector<bf16> halves_;
};

// Sum over ranks in their order, on every rank.
std::vector<float> SumOverRanks(Communicator& world, std::vector<float> part) {
  const auto n = static_cast<int64_t>(part.size());
  std::vector<float> all(part.size() * static_cast<size_t>(world.size())), sum(part.size());
  world.AllGather(Tensor(part.data(), {n}), Tensor(all.data(), {world.size(), n}),
                  Traffic::kActivations);
  for (size_t i = 0; i < all.size(); ++i) sum[i % part.size()] += all[i];
  return sum;
}

void RunRank(Communicator& world, const HeadProblem& p, const HeadOptions& options,
             const Division& how, DividedOutcome* outcome) {
  const Sharding mine = {how.split, how.ranks, world.rank()};
  RankOutcome& out = outcome->ranks[static_cast<size_t>(world.rank())];
  const int64_t d = p.hidden, n = SizeOfPart(mine, p.classes);
  out.classes = n;
  std::vector<float> w, bias;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = GlobalOf(mine, p.classes, i);
    w.insert(w.end(), p.w.begin() + c * d, p.w.begin() + (c + 1) * d);
    if (!options.bias.empty()) bias.push_back(options.bias[static_cast<size_t>(c)]);
  }
  std::vector<uint32_t> targets;
  for (size_t t = 0; t < p.targets.size(); ++t) {
    const bool here = PartOf(mine, p.classes, p.targets[t]) == world.rank() &&
                      (how.claim_ignored || p.weight[t] != 0);
    targets.push_back(here ? static_cast<uint32_t>(LocalOf(mine, p.classes, p.targets[t]))
                           : kNoRow);
  }
  std::vector<float> loss_weight = p.weight, gradient_weight = p.gradient_weight;
  Stored hidden(how.act, {p.tokens, d}, p.h), weight(how.act, {n, d}, w);
  Stored d_hidden(how.act, {p.tokens, d}, std::vector<float>(p.h.size(), NAN));
  std::vector<float> d_weight(w.size(), how.accumulate ? 0.5F : NAN);

  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  const int64_t most = LargestPart(mine, p.classes);
  LinearCrossEntropy head(&memory, p.tokens, d, most, how.act, &world, how.tile_bytes);
  memory.Commit(&context);
  LinearCrossEntropyArgs args;
  args.hidden = hidden.tensor();
  args.weight = weight.tensor();
  if (!options.bias.empty()) args.bias = Tensor(bias.data(), {n});
  args.targets = Tensor(targets.data(), {p.tokens});
  args.loss_weight = Tensor(loss_weight.data(), {p.tokens});
  args.focal_gamma = options.focal_gamma;
  args.z_loss = options.z_loss;
  if (how.gradients) {
    args.gradient_weight = Tensor(gradient_weight.data(), {p.tokens});
    args.d_hidden = d_hidden.tensor();
    args.d_weight = Tensor(d_weight.data(), {n, d});
    args.accumulate_d_weight = how.accumulate;
  }
  const size_t kind = static_cast<size_t>(Traffic::kLoss);
  const int64_t before = world.bytes_sent()[kind];
  out.sums = head.RunAndRead(context, args, most);
  out.bytes_sent = world.bytes_sent()[kind] - before;
  out.tile_rows = head.tile_rows(most);
  const float* losses = head.token_losses().data<float>();
  out.token_loss.assign(losses, losses + p.tokens);
  if (!how.gradients) return;
  out.own_dh = d_hidden.Values();
  out.dh = SumOverRanks(world, out.own_dh);
  // Every rank writes elements of its own.
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(d_weight.begin() + i * d, d,
                outcome->dw.begin() + GlobalOf(mine, p.classes, i) * d);
  }
}

}  // namespace

DividedOutcome RunDivided(const HeadProblem& p, const HeadOptions& options, const Division& how) {
  DividedOutcome outcome;
  outcome.ranks.resize(static_cast<size_t>(how.ranks));
  outcome.dw.assign(p.w.size(), NAN);
  RunOnRanks(how.ranks, [&](Communicator& world) { RunRank(world, p, options, how, &outcome); });
  return outcome;
}

}  // namespace overtok::testing
