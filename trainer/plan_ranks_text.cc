// The plan of many ranks for people and for programs.
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/cpu/parallel.h"
#include "trainer/plan_ranks.h"
#include "trainer/table_memory.h"

namespace overtok {
namespace {

std::string Line(absl::string_view name, absl::string_view value, absl::string_view note = "") {
  return absl::StrFormat("  %-30s %14s  %s\n", name, value, note);
}

std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4g ms", seconds * 1e3); }

// How many ranks were looked at, in words.
std::string LookedAt(const RanksPlan& plan) {
  const int world = plan.layout.world();
  if (static_cast<int>(plan.ranks.size()) == world) return absl::StrCat("all ", world, " ranks");
  return absl::StrCat(plan.ranks.size(), " of ", world,
                      " ranks (the first node, the middle and the last data rank)");
}

std::string MemorySection(const RanksPlan& plan) {
  const PlannedRankCosts& largest = plan.ranks[plan.largest];
  std::string text = plan.layout.world() == 1
                         ? "memory of the rank\n"
                         : absl::StrCat("memory of rank ", largest.rank, ", the largest of ",
                                        LookedAt(plan), "; their mean\n");
  for (int p = 0; p < kPurposes; ++p) {
    const auto purpose = static_cast<size_t>(p);
    absl::StrAppend(
        &text, Line(NameOf(static_cast<Purpose>(p)),
                    FormatBytes(largest.memory.by_purpose[purpose]), Bytes(plan.mean[purpose])));
  }
  absl::StrAppend(&text,
                  Line("host", FormatBytes(largest.memory.host),
                       absl::StrCat("batches read ahead, and ", FormatBytes(largest.memory.program),
                                    " assumed for program, libraries and MPI")),
                  Line("total", FormatBytes(largest.memory.total()), Bytes(plan.mean_memory)),
                  Line("of a node", Bytes(plan.node_memory),
                       absl::StrCat("the fullest, ", plan.ranks_per_node, " ranks")),
                  Line("one checkpoint", FormatBytes(plan.checkpoint), "of all ranks together"));
  return text;
}

std::string TrafficSection(const RanksPlan& plan) {
  if (plan.layout.world() == 1) return "";
  const PlannedRankCosts& busiest = plan.ranks[plan.busiest];
  const bool all = static_cast<int>(plan.ranks.size()) == plan.layout.world();
  std::string text =
      absl::StrCat("bytes that rank ", busiest.rank, " sends in a step, the most of ",
                   LookedAt(plan), all ? "; all ranks together\n" : "\n");
  int64_t sum = 0;
  for (int k = 0; k < kTrafficKinds; ++k) {
    const auto kind = static_cast<size_t>(k);
    int64_t together = 0;
    for (const PlannedRankCosts& rank : plan.ranks) together += rank.sent[kind];
    sum += together;
    if (busiest.sent[kind] == 0 && together == 0) continue;
    std::string note = all ? absl::StrCat(together) : "";
    if (static_cast<Traffic>(k) == Traffic::kTables)
      absl::StrAppend(&note, note.empty() ? "" : ", ",
                      "expected of random ids; text names fewer rows");
    absl::StrAppend(&text,
                    Line(NameOf(static_cast<Traffic>(k)), absl::StrCat(busiest.sent[kind]), note));
  }
  absl::StrAppend(&text, Line("total", absl::StrCat(busiest.sent_in_all()),
                              all ? absl::StrCat(sum) : std::string()));
  return text;
}

std::string VocabularySection(const RanksPlan& plan) {
  if (plan.layout.tensor == 1) return "";
  std::string text = "vocabulary: the busiest rank's share, relative to the mean\n";
  absl::StrAppend(&text, Line("classes", absl::StrFormat("%.4f", plan.busiest_classes)));
  if (plan.busiest_candidates) {
    absl::StrAppend(
        &text, Line("candidates of the first step",
                    absl::StrFormat("%.4f", *plan.busiest_candidates), "of the corpus's own text"));
  } else if (!plan.corpus_problem.empty() && plan.config.loss.sampled_softmax) {
    absl::StrAppend(&text, Line("candidates", "?", "the corpus cannot be read: "), "    ",
                    plan.corpus_problem, "\n");
  }
  return text;
}

std::string TablesSection(const RanksPlan& plan) {
  const std::vector<TableCost>& tables = plan.ranks[plan.largest].tables;
  if (plan.config.train.device == DeviceKind::kCpu || tables.empty()) return "";
  std::string text = "hashed tables: values and state, of all ranks together, and where they lie\n";
  for (const TableCost& table : tables) {
    absl::StrAppend(&text, Line(table.name, FormatBytes(table.value_bytes + table.state_bytes),
                                table.in_host_memory ? "host memory" : "on the device"));
  }
  if (!plan.tables_placed) absl::StrAppend(&text, "  ", kTablesNotPlaced, "\n");
  return text;
}

std::string PartLine(const PredictedPart& part) {
  std::string note;
  if (part.flops > 0) absl::StrAppendFormat(&note, "%.4g GFLOP", part.flops / 1e9);
  if (part.bytes > 0) absl::StrAppend(&note, Bytes(part.bytes));
  if (part.hidden > 0)
    absl::StrAppend(&note, ", and ", Milliseconds(part.hidden), " more beside computing");
  if (part.even_seconds > 0 && part.seconds > 2 * part.even_seconds) {
    absl::StrAppend(&note, "; ", Milliseconds(part.even_seconds),
                    " if owners of matrices did not wait for each other");
  }
  return Line(part.name, Milliseconds(part.exposed()), note);
}

std::string StageSection(const PredictedStage& stage, int64_t classes, int64_t ranks) {
  const StepPrediction& step = stage.step;
  std::string text = "a step on the described machine, an estimate";
  if (stage.span.candidates < classes)
    absl::StrAppend(&text, ": ", stage.span.candidates, " candidates");
  if (stage.span.end > 0)
    absl::StrAppend(&text, " (steps ", stage.span.begin, " to ", stage.span.end - 1, ")");
  text += "\n";
  for (const PredictedPart& part : step.computing) text += PartLine(part);
  for (const PredictedPart& part : step.exchanges) text += PartLine(part);
  absl::StrAppend(
      &text,
      Line("step", Milliseconds(step.seconds()),
           absl::StrFormat("%.1f %% of it exchanges",
                           100 * step.exchange_seconds() / step.seconds())),
      Line("tokens/s", FormatCount(step.tokens_per_second()),
           absl::StrCat(FormatCount(step.tokens_per_second() / static_cast<double>(ranks)),
                        " of a rank")));
  return text;
}

nlohmann::ordered_json PartsJson(const std::vector<PredictedPart>& parts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const PredictedPart& part : parts) {
    json.push_back({{"name", part.name},
                    {"flops", part.flops},
                    {"bytes", part.bytes},
                    {"seconds", part.seconds},
                    {"hidden_seconds", part.hidden}});
  }
  return json;
}

nlohmann::ordered_json TrafficJson(const TrafficByKind& sent) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int kind = 0; kind < kTrafficKinds; ++kind)
    json[NameOf(static_cast<Traffic>(kind))] = sent[static_cast<size_t>(kind)];
  return json;
}

nlohmann::ordered_json RankJson(const PlannedRankCosts& rank) {
  nlohmann::ordered_json memory = nlohmann::ordered_json::object();
  for (int p = 0; p < kPurposes; ++p)
    memory[NameOf(static_cast<Purpose>(p))] = rank.memory.by_purpose[static_cast<size_t>(p)];
  memory["host"] = rank.memory.host;
  memory["program"] = rank.memory.program;
  memory["total"] = rank.memory.total();
  nlohmann::ordered_json in_host_memory = nlohmann::ordered_json::array();
  for (const TableCost& table : rank.tables)
    if (table.in_host_memory) in_host_memory.push_back(table.name);
  return {{"rank", rank.rank},
          {"tables_in_host_memory", in_host_memory},
          {"memory_bytes", memory},
          {"checkpoint_bytes", rank.memory.checkpoint},
          {"bytes_sent", TrafficJson(rank.sent)},
          {"bytes_sent_in_all", rank.sent_in_all()}};
}

}  // namespace

std::string RanksPlan::ToText() const {
  std::string text = absl::StrCat("layout\n");
  absl::StrAppend(
      &text, Line("ranks", absl::StrCat(layout.world()), absl::StrCat(ranks_per_node, " a node")),
      Line("data x tensor", absl::StrCat(layout.data, " x ", layout.tensor)),
      Line("micro-batches of a rank", absl::StrCat(micro_batches),
           absl::StrCat("of ", config.train.micro_batch_sequences, " windows of ",
                        config.data.sequence_length)));
  absl::StrAppend(&text, MemorySection(*this), TrafficSection(*this), TablesSection(*this),
                  VocabularySection(*this));
  for (const PredictedStage& stage : stages)
    absl::StrAppend(&text, StageSection(stage, config.model.vocab_size, layout.world()));
  if (!layout_warning.empty()) absl::StrAppend(&text, "warning: ", layout_warning, "\n");
  for (const std::string& problem : does_not_fit)
    absl::StrAppend(&text, "DOES NOT FIT: ", problem, "\n");
  return text;
}

std::string RanksPlan::ToJson() const {
  nlohmann::ordered_json json;
  json["layout"] = {{"ranks", layout.world()},
                    {"ranks_per_node", ranks_per_node},
                    {"data", layout.data},
                    {"tensor", layout.tensor},
                    {"micro_batches", micro_batches}};
  json["largest_rank"] = ranks[largest].rank;
  json["busiest_rank"] = ranks[busiest].rank;
  json["mean_memory_bytes"] = mean_memory;
  json["node_memory_bytes"] = node_memory;
  json["checkpoint_bytes"] = checkpoint;
  json["tables_estimated"] = tables_estimated;
  json["busiest_classes"] = busiest_classes;
  if (busiest_candidates) json["busiest_candidates"] = *busiest_candidates;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const PlannedRankCosts& rank : ranks) json["ranks"].push_back(RankJson(rank));
  json["steps"] = nlohmann::ordered_json::array();
  for (const PredictedStage& stage : stages) {
    json["steps"].push_back({{"begin", stage.span.begin},
                             {"end", stage.span.end},
                             {"candidates", stage.span.candidates},
                             {"seconds", stage.step.seconds()},
                             {"exchange_seconds", stage.step.exchange_seconds()},
                             {"tokens_per_second", stage.step.tokens_per_second()},
                             {"computing", PartsJson(stage.step.computing)},
                             {"exchanges", PartsJson(stage.step.exchanges)}});
  }
  json["does_not_fit"] = does_not_fit;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace overtok
