#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/io/hash.h"
#include "core/ops/optimizer.h"
#include "core/ops/table.h"

namespace overtok {
namespace {

// Sums of rows of tables that are left at once, at most: they are added up by one thread.
constexpr int64_t kSumsAtOnce = 8192;

AdamConstants Constants(double beta1, double beta2, double eps, int64_t step) {
  const auto t = static_cast<double>(step + 1);
  return {.beta1 = beta1,
          .beta2 = beta2,
          .eps = eps,
          .correction1 = 1.0 - std::pow(beta1, t),
          .correction2 = 1.0 - std::pow(beta2, t)};
}

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, int64_t steps, uint64_t seed,
                     ParameterSet* parameters, const std::vector<Parameter*>& order,
                     const Mesh* mesh, Memory* memory, GradientOrder sums)
    : config_(config), parameters_(parameters), mesh_(mesh) {
  const Layout& layout = mesh->layout();
  OT_CHECK(parameters->layout().world() == layout.world() &&
           parameters->layout().tensor == layout.tensor &&
           parameters->layout().world_rank() == layout.world_rank())
      << "the parameters are laid out for another mesh";
  const std::vector<Piece> pieces = AssignPieces(*parameters, layout);
  owned_ = TakeOwnedPieces(pieces, layout.world_rank(), memory);
  device_norms_squared_ =
      memory->Take(Purpose::kOptimizer, "norms", DType::kF64, {kOptimizerGroups});
  for (Parameter& parameter : parameters->all()) {
    if (!parameter.is_table()) continue;
    // Apart from the key of the initial values, which hashes the bare name.
    const std::string name = absl::StrCat("rounding/", parameter.spec.name);
    tables_.push_back({&parameter, Xxh3(name.data(), static_cast<int64_t>(name.size()), seed)});
  }
  TakeMoments(memory);
  TakeMatrices(memory);
  if (!tables_.empty()) schedule_ = std::make_unique<TableSchedule>(config, steps, memory);
  for (const ShardedTensor& state : parameters->table_states()) state_.push_back(state);
  gradients_ = std::make_unique<GradientExchange>(pieces, owned_, order, mesh, sums, memory);
  PlanWeightRounds(pieces, memory);
}

void Optimizer::TakeMoments(Memory* memory) {
  size_t heads = 0;
  for (const Parameter& parameter : parameters_->all()) {
    const OptimizerGroup group = parameter.spec.group;
    if (group == OptimizerGroup::kMuonH || parameter.is_table()) continue;
    for (const OwnedPiece& piece : owned_) {
      if (piece.piece.parameter != &parameter) continue;
      Moments moments{piece, heads, Tensor(), Tensor()};
      const auto take = [&](const char* what) {
        const std::string name = absl::StrCat(NameOf(group), what, parameter.spec.name);
        const Tensor tensor =
            memory->Take(Purpose::kOptimizer, name, DType::kF32, piece.value.shape());
        state_.push_back({name, piece.region, tensor});
        return tensor;
      };
      moments.m = take(".m/");
      moments.v = take(".v/");
      (group == OptimizerGroup::kAdamH ? adamh_ : adam_).push_back(moments);
    }
    heads += group == OptimizerGroup::kAdamH ? 1 : 0;
  }
  head_sums_.resize(heads * kBlockSums);
  words_.resize(std::max<size_t>(head_sums_.size(), kOptimizerGroups) * ExactSum::kWords);
  head_totals_.resize(head_sums_.size());
  if (heads > 0) {
    device_head_totals_ = memory->Take(Purpose::kOptimizer, "adamh.totals", DType::kF64,
                                       {static_cast<int64_t>(head_sums_.size())});
  }
  // Room for what all dense pieces leave, so that the host waits once for all of them.
  int64_t norms = 0, moves = 0;
  for (const OwnedPiece& piece : owned_) norms += ElementBlocks(piece.region.count);
  for (const Moments& head : adamh_) moves += kBlockSums * ElementBlocks(head.piece.region.count);
  if (!tables_.empty()) norms += kSumsAtOnce;
  const int64_t sums = std::max({int64_t{1}, norms, moves});
  block_sums_ = memory->Take(Purpose::kOptimizer, "block_sums", DType::kF64, {sums});
  read_sums_.resize(memory->dry() ? 0 : static_cast<size_t>(sums));
}

void Optimizer::TakeMatrices(Memory* memory) {
  std::vector<MuonH::Matrix> matrices;
  for (const OwnedPiece& piece : owned_) {
    const ParameterSpec& spec = piece.piece.parameter->spec;
    if (spec.group != OptimizerGroup::kMuonH) continue;
    const std::string name = absl::StrCat("muonh.momentum/", spec.name);
    const Tensor momentum = memory->Take(Purpose::kOptimizer, name, DType::kF32, spec.shape);
    state_.push_back({name, piece.region, momentum});
    matrices.push_back({spec.shape, piece.value, piece.gradient, momentum});
  }
  muonh_ = std::make_unique<MuonH>(config_, std::move(matrices), memory);
}

// Round 0: all that AdamH and Adam update. Then every owner's first batch of matrices together,
// every owner's second, ...: each rank knows what the others orthogonalise when.
void Optimizer::PlanWeightRounds(const std::vector<Piece>& pieces, Memory* memory) {
  std::vector<std::vector<Piece>> rounds(1);
  std::vector<std::vector<Piece>> matrices(static_cast<size_t>(mesh_->layout().world()));
  for (const Piece& piece : pieces) {
    (piece.part < 0 ? matrices[static_cast<size_t>(piece.owner)] : rounds[0]).push_back(piece);
  }
  for (const std::vector<Piece>& of_owner : matrices) {
    std::vector<Shape> shapes;
    shapes.reserve(of_owner.size());
    for (const Piece& piece : of_owner) shapes.push_back(piece.parameter->spec.shape);
    const auto batches = MuonH::Batches(shapes, config_.newton_schulz.precision);
    if (rounds.size() < batches.size() + 1) rounds.resize(batches.size() + 1);
    for (size_t b = 0; b < batches.size(); ++b) {
      for (const size_t matrix : batches[b]) rounds[b + 1].push_back(of_owner[matrix]);
    }
  }
  weights_ = std::make_unique<WeightExchange>(rounds, owned_, mesh_, memory);
}

TableSchedule& Optimizer::tables() {
  OT_CHECK(schedule_ != nullptr) << "the model has no tables";
  return *schedule_;
}

bool Optimizer::Frozen(const Parameter& table, int64_t step) const {
  const int64_t freeze = config_.tables.freeze_step;
  return table.spec.freezes && freeze > 0 && step >= freeze;
}

void Optimizer::BeginStep(int64_t step) {
  if (!tables_.empty()) replay_ = &schedule_->At(step);
}

void Optimizer::CatchUp(const Context& context) {
  if (tables_.empty()) return;
  const TableReplay replay = OnDevice(context, *replay_);
  for (const Table& table : tables_) {
    TableReplayRows(context, {.state = table.parameter->table,
                              .rule = schedule_->rule(),
                              .replay = replay,
                              .rows = context.OnDevice(table.parameter->owned.used()),
                              .random_key = table.random_key});
  }
}

void Optimizer::GradientReady(const Context& context, Parameter& parameter) {
  gradients_->Ready(context, parameter);
}

void Optimizer::FinishGradients(const Context& context) { gradients_->Finish(context); }

void Optimizer::AddSquares(const Context& context, const Tensor& x, int64_t block, ExactSum* sum) {
  const int64_t n = x.elements();
  for (int64_t i = 0; i < n;) {
    if (filled_ == block_sums_.elements()) ReadSums(context);
    const int64_t room = block_sums_.elements() - filled_;
    const int64_t count = std::min(room * block, n - i), blocks = (count + block - 1) / block;
    SumSquares(context, {Elements(x, i, count), block_sums_.Rows(filled_, blocks), block});
    pending_.push_back({sum, filled_, blocks, 1});
    filled_ += blocks;
    i += count;
  }
}

void Optimizer::ReadSums(const Context& context) {
  if (filled_ == 0) return;
  context.Read(block_sums_.Rows(0, filled_), read_sums_.data());
  for (const Pending& pending : pending_) {
    for (int64_t i = 0; i < pending.count; ++i)
      pending.to[i % pending.stride].Add(read_sums_[static_cast<size_t>(pending.begin + i)]);
  }
  pending_.clear();
  filled_ = 0;
}

void Optimizer::Join(std::span<ExactSum> sums) {
  if (sums.empty()) return;
  constexpr size_t kWords = ExactSum::kWords;
  for (size_t i = 0; i < sums.size(); ++i)
    std::copy_n(sums[i].words().data(), kWords, words_.data() + i * kWords);
  mesh_->world().AllReduceSum(std::span<int64_t>(words_.data(), sums.size() * kWords),
                              Traffic::kControl);
  for (size_t i = 0; i < sums.size(); ++i)
    std::copy_n(words_.data() + i * kWords, kWords, sums[i].words().data());
}

void Optimizer::ComputeNorms(const Context& context, int64_t step) {
  for (ExactSum& sum : squares_) sum.Clear();
  for (const OwnedPiece& piece : owned_) {
    AddSquares(context, piece.gradient, kBlockElements,
               &squares_[static_cast<size_t>(piece.piece.parameter->spec.group)]);
  }
  // A sum for each row: which rows lie together depends on the number of ranks.
  for (const Table& table : tables_) {
    if (Frozen(*table.parameter, step)) continue;
    AddSquares(context, table.parameter->owned.used_gradient(), table.parameter->spec.shape[1],
               &squares_[static_cast<size_t>(table.parameter->spec.group)]);
  }
  ReadSums(context);
  Join(squares_);
  for (size_t g = 0; g < squares_.size(); ++g) norms_squared_[g] = squares_[g].Round();
  context.Write(norms_squared_.data(), device_norms_squared_);
}

double Optimizer::norm(OptimizerGroup group) const {
  return std::sqrt(norms_squared_[static_cast<size_t>(group)]);
}

double Optimizer::total_norm() const {
  double sum = 0;
  for (const double norm : norms_squared_) sum += norm;
  return std::sqrt(sum);
}

void Optimizer::MoveHeads(const Context& context, const Clip& clip, const AdamConstants& constants,
                          double rate) {
  for (ExactSum& sum : head_sums_) sum.Clear();
  for (const Moments& head : adamh_) {
    const int64_t blocks = ElementBlocks(head.piece.region.count);
    const Tensor sums = block_sums_.Rows(filled_, blocks * kBlockSums);
    AdamHMoments(context, {.w = head.piece.value,
                           .gradient = head.piece.gradient,
                           .m = head.m,
                           .v = head.v,
                           .sums = sums.Reshape({blocks, kBlockSums}),
                           .clip = clip,
                           .constants = constants});
    pending_.push_back({&head_sums_[head.head * kBlockSums], filled_, sums.elements(), kBlockSums});
    filled_ += sums.elements();
  }
  ReadSums(context);
  Join(head_sums_);
  for (size_t i = 0; i < head_sums_.size(); ++i) head_totals_[i] = head_sums_[i].Round();
  context.Write(head_totals_.data(), device_head_totals_);
  for (const Moments& head : adamh_) {
    AdamHMove(context, {.w = head.piece.value,
                        .m = head.m,
                        .v = head.v,
                        .totals = device_head_totals_.Rows(
                            static_cast<int64_t>(head.head) * kBlockSums, kBlockSums),
                        .constants = constants,
                        .rate = rate});
  }
}

void Optimizer::UpdateTables(const Context& context, const Clip& clip, int64_t step, double rate) {
  for (const Table& table : tables_) {
    if (Frozen(*table.parameter, step)) continue;
    const TableRule rule = schedule_->rule();
    TableUpdate(context, {.state = table.parameter->table,
                          .rule = rule,
                          .rows = context.OnDevice(table.parameter->owned.used()),
                          .gradient = table.parameter->owned.used_gradient(),
                          .clip = clip,
                          .constants = Constants(rule.beta1, rule.beta2, rule.eps, step),
                          .rate = rate,
                          .step = step,
                          .random_key = table.random_key});
  }
}

void Optimizer::Step(const Context& context, int64_t step, double lr_scale) {
  const auto clip = [&](OptimizerGroup group) {
    return Clip{device_norms_squared_.Rows(static_cast<int64_t>(group), 1), config_.max_grad_norm};
  };
  const AdamConstants constants = Constants(config_.beta1, config_.beta2, config_.eps, step);
  const double adam_rate = config_.adam_lr * lr_scale;

  MoveHeads(context, clip(OptimizerGroup::kAdamH), constants, config_.lr * lr_scale);
  for (const Moments& moments : adam_) {
    AdamUpdate(context, {.w = moments.piece.value,
                         .gradient = moments.piece.gradient,
                         .m = moments.m,
                         .v = moments.v,
                         .clip = clip(OptimizerGroup::kAdam),
                         .constants = constants,
                         .rate = adam_rate});
  }
  // These values travel while tables and matrices are updated, which take longest.
  weights_->StartNext(context);
  UpdateTables(context, clip(OptimizerGroup::kAdam), step, adam_rate * config_.tables.lr_scale);
  muonh_->Step(context, clip(OptimizerGroup::kMuonH), config_.lr * lr_scale,
               [&] { weights_->StartNext(context); });
  weights_->Finish(context);
}

std::vector<ShardedTensor> Optimizer::owned_values() const {
  std::vector<ShardedTensor> values;
  for (const OwnedPiece& piece : owned_)
    values.push_back({piece.piece.parameter->spec.name, piece.region, piece.value});
  for (const Table& table : tables_)
    values.push_back(
        {table.parameter->spec.name, table.parameter->region(), table.parameter->value});
  return values;
}

std::vector<ShardedTensor> Optimizer::masters() const {
  std::vector<ShardedTensor> values;
  for (const OwnedPiece& piece : owned_) {
    if (piece.copied)
      values.push_back({piece.piece.parameter->spec.name, piece.region, piece.value});
  }
  return values;
}

void Optimizer::InitializeMasters(uint64_t seed, Device* device) {
  for (const OwnedPiece& piece : owned_) {
    if (piece.copied)
      DrawInitialValues(piece.piece.parameter->spec, seed, piece.region, piece.value, device);
  }
}

std::vector<ShardedTensor> Optimizer::owned_gradients() const {
  std::vector<ShardedTensor> gradients;
  for (const OwnedPiece& piece : owned_)
    gradients.push_back({piece.piece.parameter->spec.name, piece.region, piece.gradient});
  return gradients;
}

}  // namespace overtok
