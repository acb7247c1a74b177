// `overtok bench ops`: each op of tools/op_cases.cc, timed on all threads, beside the ceiling that
// this machine showed in the same run: a triad over memory, or the best of a large matrix product.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/ops/kernels.h"
#include "tools/op_cases.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Options {
  std::string only;
  double seconds = 0.3;
  bool json = false;
};

struct Timing {
  double median = 0, best = 0;  // seconds a call
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// At least five calls after one that warms up, for at least `seconds`.
template <class Call>
Timing Time(double seconds, const Call& call) {
  call();
  std::vector<double> times;
  const double start = Now();
  do {
    const double before = Now();
    call();
    times.push_back(Now() - before);
  } while (times.size() < 5 || Now() - start < seconds);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
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

Timing TimeCase(const OpCase& op, double seconds) {
  Memory memory(Memory::Mode::kReal);
  const auto call = op.prepare(memory);
  Context context = CpuContext();
  memory.Commit(&context);
  return Time(seconds, [&] { call(context); });
}

absl::StatusOr<int> Run(const Options& options) {
  std::vector<OpCase> cases;
  for (OpCase& op : OpCases())
    if (op.name.find(options.only) != std::string::npos) cases.push_back(std::move(op));
  if (cases.empty())
    return absl::InvalidArgumentError("--only " + options.only +
                                      ": no op has that in its name; leave it out to see all");
  const double bandwidth = TriadBandwidth(options.seconds);
  const double f32 = ProductRate(DType::kF32, options.seconds);
  const double bf16 = ProductRate(DType::kBF16, options.seconds);
  nlohmann::ordered_json json;
  json["threads"] = cpu::Threads();
  json["ceilings"] = {{"triad_gb_per_second", bandwidth / 1e9},
                      {"f32_gflop_per_second", f32 / 1e9},
                      {"bf16_gflop_per_second", bf16 / 1e9}};
  json["ops"] = nlohmann::ordered_json::array();
  if (!options.json) {
    std::printf("threads %d, triad %.1f GB/s, products of 2048 f32 %.0f, bf16 %.0f GFLOP/s\n\n",
                cpu::Threads(), bandwidth / 1e9, f32 / 1e9, bf16 / 1e9);
    std::printf("%-25s %-12s %-21s %10s %10s %-8s %8s\n", "op", "storage", "shape", "ms", "rate",
                "", "ceiling");
  }
  for (const OpCase& op : cases) {
    const Timing timing = TimeCase(op, options.seconds);
    const bool memory = op.ceiling == Ceiling::kMemory;
    const double limit = memory ? bandwidth : op.ceiling == Ceiling::kF32Products ? f32 : bf16;
    const double rate = op.work / timing.median;
    if (!options.json) {
      std::printf("%-25s %-12s %-21s %10.3f %10.1f %-8s %7.0f%%\n", op.name.c_str(),
                  op.storage.c_str(), op.shape.c_str(), timing.median * 1e3, rate / 1e9,
                  memory ? "GB/s" : "GFLOP/s", 100 * rate / limit);
      std::fflush(stdout);
    }
    json["ops"].push_back({{"name", op.name},
                           {"storage", op.storage},
                           {"shape", op.shape},
                           {"milliseconds", timing.median * 1e3},
                           {"best_milliseconds", timing.best * 1e3},
                           {memory ? "gb_per_second" : "gflop_per_second", rate / 1e9},
                           {"of_ceiling", rate / limit}});
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
  ops->add_option("--seconds", options->seconds, "Time for each op at least")
      ->capture_default_str();
  ops->add_flag("--json", options->json, "One JSON object instead of a table");
}

}  // namespace overtok
