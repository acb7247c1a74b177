#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/exact_sum.h"
#include "core/io/hash.h"
#include "core/ops/exact_sum.h"
#include "core/ops/optimizer.h"
#include "core/ops/table.h"

namespace overtok {
namespace {

// Sums of a table's rows that are left at once, at most (8 MiB).
constexpr int64_t kSumsAtOnce = int64_t{1} << 20;

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
  norms_ = memory->Take(Purpose::kOptimizer, "norms", DType::kF64, {kNorms});
  norm_words_ = memory->Take(Purpose::kOptimizer, "norms.words", DType::kI64,
                             {layout.world(), kNorms, ExactSum::kWords});
  halted_ = memory->Take(Purpose::kOptimizer, "halted", DType::kU32, {1});
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
  if (heads > 0) {
    const auto sums = static_cast<int64_t>(heads) * kBlockSums;
    head_totals_ = memory->Take(Purpose::kOptimizer, "adamh.totals", DType::kF64, {sums});
    head_words_ = memory->Take(Purpose::kOptimizer, "adamh.words", DType::kI64,
                               {mesh_->layout().world(), sums, ExactSum::kWords});
  }
  int64_t blocks = 1;
  for (const OwnedPiece& piece : owned_)
    blocks = std::max(blocks, ElementBlocks(piece.region.count));
  for (const Moments& head : adamh_)
    blocks = std::max(blocks, kBlockSums * ElementBlocks(head.piece.region.count));
  for (const Table& table : tables_)
    blocks = std::max(blocks, std::min(kSumsAtOnce, table.parameter->owned.rows.elements()));
  block_sums_ = memory->Take(Purpose::kOptimizer, "block_sums", DType::kF64, {blocks});
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
  parameters_->BringRows(context);
  const TableReplay replay = OnDevice(context, *replay_);
  for (const Table& table : tables_) {
    TableReplayRows(context, {.state = table.parameter->step_table(context),
                              .rule = schedule_->rule(),
                              .replay = replay,
                              .rows = table.parameter->step_rows(context),
                              .random_key = table.random_key,
                              .halted = halted_});
  }
}

void Optimizer::GradientReady(const Context& context, Parameter& parameter) {
  gradients_->Ready(context, parameter);
}

void Optimizer::FinishGradients(const Context& context) { gradients_->Finish(context); }

Tensor Optimizer::Begin(const Context& context, const Tensor& sums) const {
  const Tensor mine =
      sums.Rows(mesh_->layout().world_rank(), 1).Reshape({sums.dim(1), sums.dim(2)});
  AddExact(context, {.values = Tensor(), .words = mine});
  return mine;
}

void Optimizer::Join(const Context& context, const Tensor& sums, const Tensor& out) {
  mesh_->world().AllGather(sums.Rows(mesh_->layout().world_rank(), 1), sums, Traffic::kControl);
  RoundExact(context, {.words = sums, .out = out});
}

void Optimizer::AddSquares(const Context& context, const Tensor& x, int64_t block,
                           OptimizerGroup group) {
  const Tensor words = norm_words_.Rows(mesh_->layout().world_rank(), 1)
                           .Reshape({kNorms, ExactSum::kWords})
                           .Rows(static_cast<int64_t>(group), 1);
  const int64_t n = x.elements(), at_once = block_sums_.elements() * block;
  for (int64_t i = 0; i < n; i += at_once) {
    const int64_t count = std::min(at_once, n - i);
    const Tensor sums = block_sums_.Rows(0, (count + block - 1) / block);
    SumSquares(context, {Elements(x, i, count), sums, block});
    AddExact(context, {.values = sums, .words = words, .accumulate = true});
  }
}

void Optimizer::ComputeNorms(const Context& context, int64_t step, std::span<const Tensor> losses) {
  const Tensor mine = Begin(context, norm_words_);
  for (const OwnedPiece& piece : owned_)
    AddSquares(context, piece.gradient, kBlockElements, piece.piece.parameter->spec.group);
  // A sum for each row: which rows lie together depends on the number of ranks.
  for (const Table& table : tables_) {
    if (Frozen(*table.parameter, step)) continue;
    AddSquares(context, table.parameter->owned.used_gradient(), table.parameter->spec.shape[1],
               table.parameter->spec.group);
  }
  for (const Tensor& values : losses) {
    AddExact(context, {.values = values.Reshape({values.elements()}),
                       .words = mine.Rows(kOptimizerGroups, 1),
                       .accumulate = true});
  }
  Join(context, norm_words_, norms_);
  HaltUnlessFinite(context, {.x = norms_, .halted = halted_});
}

void Optimizer::Resume(const Context& context) {
  const uint32_t no = 0;
  context.Write(&no, halted_);
}

GradientNorms NormsOf(std::span<const double> norms) {
  OT_CHECK_EQ(norms.size(), static_cast<size_t>(Optimizer::kNorms));
  GradientNorms out;
  double sum = 0;
  for (size_t g = 0; g < out.of_group.size(); ++g) {
    out.of_group[g] = std::sqrt(norms[g]);
    sum += norms[g];
  }
  out.total = std::sqrt(sum);
  return out;
}

void Optimizer::MoveHeads(const Context& context, const Clip& clip, const AdamConstants& constants,
                          double rate) {
  if (!head_words_.defined()) return;
  const auto place = [](const Moments& head) {
    return static_cast<int64_t>(head.head) * kBlockSums;
  };
  const Tensor mine = Begin(context, head_words_);
  for (const Moments& head : adamh_) {
    const int64_t blocks = ElementBlocks(head.piece.region.count);
    const Tensor sums = block_sums_.Rows(0, blocks * kBlockSums);
    AdamHMoments(context, {.w = head.piece.value,
                           .gradient = head.piece.gradient,
                           .m = head.m,
                           .v = head.v,
                           .sums = sums.Reshape({blocks, kBlockSums}),
                           .clip = clip,
                           .constants = constants});
    AddExact(context,
             {.values = sums, .words = mine.Rows(place(head), kBlockSums), .accumulate = true});
  }
  Join(context, head_words_, head_totals_);
  for (const Moments& head : adamh_) {
    AdamHMove(context, {.w = head.piece.value,
                        .m = head.m,
                        .v = head.v,
                        .totals = head_totals_.Rows(place(head), kBlockSums),
                        .constants = constants,
                        .rate = rate,
                        .halted = clip.halted});
  }
}

void Optimizer::UpdateTables(const Context& context, const Clip& clip, int64_t step, double rate) {
  for (const Table& table : tables_) {
    if (Frozen(*table.parameter, step)) continue;
    const TableRule rule = schedule_->rule();
    TableUpdate(context, {.state = table.parameter->step_table(context),
                          .rule = rule,
                          .rows = table.parameter->step_rows(context),
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
    return Clip{norms_.Rows(static_cast<int64_t>(group), 1), config_.max_grad_norm, halted_};
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
