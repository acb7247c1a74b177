#include "tests/trainer/ranks_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/comm/mesh.h"
#include "core/rng.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/host_tensors.h"
#include "trainer/open_device.h"

namespace overtok::testing {
namespace {

constexpr int64_t kSilentWindow = 1;  // of every batch: has no target

void Put(const ShardedTensor& part, LogicalTensors* all) {
  LogicalTensor& whole = (*all)[part.name];
  const auto size = static_cast<size_t>(SizeOf(part.tensor.dtype()));
  const auto n = static_cast<size_t>(part.region.logical.elements());
  whole.dtype = part.tensor.dtype();
  whole.bytes.resize(n * size);
  whole.given.resize(n);
  const auto* from = static_cast<const char*>(part.tensor.raw());
  ForEachRun(part.region, [&](int64_t logical, int64_t place, int64_t count) {
    const auto to = static_cast<size_t>(logical), many = static_cast<size_t>(count);
    std::memcpy(whole.bytes.data() + to * size, from + static_cast<size_t>(place) * size,
                many * size);
    for (size_t i = 0; i < many; ++i) ++whole.given[to + i];
  });
}

int CopiesThatDiffer(const std::vector<ShardedTensor>& parts, const LogicalTensors& all) {
  int differences = 0;
  for (const ShardedTensor& part : parts) {
    const LogicalTensor& whole = all.at(part.name);
    const auto size = static_cast<size_t>(SizeOf(part.tensor.dtype()));
    const auto* mine = static_cast<const char*>(part.tensor.raw());
    ForEachRun(part.region, [&](int64_t logical, int64_t place, int64_t count) {
      differences += std::memcmp(whole.bytes.data() + static_cast<size_t>(logical) * size,
                                 mine + static_cast<size_t>(place) * size,
                                 static_cast<size_t>(count) * size) != 0;
    });
  }
  return differences;
}

// Gradients of a table's rows as a dense gradient: one row a call.
void PutTableGradients(const Context& context, const ParameterSet& parameters,
                       LogicalTensors* all) {
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_table()) continue;
    const TouchedRows& owned = parameter.owned;
    const int64_t rows = parameter.spec.shape[0], width = parameter.spec.shape[1];
    LogicalTensor& whole = (*all)[parameter.spec.name];
    whole.bytes.resize(static_cast<size_t>(rows * width) * sizeof(float));
    std::vector<float> gradients(static_cast<size_t>(owned.count * width));
    context.Read(owned.used_gradient(), gradients.data());
    for (int64_t i = 0; i < owned.count; ++i) {
      const int64_t row = GlobalOf(parameter.sharding, rows, owned.rows.data<uint32_t>()[i]);
      std::memcpy(whole.bytes.data() + static_cast<size_t>(row * width) * sizeof(float),
                  gradients.data() + i * width, static_cast<size_t>(width) * sizeof(float));
    }
  }
}

bool SameResult(const StepResult& a, const StepResult& b) {
  bool same = a.loss == b.loss && a.loss_main == b.loss_main && a.total_norm == b.total_norm &&
              a.norms == b.norms && a.weight_sum == b.weight_sum &&
              a.heads.size() == b.heads.size() && a.tables.size() == b.tables.size();
  for (size_t i = 0; same && i < a.heads.size(); ++i) same = a.heads[i].loss == b.heads[i].loss;
  for (size_t i = 0; same && i < a.tables.size(); ++i) {
    same = a.tables[i].rows_touched == b.tables[i].rows_touched;
  }
  return same;
}

// One rank's part of TrainOnRanks; `result` and what it guards is shared.
class OneRankOfRun {
 public:
  OneRankOfRun(const Config& config, const RanksRun& run, Communicator* world, std::mutex* mutex,
               RanksResult* result)
      : run_(run),
        world_(world),
        mutex_(mutex),
        result_(result),
        memory_(Memory::Mode::kReal, run.device),
        device_world_(WorldOf(run.device, world)),
        mesh_(device_world_ != nullptr ? device_world_.get() : world, run.tensor,
              config.parallel.vocabulary_map),
        train_(config, &mesh_, &memory_) {
    train_.Commit();
    train_.Initialize();
  }

  void Go() {
    Locked([&] { PutAll(train_.optimizer().owned_values(), &result_->initial); });
    if (run_.prepare) run_.prepare(train_);
    std::vector<StepResult> steps;
    std::string error;
    for (int64_t step = 0; step < run_.steps && error.empty(); ++step) {
      const auto taken = train_.Run(run_.batch(train_.config(), step), step);
      if (taken.ok()) {
        steps.push_back(*taken);
      } else {
        error = std::string(taken.status().message());
      }
    }
    if (run_.finish) run_.finish(train_);
    train_.parameters().Settle(train_.context());
    Locked([&] {
      PutAll(train_.optimizer().owned_gradients(), &result_->gradients);
      PutTableGradients(train_.context(), train_.parameters(), &result_->gradients);
      PutAll(train_.optimizer().owned_values(), &result_->values);
      PutAll(train_.optimizer().state(), &result_->state);
      if (world_->rank() != 0) return;
      result_->steps = steps;
      result_->error = error;
    });
    world_->Barrier();
    Locked([&] {
      result_->copies_that_differ +=
          CopiesIn(train_.parameters().values()) + CopiesIn(train_.optimizer().masters());
      bool same = steps.size() == result_->steps.size() && error == result_->error;
      for (size_t i = 0; same && i < steps.size(); ++i) {
        same = SameResult(steps[i], result_->steps[i]);
      }
      result_->results_that_differ += !same;
    });
  }

 private:
  template <class Body>
  void Locked(const Body& body) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    body();
  }
  // Null on the CPU: the world itself.
  static std::unique_ptr<Communicator> WorldOf(Device* device, Communicator* world) {
    if (!device->own_memory()) return nullptr;
    absl::StatusOr<std::unique_ptr<Communicator>> own = OnDevice(*world, device);
    OT_CHECK(own.ok()) << own.status().ToString();
    return std::move(*own);
  }
  void PutAll(const std::vector<ShardedTensor>& parts, LogicalTensors* all) {
    HostTensors host(train_.context(), parts);
    host.Read();
    for (const ShardedTensor& part : host.tensors()) Put(part, all);
  }
  int CopiesIn(const std::vector<ShardedTensor>& parts) {
    HostTensors host(train_.context(), parts);
    host.Read();
    return CopiesThatDiffer(host.tensors(), result_->values);
  }

  const RanksRun& run_;
  Communicator* world_;
  std::mutex* mutex_;
  RanksResult* result_;
  Memory memory_;
  std::unique_ptr<Communicator> device_world_;
  Mesh mesh_;
  TrainStep train_;
};

}  // namespace

Config RanksConfig(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigText(
      "model: {vocab_size: 101, hidden_size: 48, intermediate_size: 56, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 4, head_dim: 12}\n"
      "optimizer: {lr: 0.02, adam_lr: 0.008}\n"
      "data: {train: [unread.h5], sequence_length: 8}\n"
      "train: {steps: 20, batch_sequences: 4, micro_batch_sequences: 1}\n",
      "ranks.yaml", overrides);
  OT_CHECK(loaded.ok()) << loaded.status().ToString();
  return loaded->config;
}

std::string Sampled(int64_t candidates, int64_t block_sequences) {
  return absl::StrCat("loss.sampled_softmax={stages: [{until: 1, candidates: ", candidates,
                      "}], block_sequences: ", block_sequences, "}");
}

std::vector<std::string> OtH() {
  return {"model.ngram_embedding={orders: [2, 3], rows: 211}", "model.second_token_head={}"};
}

std::vector<std::string> Ot2() {
  return {"model.ngram_embedding={orders: [2, 3], rows: 211}",
          "model.ngram_head={orders: [2, 3], rows: 503}"};
}

Batch RanksBatch(const Config& config, int64_t step) {
  const int64_t windows = config.train.batch_sequences, length = config.data.sequence_length;
  const auto ids = static_cast<uint32_t>(config.model.vocab_size);
  Batch batch;
  batch.Resize(windows, length);
  batch.first_sequence = step * windows;
  for (int64_t b = 0; b < windows; ++b) {
    const auto key = static_cast<uint64_t>(step * windows + b);
    batch.windows[static_cast<size_t>(b)] = static_cast<int64_t>(key);
    uint64_t draws = 0;
    const auto next = [&](uint32_t below) { return Philox(7, draws++, key)[0] % below; };
    int32_t segment = 0;
    const int64_t valid = 1 + next(static_cast<uint32_t>(length) - 1);  // positions that may count
    for (int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<size_t>(b * length + t);
      // Some ids are frequent, so that windows of different ranks share rows of tables.
      batch.tokens[at] = next(next(2) == 0 ? std::min(6U, ids) : ids);
      batch.segments[at] = segment;
      const bool ends = next(4) == 0;
      segment += ends;
      batch.loss_weight[at] = b == kSilentWindow || ends || t >= valid || t + 1 == length ? 0 : 1;
      batch.weight_sum += static_cast<double>(batch.loss_weight[at]);
    }
  }
  return batch;
}

bool LogicalTensor::EachOnce() const {
  return std::all_of(given.begin(), given.end(), [](int count) { return count == 1; });
}

bool LogicalTensor::operator==(const LogicalTensor& other) const {
  return dtype == other.dtype && bytes == other.bytes;
}

std::vector<double> LogicalTensor::values() const {
  OT_CHECK(dtype == DType::kF32);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return {floats.begin(), floats.end()};
}

RanksResult TrainOnRanks(Config config, const RanksRun& run) {
  config.parallel.tensor = run.tensor;
  RanksResult result;
  std::mutex mutex;
  RunOnRanks(run.data * run.tensor,
             [&](Communicator& world) { OneRankOfRun(config, run, &world, &mutex, &result).Go(); });
  return result;
}

double Distance(const LogicalTensor& a, const LogicalTensor& b) {
  const std::vector<double> x = a.values(), y = b.values();
  if (x.size() != y.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

double LargestDistance(const LogicalTensors& a, const LogicalTensors& b, std::string* worst) {
  double largest = 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  for (const auto& [name, tensor] : b) {
    const auto found = a.find(name);
    const double distance = found == a.end() ? std::numeric_limits<double>::infinity()
                                             : Distance(found->second, tensor);
    if (!(distance <= largest)) {
      largest = distance;
      *worst = name;
    }
    if (std::isnan(largest)) break;
  }
  return largest;
}

std::string Differing(const LogicalTensors& a, const LogicalTensors& b) {
  std::string names = a.size() == b.size() ? "" : "(other tensors) ";
  for (const auto& [name, tensor] : b) {
    const auto found = a.find(name);
    if (found == a.end() || !(found->second == tensor)) absl::StrAppend(&names, name, " ");
  }
  return names;
}

}  // namespace overtok::testing
