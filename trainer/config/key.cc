#include "trainer/config/key.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/config/key_read.h"
#include "trainer/config/numbers.h"
#include "trainer/config/suggest.h"

namespace overtok {
namespace {

// The fields are reached through a non-const reference; writing only reads them.
template <class T>
const T& Get(Field<T> field, const Config& config) {
  return field(const_cast<Config&>(config));
}

Key NewKey(std::string name, std::string type, std::string initial, std::string doc) {
  Key key;
  key.name = std::move(name);
  key.type = std::move(type);
  key.initial = std::move(initial);
  key.doc = std::move(doc);
  return key;
}

}  // namespace

Key Key::WithHint(std::string hint) && {
  read = [inner = std::move(read), hint = std::move(hint)](const YamlValue& value, Config* config) {
    absl::Status status = inner(value, config);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat(status.message(), "; ", hint));
  };
  return std::move(*this);
}

Key Key::OrAuto(std::string meaning) && {
  takes_auto = true;
  auto_doc = std::move(meaning);
  type += " or auto";
  return std::move(*this);
}

std::string FormatText(absl::string_view text) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("/._-*?+=@%").find(c) != absl::string_view::npos;
  };
  const auto first = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '.' || c == '_';
  };
  const std::string lower = absl::AsciiStrToLower(text);
  const bool word = lower == "null" || lower == "auto" || lower == "y" || lower == "n" ||
                    IsBooleanWord(text) || LooksLikeNumber(text);
  if (!text.empty() && !word && first(text[0]) && std::all_of(text.begin(), text.end(), plain)) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted.push_back('\\');
      quoted.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

Key WholeKey(std::string name, Field<int64_t> field, int64_t least, int64_t most,
             std::string initial, std::string doc) {
  Key key = NewKey(std::move(name), WholeType(least, most), std::move(initial), std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) {
    return ReadWhole(value, least, most, &field(*config));
  };
  key.write = [=](const Config& config) { return absl::StrCat(Get(field, config)); };
  return key;
}

Key OptionalWholeKey(std::string name, Field<std::optional<int64_t>> field, int64_t least,
                     std::string doc) {
  constexpr int64_t kMost = int64_t{1} << 53;
  Key key = NewKey(std::move(name), WholeType(least, kMost) + " or null", "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    field(*config).reset();
    if (IsNull(value)) return absl::OkStatus();
    int64_t number = 0;
    OT_RETURN_IF_ERROR(ReadWhole(value, least, kMost, &number));
    field(*config) = number;
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) {
    const auto& number = Get(field, config);
    return number ? absl::StrCat(*number) : "null";
  };
  return key;
}

Key SeedKey(std::string name, Field<uint64_t> field, std::string initial, std::string doc) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Key key = NewKey(std::move(name), WholeType(0, kMost), std::move(initial), std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    int64_t number = 0;
    OT_RETURN_IF_ERROR(ReadWhole(value, 0, kMost, &number));
    field(*config) = static_cast<uint64_t>(number);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) { return absl::StrCat(Get(field, config)); };
  return key;
}

Key RealKey(std::string name, Field<double> field, Range range, std::string initial,
            std::string doc) {
  Key key = NewKey(std::move(name), RealType(range), std::move(initial), std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) {
    return ReadReal(value, range, &field(*config));
  };
  key.write = [=](const Config& config) { return FormatReal(Get(field, config)); };
  return key;
}

Key OptionalRealKey(std::string name, Field<std::optional<double>> field, Range range,
                    std::string doc) {
  Key key = NewKey(std::move(name), RealType(range) + " or null", "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    field(*config).reset();
    if (IsNull(value)) return absl::OkStatus();
    double number = 0;
    OT_RETURN_IF_ERROR(ReadReal(value, range, &number));
    field(*config) = number;
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) {
    const auto& number = Get(field, config);
    return number ? FormatReal(*number) : "null";
  };
  return key;
}

Key BoolKey(std::string name, Field<bool> field, std::string initial, std::string doc) {
  Key key = NewKey(std::move(name), "true or false", std::move(initial), std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    const bool plain = value.kind == YamlValue::Kind::kScalar && !value.quoted;
    if (!plain || (value.text != "true" && value.text != "false")) {
      const bool word = value.kind == YamlValue::Kind::kScalar && IsBooleanWord(value.text);
      return Expected(
          value, "true or false",
          word ? "only these two words, in lower case and without quotes, are booleans" : "");
    }
    field(*config) = value.text == "true";
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) { return Get(field, config) ? "true" : "false"; };
  return key;
}

Key TextKey(std::string name, Field<std::string> field, std::string doc) {
  Key key = NewKey(std::move(name), "text or null", "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    field(*config).clear();
    if (IsNull(value)) return absl::OkStatus();
    return ReadText(value, "a text or null", &field(*config));
  };
  key.write = [=](const Config& config) {
    const std::string& text = Get(field, config);
    return text.empty() ? "null" : FormatText(text);
  };
  return key;
}

Key OptionalTextKey(std::string name, Field<std::optional<std::string>> field, std::string doc) {
  Key key = NewKey(std::move(name), "text or null", "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    field(*config).reset();
    if (IsNull(value)) return absl::OkStatus();
    std::string text;
    OT_RETURN_IF_ERROR(ReadText(value, "a text or null", &text));
    field(*config) = std::move(text);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) {
    const auto& text = Get(field, config);
    return text ? FormatText(*text) : "null";
  };
  return key;
}

Key TextsKey(std::string name, Field<std::vector<std::string>> field, std::string doc) {
  Key key = NewKey(std::move(name), "text, list of texts or null", "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    std::vector<std::string> texts;
    if (value.kind == YamlValue::Kind::kList) {
      for (const YamlValue& item : value.children) {
        OT_RETURN_IF_ERROR(ReadText(item, "a text in this list", &texts.emplace_back()));
      }
    } else if (!IsNull(value)) {
      OT_RETURN_IF_ERROR(ReadText(value, "a text, a list of texts or null", &texts.emplace_back()));
    }
    field(*config) = std::move(texts);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) -> std::string {
    const std::vector<std::string>& texts = Get(field, config);
    if (texts.empty()) return "null";
    return absl::StrCat("[",
                        absl::StrJoin(texts, ", ",
                                      [](std::string* out, const std::string& text) {
                                        absl::StrAppend(out, FormatText(text));
                                      }),
                        "]");
  };
  return key;
}

Key CoefficientsKey(std::string name, Field<std::array<double, 3>> field, std::string doc) {
  Key key = NewKey(std::move(name), "simple or a list of 3 numbers", "simple", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    if (value.kind == YamlValue::Kind::kScalar && value.text == "simple") {
      field(*config) = kSimpleNewtonSchulz;
      return absl::OkStatus();
    }
    if (value.kind != YamlValue::Kind::kList || value.children.size() != 3) {
      return Expected(value, "simple or a list of 3 numbers");
    }
    std::array<double, 3> numbers{};
    for (size_t i = 0; i < 3; ++i) OT_RETURN_IF_ERROR(ReadReal(value.children[i], {}, &numbers[i]));
    field(*config) = numbers;
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) -> std::string {
    const auto& n = Get(field, config);
    if (n == kSimpleNewtonSchulz) return "simple";
    return absl::StrCat("[", FormatReal(n[0]), ", ", FormatReal(n[1]), ", ", FormatReal(n[2]), "]");
  };
  return key;
}

Key HorizonKey(std::string name, Horizon::Kind kind, bool whole, std::string doc) {
  constexpr int64_t kMost = int64_t{1} << 53;  // exact as a double
  const Range positive = {0, std::numeric_limits<double>::infinity(), true};
  Key key = NewKey(std::move(name), (whole ? WholeType(1, kMost) : RealType(positive)) + " or null",
                   "null", std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    if (IsNull(value)) return absl::OkStatus();
    Horizon& horizon = config->train.horizon;
    horizon.kind = kind;
    if (!whole) return ReadReal(value, positive, &horizon.value);
    int64_t number = 0;
    OT_RETURN_IF_ERROR(ReadWhole(value, 1, kMost, &number));
    horizon.value = static_cast<double>(number);
    return absl::OkStatus();
  };
  key.write = [=](const Config& config) -> std::string {
    // The resolved form states steps, whatever the configuration said.
    const TrainConfig& train = config.train;
    if (kind == Horizon::Kind::kSteps && train.steps > 0) return absl::StrCat(train.steps);
    if (train.steps > 0 || train.horizon.kind != kind) return "null";
    return FormatReal(train.horizon.value);
  };
  return key;
}

Key ChoiceKey(std::string name, const std::function<int(const Config&)>& get,
              const std::function<void(Config&, int)>& set, const std::vector<Choice>& choices,
              std::string initial, std::string doc) {
  const std::string type = absl::StrJoin(
      choices, " | ", [](std::string* out, const Choice& c) { absl::StrAppend(out, c.word); });
  Key key = NewKey(std::move(name), type, std::move(initial), std::move(doc));
  key.read = [=](const YamlValue& value, Config* config) -> absl::Status {
    if (value.kind != YamlValue::Kind::kScalar) return Expected(value, type);
    std::vector<std::string> words;
    for (const Choice& choice : choices) {
      words.push_back(choice.word);
      if (value.text != choice.word) continue;
      set(*config, choice.value);
      return absl::OkStatus();
    }
    const std::string near = Nearest(value.text, words);
    return Expected(value, type, near.empty() ? "" : absl::StrCat("did you mean ", near, "?"));
  };
  key.write = [=](const Config& config) -> std::string {
    for (const Choice& choice : choices) {
      if (choice.value == get(config)) return choice.word;
    }
    return "auto";
  };
  return key;
}

}  // namespace overtok
