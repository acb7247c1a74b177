#include "trainer/forecast.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/comm/mesh.h"
#include "core/memory.h"
#include "data/batch.h"
#include "optim/schedule.h"
#include "trainer/counting_device.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

// Of a run whose length follows from its corpus: enough that every stage has steps.
constexpr int64_t kStandInSteps = 1000;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Whether one of a product's sizes ("matmul 4096x24576x512 nt") is `size`.
bool HasSize(absl::string_view name, int64_t size) {
  const std::string text = absl::StrCat(size);
  for (const char* before : {" ", "x", "*"})
    for (const char* after : {" ", "x"})
      if (absl::StrContains(name, absl::StrCat(before, text, after))) return true;
  return false;
}

bool Names(absl::string_view name, std::initializer_list<absl::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// Of an op of the forward and backward passes. `classes`: of the vocabulary heads in the step, and
// of hashed ones.
StepPart PartOf(absl::string_view name, const std::vector<int64_t>& classes) {
  if (Names(name, {"table_", "copy_rows"})) return StepPart::kTables;
  if (Names(name, {"attention_"})) return StepPart::kAttention;
  if (Names(name, {"embedding_"})) return StepPart::kLookups;
  if (Names(name, {"softmax_", "weighted_sum"})) return StepPart::kSoftmax;
  if (Names(name, {"fill", "cast", "ordered_sum", "row_tree_sum", "copy_region", "sum_squares",
                   "add_exact", "round_exact", "halt_unless_finite"}))
    return StepPart::kGradients;
  if (!Names(name, {"matmul"})) return StepPart::kBlockPasses;
  const bool head = std::any_of(classes.begin(), classes.end(),
                                [&](int64_t size) { return HasSize(name, size); });
  return head ? StepPart::kHeadProducts : StepPart::kBlockProducts;
}

void Append(const std::vector<OpTime>& counted, const Hardware& hardware, ForecastStage* stage,
            const std::function<StepPart(const std::string&)>& part_of) {
  for (const OpTime& op : counted)
    stage->ops.push_back({op, part_of(op.name), SecondsOf(op.work, hardware)});
}

}  // namespace

const char* NameOf(StepPart part) {
  static constexpr std::array<const char*, kStepParts> kNames = {
      "block products", "attention", "head products", "softmax", "block passes",
      "lookups",        "gradients", "optimizer",     "tables"};
  return kNames[static_cast<size_t>(part)];
}

double ForecastStage::seconds() const {
  double sum = 0;
  for (const ForecastOp& op : ops) sum += op.seconds;
  return sum;
}

double ForecastStage::seconds(StepPart part) const {
  double sum = 0;
  for (const ForecastOp& op : ops) sum += op.part == part ? op.seconds : 0;
  return sum;
}

double StepForecast::seconds() const {
  double sum = 0;
  for (const ForecastStage& stage : stages) sum += stage.share * stage.seconds();
  return sum;
}

std::string StepForecast::ToJson() const {
  nlohmann::ordered_json json;
  json["predicted"] = true;
  json["tokens_per_second"] = tokens / seconds();
  json["step_ms"] = seconds() * 1e3;
  json["gflops"] = flops / stages.front().seconds() / 1e9;
  json["planned_gib"] = device_bytes / kGib;
  json["host_gib"] = host_bytes / kGib;
  json["tokens"] = tokens;
  json["stages"] = nlohmann::ordered_json::array();
  for (const ForecastStage& stage : stages) {
    nlohmann::ordered_json one = {{"candidates", stage.span.candidates},
                                  {"share_of_steps", stage.share},
                                  {"step_ms", stage.seconds() * 1e3},
                                  {"tokens_per_second", tokens / stage.seconds()},
                                  {"naming_ms_here", stage.naming_seconds * 1e3},
                                  {"host_ms_here", stage.host_seconds * 1e3}};
    for (int p = 0; p < kStepParts; ++p) {
      const auto part = static_cast<StepPart>(p);
      one["parts_ms"][NameOf(part)] = stage.seconds(part) * 1e3;
    }
    one["ops"] = nlohmann::ordered_json::array();
    for (const ForecastOp& op : stage.ops) {
      one["ops"].push_back({{"name", op.op.name},
                            {"part", NameOf(op.part)},
                            {"calls", op.op.calls},
                            {"ms", op.seconds * 1e3},
                            {"flops", op.op.work.flops},
                            {"bytes", op.op.work.bytes},
                            {"row_bytes", op.op.work.row_bytes}});
    }
    json["stages"].push_back(one);
  }
  return json.dump();
}

absl::StatusOr<StepForecast> ForecastSteps(Config config, IdDistribution ids, uint64_t seed,
                                           const Hardware& hardware) {
  if (config.train.steps == 0) config.train.steps = kStandInSteps;
  Memory memory(Memory::Mode::kReal, CountingDevice());
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  const BatchSource source(config, ids, seed);
  StepForecast out;
  out.tokens = static_cast<double>(config.tokens_per_step());
  out.device_bytes = static_cast<double>(memory.total());
  out.host_bytes = static_cast<double>(memory.host_bytes());
  Batch batch;
  for (const StageSpan& span : Stages(config)) {
    const int64_t step = (span.begin + span.end) / 2;
    ForecastStage& stage = out.stages.emplace_back();
    stage.span = span;
    stage.share =
        static_cast<double>(span.end - span.begin) / static_cast<double>(config.train.steps);
    source.Fill(step, &batch);
    if (out.stages.size() == 1)  // the host's memory is there, for its time
      OT_RETURN_IF_ERROR(train.Gradients(batch, step).status());
    ResetProfile();
    double start = Now();
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Gradients(batch, step));
    stage.naming_seconds = result.naming_seconds;
    stage.host_seconds = Now() - start;
    // All of them where a block has more different targets than candidates.
    std::vector<int64_t> classes = {span.candidates, config.model.vocab_size};
    for (const auto& head : train.model().heads())
      if (IsHashed(head->kind())) classes.push_back(ClassesOf(config.model, head->kind()));
    Append(ReadProfile(), hardware, &stage,
           [&](const std::string& name) { return PartOf(name, classes); });
    ResetProfile();
    start = Now();
    train.optimizer().Step(train.context(), step, result.lr_scale);
    stage.host_seconds += Now() - start;
    Append(ReadProfile(), hardware, &stage, [](const std::string& name) {
      return Names(name, {"table_", "copy_rows"}) ? StepPart::kTables : StepPart::kOptimizer;
    });
    std::stable_sort(
        stage.ops.begin(), stage.ops.end(),
        [](const ForecastOp& a, const ForecastOp& b) { return a.seconds > b.seconds; });
  }
  for (const ForecastOp& op : out.stages.front().ops) out.flops += op.op.work.flops;
  return out;
}

}  // namespace overtok
