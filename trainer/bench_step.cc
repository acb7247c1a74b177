#include "trainer/bench_step.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/comm/communicator.h"
#include "core/cpu/parallel.h"
#include "core/memory.h"
#include "core/rng.h"
#include "data/batch.h"
#include "trainer/config/derived.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// One document a window, every position but the last weighs 1.
Batch RandomBatch(const Config& config, uint64_t seed) {
  Batch batch;
  batch.Resize(config.train.batch_sequences, config.data.sequence_length);
  const auto vocabulary = static_cast<uint64_t>(config.model.vocab_size);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<uint32_t>(Philox(seed, i, 0)[0] % vocabulary);
    batch.segments[i] = 0;
    const bool last = (static_cast<int64_t>(i) + 1) % batch.length == 0;
    batch.loss_weight[i] = last ? 0.0F : 1.0F;
    batch.weight_sum += batch.loss_weight[i];
  }
  return batch;
}

}  // namespace

std::string BenchStepResult::ToJson() const {
  nlohmann::ordered_json json;
  json["tokens_per_second"] = tokens_per_second;
  json["step_ms"] = step_ms;
  json["forward_ms"] = forward_ms;
  json["backward_ms"] = backward_ms;
  json["optimizer_ms"] = optimizer_ms;
  json["gflops"] = gflops;
  json["peak_gib"] = peak_gib;
  json["planned_gib"] = planned_gib;
  json["threads"] = threads;
  json["precision"] = precision;
  json["device"] = device;
  return json.dump();
}

absl::StatusOr<BenchStepResult> BenchStep(const Config& given, const BenchStepOptions& options) {
  if (options.repetitions < 1 || options.warmup < 0) {
    return absl::InvalidArgumentError("--repetitions has to be at least 1 and --warmup at least 0");
  }
  Config config = given;
  // The rate must not reach its end during the benchmark; only its value depends on the horizon,
  // not the work.
  config.train.steps = std::max(config.train.steps, options.warmup + options.repetitions + 1);
  Memory memory(Memory::Mode::kReal);
  const std::unique_ptr<Communicator> communicator = OneRank();
  TrainStep train(config, &memory, communicator.get());
  if (options.by_op)
    train.context() = Context(DeviceKind::kCpu, &StartProfile(train.context().kernels()));
  train.Commit();
  train.Initialize();
  const Batch batch = RandomBatch(config, options.seed);

  std::vector<double> whole, forward, backward, optimizer;
  for (int64_t step = 0; step < options.warmup + options.repetitions; ++step) {
    if (step == options.warmup && options.by_op) ResetProfile();
    const double start = Now();
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Run(batch, step));
    if (step < options.warmup) continue;
    whole.push_back(Now() - start);
    forward.push_back(result.forward_seconds);
    backward.push_back(result.backward_seconds);
    optimizer.push_back(result.optimizer_seconds);
  }

  BenchStepResult out;
  const auto tokens = static_cast<double>(config.tokens_per_step());
  const double seconds = Median(whole);
  out.tokens_per_second = tokens / seconds;
  out.step_ms = seconds * 1e3;
  out.forward_ms = Median(forward) * 1e3;
  out.backward_ms = Median(backward) * 1e3;
  out.optimizer_ms = Median(optimizer) * 1e3;
  out.gflops = CausalForwardFlops(config.model, config.data.sequence_length).training() * tokens /
               seconds / 1e9;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  out.peak_gib = static_cast<double>(usage.ru_maxrss) * 1024.0 / kGib;
  out.planned_gib = static_cast<double>(memory.total()) / kGib;
  out.threads = cpu::Threads();
  out.precision = config.train.precision == DType::kBF16 ? "bf16" : "f32";
  out.device = "cpu";
  if (options.by_op) out.ops = ReadProfile();
  out.steps = options.repetitions;
  return out;
}

}  // namespace overtok
