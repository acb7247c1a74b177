#include "model/hf_config.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/io/files.h"

namespace overtok {
namespace {

using nlohmann::json;

// Never throws, whatever the text.
std::string Show(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string Show(double value) { return Show(json(value)); }

class Comparison {
 public:
  explicit Comparison(const json& file) : file_(file) {}

  void Whole(const char* key, int64_t ours) {
    const json* value = Find(key);
    if (value == nullptr) return Missing(key, absl::StrCat(ours));
    // Written as 64.0 or "64" it is no whole number to other readers either.
    const bool equal = value->is_number_integer() && *value == ours;
    if (!equal) Differ(key, absl::StrCat(ours), Show(*value));
  }

  void Real(const char* key, double ours) {
    const json* value = Find(key);
    if (value == nullptr) return Missing(key, Show(ours));
    if (!value->is_number() || value->get<double>() != ours) Differ(key, Show(ours), Show(*value));
  }

  // What the file may leave out: `initial` then, as its own library has it.
  void Bool(const char* key, bool ours, bool initial) {
    const json* value = Find(key);
    const json stated = value == nullptr ? json(initial) : *value;
    if (stated != json(ours)) {
      Differ(key, ours ? "true" : "false",
             absl::StrCat(Show(stated), value == nullptr ? " (its default)" : ""));
    }
  }

  // Newer files have it inside rope_parameters, where it goes before the older place.
  void RopeTheta(double ours) {
    const json* value = Find("rope_theta");
    std::string where = "rope_theta";
    for (const char* section : {"rope_parameters", "rope_scaling"}) {
      const json* rope = Find(section);
      if (rope == nullptr) continue;
      if (!rope->is_object()) {
        differences_.push_back(
            absl::StrCat(section, " in the file is ", Show(*rope), "; expected an object or null"));
        continue;
      }
      for (const char* key : {"rope_type", "type"}) {
        if (rope->contains(key) && (*rope)[key] != "default") {
          differences_.push_back(absl::StrCat(section, ".", key, " in the file is ",
                                              Show((*rope)[key]), "; only default exists here"));
        }
      }
      if (rope->contains("rope_theta")) {
        value = &(*rope)["rope_theta"];
        where = absl::StrCat(section, ".rope_theta");
        break;
      }
    }
    constexpr double kDefault = 10000;
    const bool equal =
        value == nullptr ? ours == kDefault : value->is_number() && value->get<double>() == ours;
    if (equal) return;
    differences_.push_back(
        absl::StrCat("model.rope_theta is ", Show(ours), ", ", where, " in the file is ",
                     value == nullptr ? "not given, that is 10000" : Show(*value)));
  }

  // A setting that the architecture here does not have; `only` is what the file may say.
  void Fixed(const char* key, const json& only) {
    const json* value = Find(key);
    if (value == nullptr || *value == only) return;
    differences_.push_back(
        absl::StrCat(key, " in the file is ", Show(*value), "; only ", Show(only), " exists here"));
  }

  void ModelType() {
    const json* value = Find("model_type");
    if (value != nullptr && *value == "qwen3") return;
    differences_.push_back(absl::StrCat("model_type in the file is ",
                                        value == nullptr ? "not given" : Show(*value),
                                        "; expected \"qwen3\""));
  }

  std::vector<std::string> differences() && { return std::move(differences_); }

 private:
  // Null counts as not given.
  const json* Find(const char* key) const {
    const auto at = file_.find(key);
    return at == file_.end() || at->is_null() ? nullptr : &*at;
  }
  void Differ(const char* key, const std::string& ours, const std::string& theirs) {
    differences_.push_back(
        absl::StrCat("model.", key, " is ", ours, ", ", key, " in the file is ", theirs));
  }
  void Missing(const char* key, const std::string& ours) { Differ(key, ours, "not given"); }

  const json& file_;
  std::vector<std::string> differences_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> CompareWithHfConfig(absl::string_view path,
                                                             const ModelConfig& model) {
  constexpr int64_t kLimit = int64_t{1} << 24;
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kLimit));
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded() || !file.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  }
  Comparison comparison(file);
  comparison.ModelType();
  comparison.Whole("vocab_size", model.vocab_size);
  comparison.Whole("hidden_size", model.hidden_size);
  comparison.Whole("intermediate_size", model.intermediate_size);
  comparison.Whole("num_hidden_layers", model.num_hidden_layers);
  comparison.Whole("num_attention_heads", model.num_attention_heads);
  comparison.Whole("num_key_value_heads", model.num_key_value_heads);
  comparison.Whole("head_dim", model.head_dim);
  comparison.RopeTheta(model.rope_theta);
  comparison.Real("rms_norm_eps", model.rms_norm_eps);
  comparison.Bool("tie_word_embeddings", model.tie_word_embeddings, false);
  comparison.Fixed("attention_bias", false);
  comparison.Fixed("hidden_act", "silu");
  comparison.Fixed("use_sliding_window", false);
  return std::move(comparison).differences();
}

}  // namespace overtok
