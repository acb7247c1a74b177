// `overtok bench ops`: each op of tools/op_cases.h, timed on a device beside its ceiling. Ceilings
// come from a described machine (--hardware), or on the CPU from this run: a triad over memory, and
// the best of a large matrix product. --predict measures nothing and tells what the machine's
// ceilings make of every op.
//
// On a device with memory of its own an op is asked for many times between two waits, by the wall
// clock, so that launches overlap as they do in a step. Operands smaller than caches are pushed out
// by a fill of other memory before each launch; the fill's own time is taken off.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/cuda/attention_cudnn.h"
#include "core/cuda/device.h"
#include "core/cuda/emulation/device.h"
#include "core/ops/kernels.h"
#include "core/ops/profile.h"
#include "tools/op_cases.h"
#include "tools/program.h"
#include "trainer/counting_device.h"
#include "trainer/hardware.h"

namespace overtok {
namespace {

struct Options {
  std::string only, device = "auto", attention = "kernels", shape, hardware;
  double seconds = 0.3;
  bool predict = false, json = false;
};

struct Timing {
  double median = 0, best = 0;  // seconds a call
};

// What holds ops back: bytes and operations a second that this CPU showed, or a description.
struct Ceilings {
  double bandwidth = 0, f32 = 0, bf16 = 0;
  std::optional<Hardware> hardware;

  double Seconds(const Work& work) const {
    if (hardware) return SecondsOf(work, *hardware);
    const double moving = work.all_bytes() / bandwidth;
    return std::max(moving, work.flops / (work.dtype == DType::kBF16 ? bf16 : f32));
  }
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Timing Of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

// At least five calls after one that warms up, for at least `seconds`; `reset` before each is not
// counted.
template <class Call>
Timing Time(
    double seconds, const Call& call, const std::function<void()>& reset = [] {}) {
  reset();
  call();
  std::vector<double> times;
  const double start = Now();
  do {
    reset();
    const double before = Now();
    call();
    times.push_back(Now() - before);
  } while (times.size() < 5 || Now() - start < seconds);
  return Of(std::move(times));
}

// a = b + 3 c over arrays of 128 MB: bytes per second, counting what the loop names (12 an
// element).
double TriadBandwidth(double seconds) {
  constexpr int64_t kElements = int64_t{1} << 25;
  Memory memory(Memory::Mode::kReal);
  const auto take = [&](const char* name) {
    const Tensor x = memory.Take(Purpose::kActivations, name, DType::kF32, {kElements});
    Fill(CpuContext(), {.x = x, .value = 1});
    return x.data<float>();
  };
  float* a = take("a");
  const float* b = take("b");
  const float* c = take("c");
  const Timing timing = Time(seconds, [&] {
    cpu::ParallelFor(kElements, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
    });
  });
  return 12.0 * static_cast<double>(kElements) / timing.best;
}

double ProductRate(DType operand, double seconds) {
  constexpr int64_t kSize = 2048;
  Memory memory(Memory::Mode::kReal);
  const auto take = [&](DType dtype) {
    const Tensor x = memory.Take(Purpose::kActivations, "operand", dtype, {kSize, kSize});
    Fill(CpuContext(), {.x = x, .value = 1});
    return x;
  };
  const MatmulArgs args = {.a = take(operand), .b = take(operand), .c = take(DType::kF32)};
  Context context = CpuContext();
  memory.Commit(&context);
  const Timing timing = Time(seconds, [&] { Matmul(context, args); });
  return 2.0 * kSize * kSize * kSize / timing.best;
}

// Counted by the op's own call, on a device that computes nothing.
Work WorkOfCase(const OpCase& op) {
  Memory memory(Memory::Mode::kReal, CountingDevice());
  Operands operands(&memory, /*fill=*/false);
  const OpCall call = op.prepare(operands);
  Context context(CountingDevice());
  memory.Commit(&context);
  ResetProfile();
  call.run(context);
  const std::vector<OpTime> ops = ReadProfile();
  OT_CHECK_EQ(ops.size(), 1u) << op.name;
  return ops[0].work;
}

// Operands beyond this stay in no cache of a GPU (50 MB) or are read again from memory.
constexpr double kCachedBytes = 256 << 20;

// Several batches of launches that each take `seconds` / 5 or more, a launch's time of each.
Timing TimeOnDevice(const Context& context, const OpCall& call, const Tensor& flush,
                    double seconds) {
  const auto fill = [&] {
    if (flush.defined()) Fill(context, {.x = flush, .value = 0});
  };
  const auto batch = [&](int64_t launches, bool with_op) {
    if (call.reset != nullptr) call.reset(context);
    context.Wait();
    const double start = Now();
    for (int64_t i = 0; i < launches; ++i) {
      fill();
      if (with_op) call.run(context);
    }
    context.Wait();
    return (Now() - start) / static_cast<double>(launches);
  };
  batch(1, true);  // libraries choose their kernels
  const double one = batch(1, true);
  // What has to be reset is launched once at a time.
  const int64_t launches = call.reset != nullptr
                               ? 1
                               : std::clamp(static_cast<int64_t>(seconds / 5 / std::max(one, 1e-7)),
                                            int64_t{1}, int64_t{1000});
  const double filling = flush.defined() ? batch(launches, false) : 0;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(std::max(batch(launches, true) - filling, 1e-9));
  return Of(std::move(times));
}

Timing TimeCase(const OpCase& op, const Work& work, Device* device, double seconds) {
  Memory memory(Memory::Mode::kReal, device);
  Operands operands(&memory, /*fill=*/true);
  const OpCall call = op.prepare(operands);
  Tensor flush;
  if (device->kind() == DeviceKind::kCuda && work.all_bytes() < kCachedBytes)
    flush = operands.Take(DType::kF32, {static_cast<int64_t>(kCachedBytes) / 4});
  Context context(device);
  memory.Commit(&context);
  context.SendInputs(InputGroup::kStep);
  if (device->own_memory()) return TimeOnDevice(context, call, flush, seconds);
  return Time(
      seconds, [&] { call.run(context); },
      [&] {
        if (call.reset != nullptr) call.reset(context);
      });
}

absl::StatusOr<Device*> DeviceNamed(const std::string& name) {
  if (name == "cuda" || (name == "auto" && CudaIsThere())) return CudaDevice(0);
  if (name == "cpu" || name == "auto") return CpuDevice();
  if (name == "emulated") return EmulatedDevice();
  return absl::InvalidArgumentError("--device is \"" + name +
                                    "\", expected auto, cpu, cuda or emulated");
}

// --attention, before memory is taken.
absl::Status ChooseAttention(const Options& options, const std::vector<OpShapes>& shapes,
                             Device* device) {
  if (options.attention == "kernels") return absl::OkStatus();
  if (options.attention != "cudnn") {
    return absl::InvalidArgumentError("--attention is \"" + options.attention +
                                      "\", expected kernels or cudnn");
  }
  if (device == nullptr) {
    return absl::InvalidArgumentError("--attention cudnn needs a device: leave --predict out");
  }
  std::vector<PackedSizes> sizes;
  for (const OpShapes& s : shapes) {
    sizes.push_back({s.batch, s.length, s.heads, s.kv_heads, s.head_width});
  }
  return StartCudnnAttention(device, sizes).status();
}

// The shapes to go through: on a GPU those of a model in the middle.
absl::StatusOr<std::vector<OpShapes>> Shapes(const Options& options, const Device* device) {
  std::string name = options.shape;
  if (name.empty())
    name = device == nullptr || device->kind() == DeviceKind::kCuda ? "300m" : "small";
  std::vector<OpShapes> shapes;
  if (name == "all") {
    for (const std::string& one : OpShapeNames()) {
      if (one == "small") continue;
      OT_ASSIGN_OR_RETURN(shapes.emplace_back(), OpShapesNamed(one));
    }
    return shapes;
  }
  OT_ASSIGN_OR_RETURN(shapes.emplace_back(), OpShapesNamed(name));
  return shapes;
}

absl::StatusOr<Ceilings> FindCeilings(const Options& options, const Device* device) {
  Ceilings ceilings;
  if (!options.hardware.empty()) {
    OT_ASSIGN_OR_RETURN(ceilings.hardware, LoadHardware(options.hardware));
  } else if (options.predict) {
    return absl::InvalidArgumentError(
        "--predict needs a machine: --hardware FILE (configs/hardware/*.yaml)");
  } else if (device->own_memory()) {
    return absl::InvalidArgumentError(
        "ops of a GPU are held against a described machine: --hardware "
        "FILE (configs/hardware/h200.yaml)");
  } else {
    ceilings.bandwidth = TriadBandwidth(options.seconds);
    ceilings.f32 = ProductRate(DType::kF32, options.seconds);
    ceilings.bf16 = ProductRate(DType::kBF16, options.seconds);
  }
  return ceilings;
}

void PrintHeader(const Options& options, const Device* device, const Ceilings& ceilings) {
  std::printf("device %s, ", device == nullptr ? "none" : NameOf(device->kind()));
  if (ceilings.hardware) {
    std::printf("ceilings of %s\n\n", options.hardware.c_str());
  } else {
    std::printf("threads %d, triad %.1f GB/s, products of 2048 f32 %.0f, bf16 %.0f GFLOP/s\n\n",
                cpu::Threads(), ceilings.bandwidth / 1e9, ceilings.f32 / 1e9, ceilings.bf16 / 1e9);
  }
  std::printf("%-5s %-25s %-12s %-21s %10s %10s %-8s %10s %8s\n", "model", "op", "storage", "shape",
              "ms", "rate", "", "at ceiling", "ceiling");
}

absl::StatusOr<int> Run(const Options& options) {
  Device* device = nullptr;
  if (!options.predict) {
    OT_ASSIGN_OR_RETURN(device, DeviceNamed(options.device));
  }
  OT_ASSIGN_OR_RETURN(const std::vector<OpShapes> shapes, Shapes(options, device));
  OT_ASSIGN_OR_RETURN(const Ceilings ceilings, FindCeilings(options, device));
  OT_RETURN_IF_ERROR(ChooseAttention(options, shapes, device));
  nlohmann::ordered_json json;
  json["predicted"] = options.predict;
  json["attention"] = options.attention;
  if (device != nullptr) json["device"] = NameOf(device->kind());
  if (ceilings.hardware) {
    json["hardware"] = options.hardware;
  } else {
    json["threads"] = cpu::Threads();
    json["ceilings"] = {{"triad_gb_per_second", ceilings.bandwidth / 1e9},
                        {"f32_gflop_per_second", ceilings.f32 / 1e9},
                        {"bf16_gflop_per_second", ceilings.bf16 / 1e9}};
  }
  json["ops"] = nlohmann::ordered_json::array();
  if (!options.json) PrintHeader(options, device, ceilings);
  for (const OpShapes& size : shapes) {
    for (const OpCase& op : OpCases(size)) {
      if (op.name.find(options.only) == std::string::npos) continue;
      const Work work = WorkOfCase(op);
      const double ceiling = ceilings.Seconds(work);
      const Timing timing = device == nullptr ? Timing{ceiling, ceiling}
                                              : TimeCase(op, work, device, options.seconds);
      const bool products = work.products();
      const double rate = (products ? work.flops : work.all_bytes()) / timing.median;
      if (!options.json) {
        std::printf("%-5s %-25s %-12s %-21s %10.3f %10.1f %-8s %10.3f %7.0f%%\n", size.name.c_str(),
                    op.name.c_str(), op.storage.c_str(), op.shape.c_str(), timing.median * 1e3,
                    rate / 1e9, products ? "GFLOP/s" : "GB/s", ceiling * 1e3,
                    100 * ceiling / timing.median);
        std::fflush(stdout);
      }
      json["ops"].push_back({{"model", size.name},
                             {"name", op.name},
                             {"storage", op.storage},
                             {"shape", op.shape},
                             {"milliseconds", timing.median * 1e3},
                             {"best_milliseconds", timing.best * 1e3},
                             {products ? "gflop_per_second" : "gb_per_second", rate / 1e9},
                             {"ceiling_milliseconds", ceiling * 1e3},
                             {"of_ceiling", ceiling / timing.median}});
    }
  }
  if (json["ops"].empty()) {
    return absl::InvalidArgumentError("--only " + options.only +
                                      ": no op has that in its name; leave it out to see all");
  }
  if (options.json) std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace

void AddBenchOps(Program& program, CLI::App* bench) {
  auto options = std::make_shared<Options>();
  CLI::App* ops =
      program.AddBelow(bench, "ops", "Each op beside its ceiling: memory, or matrix products",
                       [options] { return Run(*options); });
  ops->add_option("--only", options->only, "Only ops with this in their name");
  ops->add_option("--device", options->device, "auto, cpu, cuda or emulated")
      ->capture_default_str();
  ops->add_option("--attention", options->attention,
                  "What computes attention: kernels, or on cuda cudnn (train.attention)")
      ->capture_default_str();
  ops->add_option("--shape", options->shape,
                  "Sizes of the ops: small, a recipe's (130m, 300m, 520m, 1_2b), or all of these "
                  "(on a GPU and with --predict 300m, else small)");
  ops->add_option("--hardware", options->hardware,
                  "Machine whose ceilings ops are held against (configs/hardware/*.yaml)");
  ops->add_flag("--predict", options->predict,
                "Measure nothing: tell the times that the ceilings allow");
  ops->add_option("--seconds", options->seconds, "Time for each op at least")
      ->capture_default_str();
  ops->add_flag("--json", options->json, "One JSON object instead of a table");
}

}  // namespace overtok
