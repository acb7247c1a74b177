#include "trainer/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "trainer/checkpoint_tensors.h"

namespace overtok {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr char kMark[] = "complete", kState[] = "state.json", kModel[] = "model.h5",
               kOptimizer[] = "optimizer.h5";
constexpr absl::string_view kPrefix = "step-", kTemporary = ".saving-";
constexpr int kDigits = 8;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }
uint64_t FromHex(const Json& json) { return std::stoull(json.get<std::string>(), nullptr, 16); }
std::string HashOf(absl::string_view text) {
  return Hex(Xxh3(text.data(), static_cast<int64_t>(text.size())));
}

// The step of "step-00000012", -1 for any other name.
int64_t StepOf(absl::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  const absl::string_view digits = name.substr(kPrefix.size());
  int64_t step = -1;
  if (digits.size() < kDigits || !absl::SimpleAtoi(digits, &step)) return -1;
  return step;
}

Json OrNull(const std::optional<uint32_t>& id) { return id.has_value() ? Json(*id) : Json(); }
std::optional<uint32_t> IdOf(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<uint32_t>(json.get<uint32_t>());
}

Json ToJson(const ShardIdentity& data) {
  return {{"tokenizer", data.tokenizer_name},
          {"tokenizer_hash", data.tokenizer_hash},
          {"vocab_size", data.vocab_size},
          {"bos", OrNull(data.bos)},
          {"eos", OrNull(data.eos)},
          {"pad", OrNull(data.pad)},
          {"form",
           {{"bos", data.form.bos},
            {"space_before_eos", data.form.space_before_eos},
            {"eos", data.form.eos},
            {"added_tokens", data.form.added_tokens}}}};
}

ShardIdentity DataFromJson(const Json& json) {
  const Json& form = json.at("form");
  ShardIdentity data;
  data.tokenizer_name = json.at("tokenizer").get<std::string>();
  data.tokenizer_hash = json.at("tokenizer_hash").get<std::string>();
  data.vocab_size = json.at("vocab_size").get<int64_t>();
  data.bos = IdOf(json.at("bos"));
  data.eos = IdOf(json.at("eos"));
  data.pad = IdOf(json.at("pad"));
  data.form.bos = form.at("bos").get<bool>();
  data.form.space_before_eos = form.at("space_before_eos").get<bool>();
  data.form.eos = form.at("eos").get<bool>();
  data.form.added_tokens = form.at("added_tokens").get<bool>();
  return data;
}

std::string ToJson(const TrainingState& state) {
  Json json = {{"format", "overtok checkpoint state"},
               {"version", kVersion},
               {"step", state.step},
               {"sequences", state.sequences},
               {"tokens", state.tokens},
               {"ids_hash", Hex(state.ids_hash)},
               {"metrics_bytes", state.metrics_bytes},
               {"evaluated_step", state.evaluated_step},
               {"threads", state.threads},
               {"model_xxh3", Hex(state.model_hash)},
               {"optimizer_xxh3", Hex(state.optimizer_hash)}};
  if (state.best.has_value()) {
    json["best"] = {
        {"metric", state.best->metric}, {"value", state.best->value}, {"step", state.best->step}};
  }
  json["data"] = ToJson(state.data);
  json["identity"] = Json::array();
  for (const auto& [name, value] : state.identity) json["identity"].push_back({name, value});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TrainingState> FromJson(const std::string& text, absl::string_view path) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version").get<int>() != kVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has version ", json.at("version").get<int>(),
                       " of the format, this program reads ", kVersion));
    }
    TrainingState state;
    state.step = json.at("step").get<int64_t>();
    state.sequences = json.at("sequences").get<int64_t>();
    state.tokens = json.at("tokens").get<int64_t>();
    state.ids_hash = FromHex(json.at("ids_hash"));
    state.model_hash = FromHex(json.at("model_xxh3"));
    state.optimizer_hash = FromHex(json.at("optimizer_xxh3"));
    state.metrics_bytes = json.at("metrics_bytes").get<int64_t>();
    state.evaluated_step = json.at("evaluated_step").get<int64_t>();
    state.threads = json.at("threads").get<int>();
    if (json.contains("best")) {
      const Json& best = json.at("best");
      state.best = BestValue{best.at("metric").get<std::string>(), best.at("value").get<double>(),
                             best.at("step").get<int64_t>()};
    }
    state.data = DataFromJson(json.at("data"));
    for (const Json& entry : json.at("identity")) {
      state.identity.emplace_back(entry.at(0).get<std::string>(), entry.at(1).get<std::string>());
    }
    return state;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not the state of a checkpoint: ", std::string(error.what())));
  }
}

std::vector<NamedTensor> ModelTensors(const ParameterSet& parameters) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : parameters.all()) {
    tensors.push_back({parameter.spec.name, parameter.value});
  }
  return tensors;
}

std::vector<NamedTensor> OptimizerTensors(const std::vector<NamedState>& optimizer) {
  std::vector<NamedTensor> tensors;
  tensors.reserve(optimizer.size());
  for (const NamedState& state : optimizer) tensors.push_back({state.name, state.tensor});
  return tensors;
}

int64_t BytesOf(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& entry : tensors) bytes += entry.tensor.bytes();
  return bytes;
}

absl::Status WriteInto(const std::string& directory, TrainingState state,
                       const ParameterSet& parameters, const std::vector<NamedState>& optimizer) {
  OT_RETURN_IF_ERROR(CreateDirectories(directory));
  OT_ASSIGN_OR_RETURN(state.model_hash, WriteTensors(JoinPath(directory, kModel), "model",
                                                     state.step, ModelTensors(parameters)));
  OT_ASSIGN_OR_RETURN(state.optimizer_hash,
                      WriteTensors(JoinPath(directory, kOptimizer), "optimizer", state.step,
                                   OptimizerTensors(optimizer)));
  OT_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(directory, kState), ToJson(state)));
  return FsyncDirectory(directory);
}

absl::StatusOr<std::string> MarkOf(const std::string& directory) {
  OT_ASSIGN_OR_RETURN(const int64_t model, FileSize(JoinPath(directory, kModel)));
  OT_ASSIGN_OR_RETURN(const int64_t optimizer, FileSize(JoinPath(directory, kOptimizer)));
  OT_ASSIGN_OR_RETURN(const std::string state, ReadFile(JoinPath(directory, kState)));
  const Json json = {{"format", "overtok checkpoint mark"},
                     {"version", kVersion},
                     {"state_xxh3", HashOf(state)},
                     {"model_bytes", model},
                     {"optimizer_bytes", optimizer}};
  return json.dump(1) + "\n";
}

}  // namespace

std::string CheckpointStore::PathOf(int64_t step) const {
  return JoinPath(directory_, absl::StrFormat("step-%08d", step));
}

int64_t CheckpointStore::Bytes(const ParameterSet& parameters,
                               const std::vector<NamedState>& optimizer) {
  const std::vector<NamedTensor> model = ModelTensors(parameters);
  const std::vector<NamedTensor> state = OptimizerTensors(optimizer);
  // A dataset starts on a page and has a header of about a kilobyte.
  constexpr int64_t kPerTensor = 4096 + 2048, kRest = int64_t{1} << 20;
  return BytesOf(model) + BytesOf(state) +
         static_cast<int64_t>(model.size() + state.size()) * kPerTensor + kRest;
}

absl::StatusOr<std::vector<int64_t>> CheckpointStore::Marked() const {
  std::vector<int64_t> steps;
  if (!PathExists(directory_)) return steps;
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    const int64_t step = StepOf(name);
    if (step >= 0 && PathExists(JoinPath(JoinPath(directory_, name), kMark))) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::Status CheckpointStore::Save(const TrainingState& state, const ParameterSet& parameters,
                                   const std::vector<NamedState>& optimizer) const {
  const std::string target = PathOf(state.step);
  const std::string context = absl::StrCat("saving ", target);
  if (PathExists(JoinPath(target, kMark))) {
    return Annotate(RemoveLeftovers(state.step), context);  // which may have been interrupted
  }
  OT_RETURN_IF_ERROR(CreateDirectories(directory_));
  OT_RETURN_IF_ERROR(Annotate(CheckFreeSpace(directory_, Bytes(parameters, optimizer)), context));
  const std::string temporary = JoinPath(
      directory_, absl::StrCat(kTemporary, absl::StrFormat("%08d", state.step), "-", getpid()));
  absl::Status status = WriteInto(temporary, state, parameters, optimizer);
  // An unmarked directory of this step is what an earlier save left behind.
  if (status.ok()) status = RemoveTree(target);
  if (status.ok()) status = RenamePath(temporary, target);
  if (status.ok()) {
    const absl::StatusOr<std::string> mark = MarkOf(target);
    status = mark.ok() ? WriteFileAtomically(JoinPath(target, kMark), *mark) : mark.status();
  }
  if (!status.ok()) {
    // The message of the failure matters more than that of the cleaning up.
    if (!PathExists(JoinPath(target, kMark))) {
      RemoveTree(temporary).IgnoreError();
      RemoveTree(target).IgnoreError();
    }
    return Annotate(status, context);
  }
  return Annotate(RemoveLeftovers(state.step), context);
}

absl::Status CheckpointStore::RemoveLeftovers(int64_t newest) const {
  OT_ASSIGN_OR_RETURN(std::vector<int64_t> marked, Marked());
  while (static_cast<int64_t>(marked.size()) > std::max<int64_t>(keep_, 1)) {
    const std::string path = PathOf(marked.front());
    // The mark goes first: a removal that is interrupted must not leave half a checkpoint marked.
    OT_RETURN_IF_ERROR(RemoveTree(JoinPath(path, kMark)));
    OT_RETURN_IF_ERROR(RemoveTree(path));
    marked.erase(marked.begin());
  }
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    const int64_t step = StepOf(name);
    const bool unmarked =
        step >= 0 && step <= newest && !PathExists(JoinPath(JoinPath(directory_, name), kMark));
    if (unmarked || name.compare(0, kTemporary.size(), std::string(kTemporary)) == 0) {
      OT_RETURN_IF_ERROR(RemoveTree(JoinPath(directory_, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::CheckMark(int64_t step) const {
  const std::string directory = PathOf(step), path = JoinPath(directory, kMark);
  if (!PathExists(path)) {
    OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, Marked());
    std::string known;
    for (const int64_t s : marked) absl::StrAppend(&known, known.empty() ? "" : ", ", s);
    return absl::NotFoundError(
        absl::StrCat("there is no finished checkpoint ", directory,
                     "; finished ones are of the steps: ", known.empty() ? "none" : known));
  }
  OT_ASSIGN_OR_RETURN(const std::string mark, ReadFile(path));
  OT_ASSIGN_OR_RETURN(const std::string expected, MarkOf(directory));
  if (mark != expected) {
    return absl::DataLossError(absl::StrCat(
        directory,
        ": sizes or state do not match its completion mark: a file was changed or cut off after "
        "the save; remove the directory to go on from the checkpoint before"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingState> CheckpointStore::ReadState(int64_t step) const {
  OT_RETURN_IF_ERROR(CheckMark(step));
  const std::string path = JoinPath(PathOf(step), kState);
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  OT_ASSIGN_OR_RETURN(TrainingState state, FromJson(text, path));
  if (state.step != step) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is of step ", state.step, ": it was put there by hand"));
  }
  return state;
}

absl::Status CheckpointStore::CheckHash(int64_t step, uint64_t found, bool model) const {
  OT_ASSIGN_OR_RETURN(const TrainingState state, ReadState(step));
  if (found == (model ? state.model_hash : state.optimizer_hash)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(JoinPath(PathOf(step), model ? kModel : kOptimizer),
                                          " is not the file that was saved with ", kState,
                                          ": it belongs to another checkpoint"));
}

absl::Status CheckpointStore::LoadModel(int64_t step, ParameterSet* parameters) const {
  OT_ASSIGN_OR_RETURN(const uint64_t hash, ReadTensors(JoinPath(PathOf(step), kModel), "model",
                                                       step, ModelTensors(*parameters)));
  return CheckHash(step, hash, true);
}

absl::Status CheckpointStore::LoadOptimizer(int64_t step,
                                            const std::vector<NamedState>& optimizer) const {
  OT_ASSIGN_OR_RETURN(const uint64_t hash,
                      ReadTensors(JoinPath(PathOf(step), kOptimizer), "optimizer", step,
                                  OptimizerTensors(optimizer)));
  return CheckHash(step, hash, false);
}

absl::Status CheckpointStore::LoadTables(int64_t step, const ParameterSet& parameters) const {
  const std::vector<NamedState> tables = parameters.table_states();
  if (tables.empty()) return absl::OkStatus();
  OT_RETURN_IF_ERROR(CheckMark(step));
  return ReadSomeTensors(JoinPath(PathOf(step), kOptimizer), "optimizer", step,
                         OptimizerTensors(tables));
}

absl::Status CheckIdentity(absl::string_view path, const Identity& found,
                           const Identity& expected) {
  for (const auto& entry : expected) {
    const std::string& name = entry.first;
    const std::string& value = entry.second;
    const auto it =
        std::find_if(found.begin(), found.end(), [&](const auto& e) { return e.first == name; });
    const std::string other = it == found.end() ? "no value" : it->second;
    if (it != found.end() && other == value) continue;
    // A key of an option that is off, and that did not exist when the checkpoint was written.
    if (it == found.end() && value == "null") continue;
    return absl::FailedPreconditionError(absl::StrCat(
        path, " was made by another configuration: ", name, " is ", other, " there and ", value,
        " here; restore the value, or choose another checkpoint.directory"));
  }
  return absl::OkStatus();
}

}  // namespace overtok
