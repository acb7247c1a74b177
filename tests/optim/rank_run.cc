#include "tests/optim/rank_run.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/io/hash.h"
#include "tests/optim/read_norms.h"
#include "tests/support/thread_ranks.h"

namespace overtok::testing {
namespace {

constexpr uint64_t kSeed = 5;
constexpr int64_t kTableRows = 300, kTableWidth = 6;

bool Touched(int64_t step, int64_t row) {
  const std::array<int64_t, 2> key = {step, row};
  return Xxh3(key.data(), sizeof(key), 17) % 3 == 0;
}

// Shares of one gradient among ranks that hold the same part: exact in binary, of sum 1.
float Share(int64_t replica, int64_t replicas) {
  return replica == 0 ? 1 - static_cast<float>(replicas - 1) / 8 : 1.0F / 8;
}

// The tree over leaves [first, first + count), count a power of two.
float TreeOver(const LeafGradient& leaf, const ParameterSpec& spec, int64_t step, int first,
               int count, int64_t element) {
  if (count == 1) return leaf(spec, step, first, element);
  return TreeOver(leaf, spec, step, first, count / 2, element) +
         TreeOver(leaf, spec, step, first + count / 2, count / 2, element);
}

class OneOfRanks {
 public:
  OneOfRanks(const RankSetup& setup, Communicator* world)
      : setup_(setup),
        memory_(Memory::Mode::kReal),
        context_(CpuContext()),
        mesh_(world, setup.tensor),
        parameters_(&memory_, DType::kF32, true, StorageOf(setup.config), mesh_.layout()) {
    std::vector<Parameter*> order;
    for (const ParameterSpec& spec : RankSpecs()) {
      Parameter& parameter = parameters_.Add(spec, false);
      if (parameter.is_table()) {
        const int64_t rows = parameter.value.dim(0);
        parameter.owned = {
            .rows = memory_.Take(Purpose::kBatches, "rows", DType::kU32, {rows}),
            .gradient = memory_.Take(Purpose::kBatches, "g", DType::kF32, {rows, kTableWidth})};
      } else {
        order.insert(order.begin(), &parameter);  // the backward pass ends with the first
      }
    }
    order_ = order;
    optimizer_ = std::make_unique<Optimizer>(setup.config, 100, 1, &parameters_, order, &mesh_,
                                             &memory_, setup.sums);
    memory_.Commit(&context_);
    parameters_.Initialize(kSeed);
    optimizer_->InitializeMasters(kSeed, nullptr);
    if (setup.zero_values) {
      for (const auto& list : {parameters_.values(), optimizer_->masters()}) {
        for (const ShardedTensor& value : list)
          std::memset(value.tensor.raw(), 0, static_cast<size_t>(value.tensor.bytes()));
      }
    }
  }

  void Step(int64_t step) {
    const Layout& layout = mesh_.layout();
    const int leaves = setup_.one_leaf_each ? 1 : kLeaves / layout.data;
    for (Parameter& parameter : parameters_.all()) {
      if (parameter.is_table()) NameRows(parameter, step);
    }
    optimizer_->BeginStep(step);
    optimizer_->CatchUp(context_);
    for (Parameter* parameter : order_) {
      const float share = Share(layout.tensor_rank % parameter->replicas, parameter->replicas);
      const LeafGradient shared = [&](const ParameterSpec& spec, int64_t of_step, int leaf,
                                      int64_t element) {
        return share * setup_.leaf(spec, of_step, leaf, element);
      };
      float* gradient = parameter->gradient.data<float>();
      ForEachRun(parameter->region(), [&](int64_t logical, int64_t place, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          gradient[place + i] = TreeOver(shared, parameter->spec, step, layout.data_rank * leaves,
                                         leaves, logical + i);
        }
      });
      optimizer_->GradientReady(context_, *parameter);
    }
    optimizer_->FinishGradients(context_);
    optimizer_->ComputeNorms(context_, step, {});
    optimizer_->Step(context_, step, 1.0 - 0.1 * static_cast<double>(step));
  }

  ParameterSet& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  const Layout& layout() const { return mesh_.layout(); }

 private:
  // As the exchange of a table's rows leaves them at their owner.
  void NameRows(Parameter& table, int64_t step) {
    TouchedRows& owned = table.owned;
    owned.count = 0;
    for (int64_t local = 0; local < table.value.dim(0); ++local) {
      const int64_t row = GlobalOf(table.sharding, kTableRows, local);
      if (!Touched(step, row)) continue;
      owned.rows.data<uint32_t>()[owned.count] = static_cast<uint32_t>(local);
      for (int64_t c = 0; c < kTableWidth; ++c) {
        owned.gradient.data<float>()[owned.count * kTableWidth + c] =
            TreeOver(setup_.leaf, table.spec, step, 0, kLeaves, row * kTableWidth + c);
      }
      ++owned.count;
    }
  }

  const RankSetup& setup_;
  Memory memory_;
  Context context_;
  Mesh mesh_;
  ParameterSet parameters_;
  std::vector<Parameter*> order_;
  std::unique_ptr<Optimizer> optimizer_;
};

void Put(const ShardedTensor& part, std::map<std::string, Gathered>* all) {
  if (part.tensor.dtype() != DType::kF32) return;  // table.last
  Gathered& whole = (*all)[part.name];
  const auto n = static_cast<size_t>(part.region.logical.elements());
  whole.elements.resize(n);
  whole.given.resize(n);
  ForEachRun(part.region, [&](int64_t logical, int64_t place, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      whole.elements[static_cast<size_t>(logical + i)] = part.tensor.data<float>()[place + i];
      ++whole.given[static_cast<size_t>(logical + i)];
    }
  });
}

int Differences(const std::vector<ShardedTensor>& parts,
                const std::map<std::string, Gathered>& all) {
  int differences = 0;
  for (const ShardedTensor& part : parts) {
    const std::vector<float>& whole = all.at(part.name).elements;
    ForEachRun(part.region, [&](int64_t logical, int64_t place, int64_t count) {
      differences += std::memcmp(whole.data() + logical, part.tensor.data<float>() + place,
                                 static_cast<size_t>(count) * sizeof(float)) != 0;
    });
  }
  return differences;
}

}  // namespace

OptimizerConfig RankConfig() {
  OptimizerConfig config;
  config.lr = 0.02;
  config.adam_lr = 0.008;
  return config;
}

const std::vector<ParameterSpec>& RankSpecs() {
  const auto spec = [](const char* name, Shape shape, Placement placement, OptimizerGroup group,
                       int64_t groups = 0) {
    return ParameterSpec{.name = name,
                         .shape = shape,
                         .placement = placement,
                         .group = group,
                         .initializer = Initializer::kNormal,
                         .scale = 0.3,
                         .groups = groups};
  };
  constexpr auto kMuonH = OptimizerGroup::kMuonH;
  static const std::vector<ParameterSpec> specs = {
      spec("embed", {101, 40}, Placement::kVocabularyRows, OptimizerGroup::kAdam),
      spec("gain", {5}, Placement::kReplicated, OptimizerGroup::kAdam),
      spec("norm", {56}, Placement::kReplicated, OptimizerGroup::kAdam),
      spec("wq", {48, 40}, Placement::kTensorRows, kMuonH, 4),
      spec("wk", {12, 40}, Placement::kTensorRows, kMuonH, 1),
      spec("wv", {24, 40}, Placement::kTensorRows, kMuonH, 2),
      spec("wo", {40, 48}, Placement::kTensorColumns, kMuonH, 4),
      spec("wg", {57, 40}, Placement::kTensorRows, kMuonH),
      spec("wu", {57, 40}, Placement::kTensorRows, kMuonH),
      spec("wd", {40, 57}, Placement::kTensorColumns, kMuonH),
      spec("mix", {33, 35}, Placement::kReplicated, kMuonH),
      spec("wide", {1100, 60}, Placement::kReplicated, OptimizerGroup::kAdam),  // 5 blocks
      spec("lm_head", {101, 40}, Placement::kVocabularyRows, OptimizerGroup::kAdamH),
      spec("second_head", {700, 60}, Placement::kVocabularyRows, OptimizerGroup::kAdamH),
      {.name = "table",
       .shape = {kTableRows, kTableWidth},
       .placement = Placement::kTableRows,
       .group = OptimizerGroup::kAdam,
       .initializer = Initializer::kNormal,
       .scale = 0.1,
       .update = UpdateKind::kTable,
       .touched_capacity = kTableRows}};
  return specs;
}

float RandomLeaf(const ParameterSpec& spec, int64_t step, int leaf, int64_t element) {
  const std::array<int64_t, 3> key = {step, leaf, element};
  const uint64_t name = Xxh3(spec.name.data(), static_cast<int64_t>(spec.name.size()), 1);
  const uint64_t bits = Xxh3(key.data(), sizeof(key), name);
  return static_cast<float>(static_cast<int64_t>(bits >> 40) - (int64_t{1} << 23)) * 0x1p-30F;
}

bool Gathered::EachOnce() const {
  return std::all_of(given.begin(), given.end(), [](int count) { return count == 1; });
}

RankResult RunSteps(const RankSetup& setup) {
  RankResult result;
  std::mutex mutex;
  RunOnRanks(setup.data * setup.tensor, [&](Communicator& world) {
    OneOfRanks run(setup, &world);
    const auto before = world.bytes_sent();
    for (int64_t step = 0; step < setup.steps; ++step) run.Step(step);
    const auto after = world.bytes_sent();
    const Optimizer& optimizer = run.optimizer();
    const GradientNorms norms = ReadNorms(CpuContext(), optimizer);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const ShardedTensor& part : optimizer.owned_values()) Put(part, &result.values);
      for (const ShardedTensor& part : optimizer.state()) Put(part, &result.state);
      for (const ShardedTensor& part : optimizer.owned_gradients()) Put(part, &result.gradients);
      const StepTraffic traffic =
          TrafficOfStep(AssignPieces(run.parameters(), run.layout()), run.layout());
      const auto sent = [&](Traffic kind) {
        return after[static_cast<size_t>(kind)] - before[static_cast<size_t>(kind)];
      };
      result.traffic_that_differs += sent(Traffic::kGradients) != setup.steps * traffic.gradients ||
                                     sent(Traffic::kWeights) != setup.steps * traffic.weights ||
                                     sent(Traffic::kControl) != setup.steps * traffic.control;
      if (world.rank() == 0) {
        for (size_t g = 0; g < kOptimizerGroups; ++g) result.norms[g] = norms.of_group[g];
        result.total_norm = norms.total;
      }
    }
    world.Barrier();
    const std::lock_guard<std::mutex> lock(mutex);
    result.copies_that_differ += Differences(run.parameters().values(), result.values) +
                                 Differences(optimizer.masters(), result.values);
    result.norms_that_differ += norms.total != result.total_norm;
  });
  return result;
}

std::map<std::string, std::vector<double>> ReferenceSteps(const RankSetup& setup) {
  std::map<std::string, ReferenceOptimizer::Tensor2d> parameters;
  for (const ParameterSpec& spec : RankSpecs()) {
    if (spec.update == UpdateKind::kTable) continue;
    std::vector<float> value(static_cast<size_t>(spec.shape.elements()));
    if (!setup.zero_values) {
      DrawInitialValues(spec, kSeed, Region::Part(spec.shape, Sharding()),
                        Tensor(value.data(), {spec.shape.elements()}), /*device=*/nullptr);
    }
    ReferenceOptimizer::Tensor2d& tensor = parameters[spec.name];
    tensor.rows = spec.shape.rank() == 2 ? spec.shape[0] : 1;
    tensor.cols = spec.shape[spec.shape.rank() - 1];
    tensor.group = spec.group;
    tensor.value.assign(value.begin(), value.end());
    tensor.gradient.resize(value.size());
  }
  ReferenceOptimizer reference(setup.config);
  for (int64_t step = 0; step < setup.steps; ++step) {
    double table_squares = 0;
    for (const ParameterSpec& spec : RankSpecs()) {
      for (int64_t i = 0; i < spec.shape.elements(); ++i) {
        double sum = 0;
        for (int leaf = 0; leaf < kLeaves; ++leaf) sum += setup.leaf(spec, step, leaf, i);
        if (spec.update != UpdateKind::kTable) {
          parameters[spec.name].gradient[static_cast<size_t>(i)] = sum;
        } else if (Touched(step, i / kTableWidth)) {
          table_squares += sum * sum;
        }
      }
    }
    reference.AddSquares(OptimizerGroup::kAdam, table_squares);
    reference.Step(&parameters, 1.0 - 0.1 * static_cast<double>(step));
  }
  std::map<std::string, std::vector<double>> out;
  for (const auto& [name, tensor] : parameters) {
    out[name] = tensor.value;
    if (setup.steps == 0) continue;
    const bool matrix = tensor.group == OptimizerGroup::kMuonH;
    out[std::string(NameOf(tensor.group)) + (matrix ? ".momentum/" : ".m/") + name] =
        reference.first(name);
    if (!matrix) out[std::string(NameOf(tensor.group)) + ".v/" + name] = reference.second(name);
  }
  return out;
}

}  // namespace overtok::testing
