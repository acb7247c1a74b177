// The plan for people and for programs.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/console.h"
#include "trainer/plan.h"
#include "trainer/table_memory.h"

namespace overtok {
namespace {

std::string Line(absl::string_view name, absl::string_view value, absl::string_view note = "") {
  return absl::StrFormat("  %-22s %14s  %s\n", name, value, note);
}

std::string Share(double part, double whole) {
  return absl::StrFormat("%.1f %%", 100 * part / whole);
}

std::string Flops(double value) { return absl::StrFormat("%.5g", value); }

std::string FlopsSection(absl::string_view title, const ForwardFlops& flops, double run) {
  std::string text = absl::StrCat(title, "\n");
  absl::StrAppend(
      &text, Line("blocks", FormatCount(flops.matrices), Share(flops.matrices, flops.total())),
      Line("attention", FormatCount(flops.attention), Share(flops.attention, flops.total())),
      Line("head", FormatCount(flops.head), Share(flops.head, flops.total())));
  const auto method = [&](absl::string_view name, double part) {
    if (part > 0) absl::StrAppend(&text, Line(name, FormatCount(part), Share(part, flops.total())));
  };
  method("input tables", flops.ngram_embedding);
  method("second token head", flops.second_token_head);
  method("n-gram heads", flops.ngram_head);
  absl::StrAppend(&text, Line("forward", FormatCount(flops.total())),
                  Line("training", FormatCount(flops.training()), "forward and backward"));
  if (run > 0) absl::StrAppend(&text, Line("whole run", Flops(run)));
  return text;
}

nlohmann::ordered_json FlopsJson(const ForwardFlops& flops, double run) {
  return {{"blocks", flops.matrices},
          {"attention", flops.attention},
          {"head", flops.head},
          {"ngram_embedding", flops.ngram_embedding},
          {"second_token_head", flops.second_token_head},
          {"ngram_head", flops.ngram_head},
          {"forward", flops.total()},
          {"training", flops.training()},
          {"run", run}};
}

std::string Signed(int64_t bytes) {
  return absl::StrCat(bytes < 0 ? "-" : "+", FormatBytes(std::abs(bytes)));
}

std::string StagesSection(const Plan& plan) {
  if (!plan.config.loss.sampled_softmax || plan.stages.empty()) return "";
  std::string text = "stages of the vocabulary heads\n";
  const auto classes = static_cast<double>(plan.config.model.vocab_size);
  for (const StageSpan& stage : plan.stages) {
    const bool full = stage.candidates == plan.config.model.vocab_size;
    absl::StrAppend(&text,
                    Line(absl::StrFormat("steps %d to %d", stage.begin, stage.end - 1),
                         absl::StrCat(stage.candidates),
                         full ? "every class"
                              : absl::StrCat("candidates, ",
                                             Share(static_cast<double>(stage.candidates), classes),
                                             " of the classes")));
  }
  return text;
}

std::string TablesSection(const Plan& plan) {
  if (plan.tables.empty()) return "";
  std::string text =
      "hashed tables: rows x width, values + state, at most so much to and fro a step\n";
  for (const TableCost& table : plan.tables) {
    absl::StrAppend(&text, Line(absl::StrFormat("%s (%d-grams)", table.name, table.order),
                                absl::StrFormat("%d x %d", table.rows, table.width),
                                absl::StrCat(FormatBytes(table.value_bytes), " + ",
                                             FormatBytes(table.state_bytes), ", ",
                                             FormatBytes(table.step_bytes), " a step",
                                             table.in_host_memory ? ", in host memory" : "")));
  }
  const TableTotals totals = TotalOf(plan.tables);
  absl::StrAppend(&text, Line("parameters", absl::StrCat(totals.parameters)),
                  Line("values and state", FormatBytes(totals.value_bytes + totals.state_bytes)),
                  Line("bytes a step", FormatBytes(totals.step_bytes),
                       "at most; U <= min(rows, tokens a step) rows, see docs/configuration.md"));
  if (totals.host_bytes > 0) {
    absl::StrAppend(&text, Line("in host memory", FormatBytes(totals.host_bytes),
                                "of values and state; a step brings the rows that it touches"));
  }
  if (!plan.tables_placed) absl::StrAppend(&text, "  ", kTablesNotPlaced, "\n");
  if (plan.table_parameters_per_token) {
    absl::StrAppend(&text, Line("parameters per token",
                                absl::StrFormat("%.3g", *plan.table_parameters_per_token),
                                "input tables over distinct tokens of the run"));
  }
  text += "the same tables with one setting of optimizer.tables: values, state, bytes a step\n";
  for (const TableOption& option : plan.table_options) {
    absl::StrAppend(&text, Line(option.setting, FormatBytes(option.totals.value_bytes),
                                absl::StrFormat("%14s %14s", FormatBytes(option.totals.state_bytes),
                                                FormatBytes(option.totals.step_bytes))));
  }
  return text;
}

std::string MethodsSection(const Plan& plan) {
  if (!plan.methods) return "";
  const MethodCosts& costs = *plan.methods;
  return absl::StrCat(
      "the methods add\n", Line("parameters", absl::StrFormat("%+d", costs.parameters)),
      Line("memory", Signed(costs.memory)), Line("one checkpoint", Signed(costs.checkpoint)),
      Line("forward FLOPs a token", absl::StrCat(costs.forward_flops < 0 ? "-" : "+",
                                                 FormatCount(std::abs(costs.forward_flops)))),
      Line("training FLOPs", absl::StrFormat("x %.3f", costs.relative_training),
           "of those without the methods, causal attention"));
}

nlohmann::ordered_json TotalsJson(const TableTotals& totals) {
  return {{"parameters", totals.parameters},
          {"value_bytes", totals.value_bytes},
          {"state_bytes", totals.state_bytes},
          {"step_bytes", totals.step_bytes},
          {"host_bytes", totals.host_bytes}};
}

nlohmann::ordered_json TablesJson(const Plan& plan) {
  nlohmann::ordered_json json;
  json["tables"] = nlohmann::ordered_json::array();
  for (const TableCost& table : plan.tables) {
    json["tables"].push_back({{"name", table.name},
                              {"order", table.order},
                              {"rows", table.rows},
                              {"width", table.width},
                              {"parameters", table.parameters()},
                              {"value_bytes", table.value_bytes},
                              {"state_bytes", table.state_bytes},
                              {"memory", table.in_host_memory ? "host" : "device"},
                              {"touched_rows", table.touched_rows},
                              {"step_bytes", table.step_bytes}});
  }
  json["total"] = TotalsJson(TotalOf(plan.tables));
  if (plan.table_parameters_per_token) {
    json["parameters_per_token"] = *plan.table_parameters_per_token;
  }
  json["options"] = nlohmann::ordered_json::object();
  for (const TableOption& option : plan.table_options) {
    json["options"][option.setting] = TotalsJson(option.totals);
  }
  return json;
}

}  // namespace

std::string Plan::ToText() const {
  std::string text = "parameters\n";
  const auto count = [](int64_t n) { return absl::StrFormat("%d", n); };
  absl::StrAppend(
      &text,
      Line("muonh", count(parameters.muonh()),
           absl::StrCat("matrices of the blocks (N of 6ND): ", parameters.block_matrices())),
      Line("adamh", count(parameters.adamh()),
           config.model.tie_word_embeddings ? "the main head is the token embedding"
                                            : "heads over the vocabulary"),
      Line("adam", count(parameters.adam()), "token embedding, norm gains, hashed tables"),
      Line("total", count(parameters.total())));
  absl::StrAppend(&text, "memory of a training run\n");
  for (int p = 0; p < kPurposes; ++p) {
    absl::StrAppend(&text, Line(NameOf(static_cast<Purpose>(p)),
                                FormatBytes(memory.by_purpose[static_cast<size_t>(p)])));
  }
  if (memory.device != DeviceKind::kCuda) {
    absl::StrAppend(&text, Line("host", FormatBytes(memory.host), "program, batches read ahead"),
                    Line("total", FormatBytes(memory.total())));
  } else {
    absl::StrAppend(&text, Line("GPU in all", FormatBytes(memory.purposes())),
                    Line("host", FormatBytes(memory.host),
                         "program, batches read ahead, copies of what checkpoints hold"));
  }
  absl::StrAppend(&text, FlopsSection("FLOPs per token, as levanter counts (full attention)", flops,
                                      training_flops));
  absl::StrAppend(&text, FlopsSection("FLOPs per token, causal attention", causal_flops,
                                      causal_training_flops));
  if (methods) {
    absl::StrAppend(&text, FlopsSection("FLOPs per token that this run computes, averaged over its "
                                        "steps",
                                        actual_flops, actual_training_flops));
  }
  absl::StrAppend(&text, MethodsSection(*this), TablesSection(*this), StagesSection(*this));
  absl::StrAppend(&text, "run\n");
  if (tokens > 0) {
    absl::StrAppend(&text, Line("steps", count(config.train.steps)),
                    Line("tokens (D)", count(tokens), FormatCount(static_cast<double>(tokens))),
                    Line("6ND", Flops(backbone_flops)));
  } else {
    absl::StrAppend(&text, Line("steps", "?", "train.passes_over_data needs the corpus"));
  }
  if (windows.has_value()) {
    absl::StrAppend(&text, Line("tokens of the corpus", count(*corpus_tokens)),
                    Line("windows of the corpus", count(*windows)),
                    Line("passes over the data", absl::StrFormat("%.4g", passes)));
  } else {
    absl::StrAppend(&text, Line("passes over the data", "?", "the corpus cannot be read: "), "    ",
                    corpus_problem, "\n");
  }
  absl::StrAppend(
      &text, "disk\n", Line("one checkpoint", FormatBytes(memory.checkpoint)),
      Line("in all", FormatBytes(disk),
           absl::StrCat("checkpoint.keep + 1 = ", config.checkpoint.keep + 1, " while saving")));
  for (const std::string& warning : warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  for (const std::string& problem : does_not_fit) {
    absl::StrAppend(&text, "DOES NOT FIT: ", problem, "\n");
  }
  return text;
}

std::string Plan::ToJson() const {
  nlohmann::ordered_json json;
  json["parameters"] = {{"muonh", parameters.muonh()},       {"adamh", parameters.adamh()},
                        {"adam", parameters.adam()},         {"tables", parameters.tables()},
                        {"baseline", parameters.baseline()}, {"total", parameters.total()}};
  json["memory_bytes"] = nlohmann::ordered_json::object();
  for (int p = 0; p < kPurposes; ++p) {
    json["memory_bytes"][NameOf(static_cast<Purpose>(p))] =
        memory.by_purpose[static_cast<size_t>(p)];
  }
  json["memory_bytes"]["host"] = memory.host;
  json["memory_bytes"]["total"] = memory.total();
  json["flops_per_token"] = FlopsJson(flops, training_flops);
  json["flops_per_token_causal"] = FlopsJson(causal_flops, causal_training_flops);
  json["flops_per_token_computed"] = FlopsJson(actual_flops, actual_training_flops);
  json["stages"] = nlohmann::ordered_json::array();
  for (const StageSpan& stage : stages) {
    json["stages"].push_back(
        {{"begin", stage.begin}, {"end", stage.end}, {"candidates", stage.candidates}});
  }
  if (!tables.empty()) json["tables"] = TablesJson(*this);
  if (methods) {
    json["methods_add"] = {{"parameters", methods->parameters},
                           {"memory_bytes", methods->memory},
                           {"checkpoint_bytes", methods->checkpoint},
                           {"forward_flops_per_token", methods->forward_flops},
                           {"relative_training_flops", methods->relative_training}};
  }
  json["run"] = {{"steps", config.train.steps}, {"tokens", tokens}, {"6nd", backbone_flops}};
  if (windows.has_value()) {
    json["corpus"] = {{"tokens", *corpus_tokens}, {"windows", *windows}, {"passes", passes}};
  } else {
    json["corpus"] = {{"problem", corpus_problem}};
  }
  json["disk_bytes"] = {{"checkpoint", memory.checkpoint}, {"total", disk}};
  json["warnings"] = warnings;
  json["does_not_fit"] = does_not_fit;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace overtok
