#include "trainer/bench_step.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "core/comm/agreement.h"
#include "core/comm/mesh.h"
#include "core/cpu/parallel.h"
#include "core/memory.h"
#include "data/batch.h"
#include "losses/candidates.h"
#include "trainer/config/derived.h"
#include "trainer/layout.h"
#include "trainer/open_device.h"
#include "trainer/table_memory.h"
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

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
// Batches of so many bytes are made before the clock starts; longer benchmarks meet them again.
constexpr int64_t kRingBytes = int64_t{256} << 20;

// The steps of the run: enough for the benchmark, and such that none of its steps leaves the stage
// that it would be in with a longer horizon.
int64_t LengthOfRun(const Config& config, int64_t needed) {
  if (config.train.steps >= needed) return config.train.steps;
  if (!config.loss.sampled_softmax.has_value()) return needed;
  const std::vector<SampledStage>& stages = config.loss.sampled_softmax->stages;
  if (stages.empty()) return needed;
  return static_cast<int64_t>(std::ceil(static_cast<double>(needed + 1) / stages.front().until));
}

int64_t StageNumber(const Config& config, int64_t step) {
  int64_t stage = 0;
  if (!config.loss.sampled_softmax.has_value()) return stage;
  for (const SampledStage& s : config.loss.sampled_softmax->stages) {
    if (StageEnd(s, config.train.steps) <= step) ++stage;
  }
  return stage;
}

// Forward and backward, for one token, of a step with `candidates` classes in its vocabulary heads.
double StepFlops(Config config, int64_t candidates) {
  config.loss.sampled_softmax.reset();
  if (candidates < config.model.vocab_size) {
    config.loss.sampled_softmax = SampledSoftmaxConfig{{{1.0, candidates}}};
  }
  return ActualForwardFlops(config).training();
}

}  // namespace

std::string BenchStepResult::ToJson() const {
  nlohmann::ordered_json json;
  json["tokens_per_second"] = tokens_per_second;
  json["step_ms"] = step_ms;
  if (device == "cpu") {
    json["forward_ms"] = forward_ms;
    json["backward_ms"] = backward_ms;
  } else {
    json["device_ms"] = device_ms;
    json["gradients_ms"] = gradients_ms;
    json["naming_ms"] = naming_ms;
    json["host_ms"] = host_ms;
  }
  json["optimizer_ms"] = optimizer_ms;
  json["gflops"] = gflops;
  json["peak_gib"] = peak_gib;
  json["planned_gib"] = planned_gib;
  if (device != "cpu") json["host_planned_gib"] = host_planned_gib;
  json["threads"] = threads;
  json["ranks"] = ranks;
  json["tensor"] = tensor;
  if (ranks > 1) {
    for (int kind = 0; kind < kTrafficKinds; ++kind) {
      json["bytes_sent"][NameOf(static_cast<Traffic>(kind))] =
          bytes_sent[static_cast<size_t>(kind)];
    }
    json["bytes_sent_most"] = bytes_sent_most;
  }
  json["precision"] = precision;
  json["device"] = device;
  json["ids"] = ids;
  json["first_step"] = first_step;
  json["candidates"] = candidates;
  json["stage"] = stage;
  json["overflow_share"] = overflow_share;
  if (predicted_step_ms > 0) {
    json["predicted_step_ms"] = predicted_step_ms;
    json["predicted_tokens_per_second"] = tokens_per_second * step_ms / predicted_step_ms;
  }
  if (by_op && device != "cpu") json["ops_wait"] = true;
  for (const OpTime& op : ops) {
    json["ops"].push_back({{"name", op.name},
                           {"calls", static_cast<double>(op.calls) / static_cast<double>(steps)},
                           {"ms", op.seconds / static_cast<double>(steps) * 1e3},
                           {"flops", op.work.flops / static_cast<double>(steps)},
                           {"bytes", op.work.all_bytes() / static_cast<double>(steps)}});
  }
  return json.dump();
}

namespace {

// What the counted steps took, of every step the slowest rank's.
struct Times {
  std::vector<double> whole, forward, backward, optimizer, device, gradients, naming, host;
  void Add(const StepResult& result, double seconds) {
    whole.push_back(seconds);
    forward.push_back(result.forward_seconds);
    backward.push_back(result.backward_seconds);
    optimizer.push_back(result.optimizer_seconds);
    device.push_back(result.device_seconds);
    gradients.push_back(result.gradients_seconds);
    naming.push_back(result.naming_seconds);
    host.push_back(result.host_seconds);
  }
  void TakeSlowest(Communicator& world) {
    for (std::vector<double>* times :
         {&whole, &forward, &backward, &optimizer, &device, &gradients, &naming, &host}) {
      world.AllReduceMax(*times, Traffic::kControl);
    }
  }
};

double PeakGib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024.0 / kGib;
}

// Bytes that groups of this rank have sent so far.
using SentBytes = std::array<int64_t, kTrafficKinds>;
SentBytes SentBy(const Mesh& mesh) {
  SentBytes sent{};
  for (const Communicator* group : {&mesh.world(), &mesh.data(), &mesh.tensor()}) {
    for (size_t kind = 0; kind < sent.size(); ++kind) sent[kind] += group->bytes_sent()[kind];
  }
  return sent;
}
SentBytes SentSince(const SentBytes& before, const Mesh& mesh) {
  SentBytes sent = SentBy(mesh);
  for (size_t kind = 0; kind < sent.size(); ++kind) sent[kind] -= before[kind];
  return sent;
}

}  // namespace

absl::StatusOr<BenchStepResult> BenchStep(const LoadedConfig& loaded,
                                          const BenchStepOptions& options, Communicator* world) {
  if (options.repetitions < 1 || options.warmup < 0 || options.table_age < 0) {
    return absl::InvalidArgumentError(
        "--repetitions has to be at least 1, --warmup and --table-age at least 0");
  }
  OT_RETURN_IF_ERROR(Agree(*world, CheckLayout(loaded, world->size())));
  Config config = loaded.config;
  // The rate must not reach its end during the benchmark; only its value depends on the horizon,
  // not the work.
  const int64_t first = options.table_age, count = options.warmup + options.repetitions;
  config.train.steps = LengthOfRun(config, first + count + 1);
  OT_ASSIGN_OR_RETURN(Device* const device, OpenDevice(config, *world));
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> device_world, OnDevice(*world, device));
  Memory memory(Memory::Mode::kReal, device);
  const Mesh mesh(device_world.get(), static_cast<int>(config.parallel.tensor),
                  config.parallel.vocabulary_map);
  if (options.by_op) config.train.cuda_graphs = false;  // ops are timed one by one
  PlaceTablesOfStep(device->total_bytes(), mesh, &config);
  TrainStep train(config, &mesh, &memory);
  if (options.by_op) train.context().SetKernels(&StartProfile(train.context().kernels()));
  train.Commit();
  train.Initialize();
  const BatchSource source(config, options.ids, options.seed);
  AgeTables(source, first, &train);
  const int64_t batch_bytes = config.tokens_per_step() * 12;
  std::vector<Batch> ring(
      static_cast<size_t>(std::clamp<int64_t>(kRingBytes / batch_bytes, 1, count)));
  for (size_t i = 0; i < ring.size(); ++i) source.Fill(first + static_cast<int64_t>(i), &ring[i]);

  BenchStepResult out;
  int64_t blocks = 0, overflows = 0;
  Times times;
  // As a training run does, with a step more open on a device that works behind the host.
  const bool ahead = train.works_behind() && !options.by_op;
  int64_t asked = 0;
  SentBytes of_asking{};  // of the last step that was asked for
  const auto ask = [&]() -> absl::Status {
    const Batch& batch = ring[static_cast<size_t>(asked) % ring.size()];
    const SentBytes before = SentBy(mesh);
    OT_RETURN_IF_ERROR(train.Start(batch, first + asked++));
    of_asking = SentSince(before, mesh);
    return absl::OkStatus();
  };
  double start = Now();
  for (int64_t i = 0; i < count; ++i) {
    if (i == options.warmup && options.by_op) ResetProfile();
    if (!ahead) {
      world->Barrier();
      start = Now();
    }
    if (asked == i) OT_RETURN_IF_ERROR(ask());
    if (ahead && asked < count) OT_RETURN_IF_ERROR(ask());
    const SentBytes before = SentBy(mesh);
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Finish());
    const double end = Now();
    out.bytes_sent = SentSince(before, mesh);
    for (size_t kind = 0; kind < of_asking.size(); ++kind) out.bytes_sent[kind] += of_asking[kind];
    const double seconds = end - start;
    start = end;
    if (i < options.warmup) continue;
    out.candidates = result.stage_candidates;
    blocks += result.heads[0].candidates.blocks;
    overflows += result.heads[0].candidates.overflows;
    times.Add(result, seconds);
  }
  times.TakeSlowest(*world);
  const auto own = std::accumulate(out.bytes_sent.begin(), out.bytes_sent.end(), int64_t{0});
  std::vector<double> largest = {static_cast<double>(own), PeakGib(),
                                 static_cast<double>(memory.total()) / kGib,
                                 static_cast<double>(memory.host_bytes()) / kGib};
  world->AllReduceMax(largest, Traffic::kControl);
  world->AllReduceSum(std::span<int64_t>(out.bytes_sent), Traffic::kControl);

  out.first_step = first;
  out.stage = StageNumber(config, first + count - 1);
  if (blocks > 0) out.overflow_share = static_cast<double>(overflows) / static_cast<double>(blocks);
  out.ids = NameOf(options.ids);
  const auto tokens = static_cast<double>(config.tokens_per_step());
  const double seconds = Median(times.whole);
  out.tokens_per_second = tokens / seconds;
  out.step_ms = seconds * 1e3;
  out.forward_ms = Median(times.forward) * 1e3;
  out.backward_ms = Median(times.backward) * 1e3;
  out.optimizer_ms = Median(times.optimizer) * 1e3;
  out.device_ms = Median(times.device) * 1e3;
  out.gradients_ms = Median(times.gradients) * 1e3;
  out.naming_ms = Median(times.naming) * 1e3;
  out.host_ms = Median(times.host) * 1e3;
  out.gflops = StepFlops(config, out.candidates) * tokens / seconds / 1e9;
  out.bytes_sent_most = static_cast<int64_t>(largest[0]);
  out.peak_gib = largest[1];
  out.planned_gib = largest[2];
  out.host_planned_gib = largest[3];
  out.threads = cpu::Threads();
  out.ranks = world->size();
  out.tensor = config.parallel.tensor;
  out.precision = config.train.precision == DType::kBF16 ? "bf16" : "f32";
  out.device = NameOf(device->kind());
  out.by_op = options.by_op;
  if (options.by_op) out.ops = ReadProfile();
  out.steps = options.repetitions;
  return out;
}

}  // namespace overtok
