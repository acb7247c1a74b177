// Keys whose values are lists of numbers or of mappings.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/config/key.h"
#include "trainer/config/key_read.h"
#include "trainer/config/numbers.h"
#include "trainer/config/suggest.h"

namespace overtok {
namespace {

template <class T>
const T& Get(Field<T> field, const Config& config) {
  return field(const_cast<Config&>(config));
}

std::string FormatWholes(const std::vector<int64_t>& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

absl::Status ReadWholes(const YamlValue& value, absl::string_view type, int64_t least,
                        std::vector<int64_t>* out) {
  if (value.kind != YamlValue::Kind::kList) return Expected(value, type);
  out->clear();
  for (const YamlValue& item : value.children) {
    OT_RETURN_IF_ERROR(
        ReadWhole(item, least, std::numeric_limits<int64_t>::max(), &out->emplace_back()));
  }
  return absl::OkStatus();
}

constexpr char kStageForm[] = "{until: 0.57, candidates: 24576}";

absl::Status ReadStage(const YamlValue& value, SampledStage* stage) {
  if (value.kind != YamlValue::Kind::kMap) {
    return Expected(value, absl::StrCat("a mapping like ", kStageForm, " in this list"));
  }
  for (const YamlValue& child : value.children) {
    absl::Status read;
    if (child.key == "until") {
      read = ReadReal(child, {0, 1, true}, &stage->until);
    } else if (child.key == "candidates") {
      read = ReadWhole(child, 1, int64_t{1} << 31, &stage->candidates);
    } else {
      const std::string near = Nearest(child.key, {"until", "candidates"});
      return absl::InvalidArgumentError(
          absl::StrCat("a stage has no key ", child.key, "; ",
                       near.empty() ? "its keys are until and candidates"
                                    : absl::StrCat("did you mean ", near, "?")));
    }
    if (!read.ok()) return Annotate(read, child.key);
  }
  for (const char* key : {"until", "candidates"}) {
    if (value.Find(key) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("a stage lacks ", key, "; expected a mapping like ", kStageForm));
    }
  }
  return absl::OkStatus();
}

std::string FormatStages(const std::vector<SampledStage>& stages) {
  const auto format = [](std::string* out, const SampledStage& stage) {
    absl::StrAppend(out, "{until: ", FormatReal(stage.until), ", candidates: ", stage.candidates,
                    "}");
  };
  return absl::StrCat("[", absl::StrJoin(stages, ", ", format), "]");
}

}  // namespace

Key WholesKey(std::string name, Field<std::vector<int64_t>> field, int64_t least,
              std::string initial, std::string doc) {
  Key key;
  key.name = std::move(name);
  key.type = "list of whole numbers";
  key.initial = std::move(initial);
  key.doc = std::move(doc);
  key.read = [=](const YamlValue& value, Config* config) {
    return ReadWholes(value, "a list of whole numbers", least, &field(*config));
  };
  key.write = [=](const Config& config) { return FormatWholes(Get(field, config)); };
  return key;
}

Key WholesChoiceKey(std::string name, Field<std::vector<int64_t>> field,
                    const std::vector<std::vector<int64_t>>& choices, std::string initial,
                    std::string doc) {
  Key key;
  key.name = std::move(name);
  key.type = absl::StrJoin(choices, " | ", [](std::string* out, const std::vector<int64_t>& list) {
    absl::StrAppend(out, FormatWholes(list));
  });
  key.initial = std::move(initial);
  key.doc = std::move(doc);
  key.read = [=, type = key.type](const YamlValue& value, Config* config) -> absl::Status {
    std::vector<int64_t> numbers;
    OT_RETURN_IF_ERROR(ReadWholes(value, type, 0, &numbers));
    if (std::find(choices.begin(), choices.end(), numbers) == choices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(FormatWholes(numbers), " is not valid; expected ", type));
    }
    field(*config) = std::move(numbers);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) { return FormatWholes(Get(field, config)); };
  return key;
}

Key StagesKey(std::string name, Field<std::vector<SampledStage>> field, std::string initial,
              std::string doc) {
  Key key;
  key.name = std::move(name);
  key.type = "list of {until, candidates}";
  key.initial = std::move(initial);
  key.doc = std::move(doc);
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    const std::string type = absl::StrCat("a list like [", kStageForm, "]");
    if (value.kind != YamlValue::Kind::kList) return Expected(value, type);
    if (value.children.empty()) {
      return absl::InvalidArgumentError(
          "an empty list is not valid; expected at least one stage; for the full softmax "
          "throughout, write loss.sampled_softmax: null");
    }
    std::vector<SampledStage> stages;
    for (const YamlValue& item : value.children) {
      OT_RETURN_IF_ERROR(ReadStage(item, &stages.emplace_back()));
      const size_t n = stages.size();
      if (n > 1 && stages[n - 1].until <= stages[n - 2].until) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the stage until ", FormatReal(stages[n - 1].until), " follows the one until ",
            FormatReal(stages[n - 2].until), "; expected ascending fractions of the run"));
      }
    }
    field(*config) = std::move(stages);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) { return FormatStages(Get(field, config)); };
  return key;
}

}  // namespace overtok
