#include "trainer/checkpoint_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/checkpoint_layout.h"

namespace overtok {
namespace {

using Json = nlohmann::ordered_json;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }
uint64_t FromHex(const Json& json) { return std::stoull(json.get<std::string>(), nullptr, 16); }

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

}  // namespace

std::string ToText(const TrainingState& state) {
  Json json = {{"format", "overtok checkpoint state"},
               {"version", kCheckpointVersion},
               {"step", state.step},
               {"sequences", state.sequences},
               {"tokens", state.tokens},
               {"ids_hash", Hex(state.ids_hash)},
               {"metrics_bytes", state.metrics_bytes},
               {"evaluated_step", state.evaluated_step},
               {"threads", state.threads},
               {"layout", {{"data", state.data_ranks}, {"tensor", state.tensor_ranks}}},
               {"model_hash", Hex(state.model_hash)},
               {"optimizer_hash", Hex(state.optimizer_hash)}};
  if (state.best.has_value()) {
    json["best"] = {
        {"metric", state.best->metric}, {"value", state.best->value}, {"step", state.best->step}};
  }
  json["data"] = ToJson(state.data);
  json["identity"] = Json::array();
  for (const auto& [name, value] : state.identity) json["identity"].push_back({name, value});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TrainingState> ParseState(absl::string_view path, const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const int64_t version = json.at("version").get<int64_t>();
    if (version != kCheckpointVersion) return OtherVersion(path, version);
    TrainingState state;
    state.step = json.at("step").get<int64_t>();
    state.sequences = json.at("sequences").get<int64_t>();
    state.tokens = json.at("tokens").get<int64_t>();
    state.ids_hash = FromHex(json.at("ids_hash"));
    state.model_hash = FromHex(json.at("model_hash"));
    state.optimizer_hash = FromHex(json.at("optimizer_hash"));
    state.metrics_bytes = json.at("metrics_bytes").get<int64_t>();
    state.evaluated_step = json.at("evaluated_step").get<int64_t>();
    state.threads = json.at("threads").get<int>();
    state.data_ranks = json.at("layout").at("data").get<int>();
    state.tensor_ranks = json.at("layout").at("tensor").get<int>();
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
