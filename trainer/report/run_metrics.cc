#include "trainer/report/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/io/files.h"

namespace overtok {
namespace {

using Json = nlohmann::json;

// A number; NaN for what is none, the strings "NaN" and "Infinity" included.
double NumberOf(const Json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : kMissing;
}

bool IsNonFiniteText(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  return text == "NaN" || text == "Infinity" || text == "-Infinity";
}

// Adds what an evaluation line says; several lines of one step (one per collection) make one point.
void ReadEvaluation(const Json& line, EvalPoint& point) {
  const auto take = [](double value, double& into) {
    if (std::isfinite(value)) into = value;
  };
  take(NumberOf(line, "throughput/total_tokens"), point.tokens);
  take(NumberOf(line, "flops/6nd_backbone"), point.flops_6nd);
  take(NumberOf(line, "eval/held_out/macro_loss"), point.held_out_macro);
  take(NumberOf(line, "eval/paloma/macro_loss"), point.paloma_macro);
  take(NumberOf(line, "eval/held_out/inclusion_adjusted/macro_loss"), point.held_out_adjusted);
  take(NumberOf(line, "eval/paloma/inclusion_adjusted/macro_loss"), point.paloma_adjusted);
  take(NumberOf(line, "train/current_epoch"), point.passes);
  const auto sampled = line.find("eval/sampled_stage");
  if (sampled != line.end() && sampled->is_boolean()) point.sampled_stage = sampled->get<bool>();
  for (const auto& [key, value] : line.items()) {
    absl::string_view rest = key;
    if (!absl::ConsumePrefix(&rest, "eval/") || !value.is_number()) continue;
    const bool loss = absl::ConsumeSuffix(&rest, "/loss");
    if (!loss && !absl::ConsumeSuffix(&rest, "/bpb")) continue;
    // "held_out/<set>" and "paloma/<subset>"; "eval/loss" and the like are not of a set.
    if (!absl::StrContains(rest, '/') || absl::StrContains(rest, "/inclusion_adjusted")) continue;
    SetScore& score = point.sets[std::string(rest)];
    (loss ? score.loss : score.bpb) = value.get<double>();
  }
}

// What a training line's loss is; NaN where it has none of the names.
TrainPoint ReadTraining(const Json& line, int64_t step) {
  TrainPoint point{step, NumberOf(line, "throughput/total_tokens"), kMissing};
  for (const auto& [kind, name] : {std::pair(LossKind::kFull, "train/loss"),
                                   std::pair(LossKind::kSampled, "train/sampled_softmax_loss"),
                                   std::pair(LossKind::kFocal, "train/focal_loss")}) {
    const double loss = NumberOf(line, name);
    if (!std::isfinite(loss)) continue;
    point.loss = loss;
    point.kind = kind;
    break;
  }
  const double candidates = NumberOf(line, "sampled/main/candidates");
  if (candidates > 0) point.candidates = static_cast<int64_t>(candidates);
  return point;
}

// A stage or a pass that begins; false for other events.
bool ReadMarker(const Json& line, int64_t step, RunMarker* marker) {
  const auto event = line.find("event");
  if (event == line.end() || !event->is_string()) return false;
  marker->step = step;
  marker->tokens = NumberOf(line, "throughput/total_tokens");
  marker->flops_6nd = NumberOf(line, "flops/6nd_backbone");
  if (*event == "pass") {
    marker->kind = RunMarker::Kind::kPass;
    const double pass = NumberOf(line, "pass");
    marker->number = std::isfinite(pass) ? static_cast<int64_t>(pass) : 0;
    return true;
  }
  if (*event != "stage") return false;
  marker->kind = RunMarker::Kind::kStage;
  const auto full = line.find("full_softmax");
  const double candidates = NumberOf(line, "candidates");
  const bool all = full != line.end() && full->is_boolean() && full->get<bool>();
  marker->number = all || !std::isfinite(candidates) ? 0 : static_cast<int64_t>(candidates);
  return true;
}

double Median(std::vector<double> values) {
  if (values.empty()) return kMissing;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// "line 7", "lines 7 and 2 more".
std::string LinesText(const std::vector<int64_t>& lines) {
  if (lines.size() == 1) return absl::StrCat("line ", lines[0]);
  return absl::StrCat("line ", lines[0], " and ", lines.size() - 1, " more");
}

std::vector<std::string> MachineFacts(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadFile(JoinPath(directory, "manifest.json"));
  if (!text.ok()) return {};
  const Json manifest = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("starts")) return {};
  const Json& starts = manifest["starts"];
  if (!starts.is_array() || starts.empty() || !starts.back().is_object()) return {};
  const Json& start = starts.back();
  std::vector<std::string> facts;
  const auto host = start.find("host");
  if (host != start.end() && host->is_object() && host->contains("processor") &&
      (*host)["processor"].is_string()) {
    facts.push_back((*host)["processor"].get<std::string>());
  }
  for (const char* key : {"device", "precision"}) {
    if (start.contains(key) && start[key].is_string()) {
      facts.push_back(start[key].get<std::string>());
    }
  }
  if (start.contains("threads") && start["threads"].is_number_integer()) {
    facts.push_back(absl::StrCat(start["threads"].get<int64_t>(), " threads"));
  }
  facts.erase(std::remove(facts.begin(), facts.end(), ""), facts.end());
  return facts;
}

}  // namespace

double RunMetrics::Last(const std::string& key) const {
  const auto it = last.find(key);
  return it == last.end() ? kMissing : it->second;
}

absl::StatusOr<RunMetrics> ReadRunMetrics(absl::string_view directory) {
  RunMetrics run;
  run.directory = std::string(directory);
  const std::string path = JoinPath(directory, "metrics.jsonl");
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(
        directory, ": ",
        PathExists(directory) ? "no metrics.jsonl in this directory" : "no such directory",
        "; give the checkpoint.directory of a run of `overtok train`"));
  }
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));

  std::map<int64_t, TrainPoint> train;
  std::map<int64_t, EvalPoint> evals;
  std::map<std::pair<int64_t, int>, RunMarker> markers;
  std::map<int64_t, std::vector<double>> durations;
  std::vector<double> rates;
  std::vector<int64_t> unreadable, not_finite;
  double first_time = kMissing, last_time = kMissing;
  int64_t number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(raw).empty()) continue;
    const Json line = Json::parse(raw.begin(), raw.end(), nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      unreadable.push_back(number);
      continue;
    }
    const int64_t step = line["step"].get<int64_t>();
    const std::string kind =
        line.contains("kind") && line["kind"].is_string() ? line["kind"].get<std::string>() : "";
    run.last_step = std::max(run.last_step, step);
    const double time = NumberOf(line, "time");
    if (std::isfinite(time)) {
      if (std::isnan(first_time)) first_time = time;
      last_time = time;
    }
    bool finite = true;
    for (const auto& [key, value] : line.items()) {
      if (value.is_number()) {
        run.last[key] = value.get<double>();
      } else if (IsNonFiniteText(value)) {
        finite = false;
      }
    }
    if (!finite) not_finite.push_back(number);
    if (kind == "train") {
      const TrainPoint point = ReadTraining(line, step);
      if (std::isfinite(point.loss)) train[step] = point;
      const double seconds = NumberOf(line, "throughput/duration");
      if (seconds > 0) durations[point.candidates].push_back(seconds);
      const double rate = NumberOf(line, "throughput/tokens_per_second");
      if (rate > 0) rates.push_back(rate);
    } else if (kind == "eval") {
      EvalPoint& point = evals[step];
      point.step = step;
      ReadEvaluation(line, point);
    } else if (kind == "event") {
      RunMarker marker;
      if (ReadMarker(line, step, &marker)) {
        markers[{step, static_cast<int>(marker.kind)}] = marker;
      }
    }
  }
  if (train.empty() && evals.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " holds no training and no evaluation line yet; nothing to report"));
  }
  for (const auto& [step, point] : train) run.train.push_back(point);
  for (const auto& [step, point] : evals) run.evals.push_back(point);
  for (const auto& [place, marker] : markers) run.markers.push_back(marker);
  for (auto& [candidates, seconds] : durations) {
    run.step_seconds[candidates] = Median(std::move(seconds));
  }
  run.tokens_per_second = Median(rates);
  run.seconds = last_time - first_time;
  if (!unreadable.empty()) {
    run.warnings.push_back(
        absl::StrCat("metrics.jsonl: ", LinesText(unreadable), " left out (not a whole line)"));
  }
  if (!not_finite.empty()) {
    run.warnings.push_back(absl::StrCat("metrics.jsonl: NaN or infinite values in ",
                                        LinesText(not_finite), ", not drawn"));
  }
  const std::string config = JoinPath(directory, "config.yaml");
  if (PathExists(config)) {
    OT_ASSIGN_OR_RETURN(run.config, ReadFile(config));
  }
  run.machine = MachineFacts(run.directory);
  return run;
}

std::vector<std::string> RunNames(const std::vector<std::string>& directories) {
  std::vector<std::string> names;
  std::map<std::string, int> count;
  for (const std::string& directory : directories) {
    absl::string_view path = directory;
    while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
    names.emplace_back(parts.back().empty() || parts.back() == "." ? path : parts.back());
    ++count[names.back()];
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (count[names[i]] > 1) names[i] = directories[i];
  }
  return names;
}

}  // namespace overtok
