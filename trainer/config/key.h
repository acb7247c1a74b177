// One key of the configuration: its name, what it takes, its default, what it means, and how it
// gets into a Config and out of it again. Reading, the default, the resolved form and the
// documentation all follow from this one description.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "trainer/config/config.h"
#include "trainer/config/strict_yaml.h"

namespace overtok {

struct Key {
  std::string name;     // dotted
  std::string type;     // for people: "whole number >= 1", "linear | cosine"
  std::string initial;  // the default as YAML text; empty: the key has to be given
  std::string doc;      // meaning and unit
  bool takes_auto = false;
  std::string auto_doc;  // what `auto` becomes

  // Puts the value into the Config, or says what was expected, without place and name: "expected
  // ...". Not called for `auto`.
  std::function<absl::Status(const YamlValue&, Config*)> read;
  // The value as YAML flow text.
  std::function<std::string(const Config&)> write;

  // The key accepts `auto` (resolve.cc replaces it), which becomes what `meaning` says.
  Key OrAuto(std::string meaning) &&;
  // What to do instead, at the end of every error about the value.
  Key WithHint(std::string hint) &&;
};

template <class T>
using Field = T& (*)(Config&);

// Numbers between `least` and `most`; both are allowed unless `above` says that `least` is not and
// `below` that `most` is not.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;
  bool below = false;
};

Key WholeKey(std::string name, Field<int64_t> field, int64_t least, int64_t most,
             std::string initial, std::string doc);
Key OptionalWholeKey(std::string name, Field<std::optional<int64_t>> field, int64_t least,
                     std::string doc);
Key SeedKey(std::string name, Field<uint64_t> field, std::string initial, std::string doc);
Key RealKey(std::string name, Field<double> field, Range range, std::string initial,
            std::string doc);
Key OptionalRealKey(std::string name, Field<std::optional<double>> field, Range range,
                    std::string doc);
Key BoolKey(std::string name, Field<bool> field, std::string initial, std::string doc);
// A text, or null for the empty one.
Key TextKey(std::string name, Field<std::string> field, std::string doc);
Key OptionalTextKey(std::string name, Field<std::optional<std::string>> field, std::string doc);
// A text or a list of texts.
Key TextsKey(std::string name, Field<std::vector<std::string>> field, std::string doc);
Key CoefficientsKey(std::string name, Field<std::array<double, 3>> field, std::string doc);
// A list of whole numbers, each at least `least`, possibly empty.
Key WholesKey(std::string name, Field<std::vector<int64_t>> field, int64_t least,
              std::string initial, std::string doc);
// One of a few lists of whole numbers.
Key WholesChoiceKey(std::string name, Field<std::vector<int64_t>> field,
                    const std::vector<std::vector<int64_t>>& choices, std::string initial,
                    std::string doc);
// A list of {until, candidates}, `until` ascending.
Key StagesKey(std::string name, Field<std::vector<SampledStage>> field, std::string initial,
              std::string doc);
// One of the four horizons; null where another one is given.
Key HorizonKey(std::string name, Horizon::Kind kind, bool whole, std::string doc);

// One of several words.
struct Choice {
  const char* word;
  int value;
};
Key ChoiceKey(std::string name, const std::function<int(const Config&)>& get,
              const std::function<void(Config&, int)>& set, const std::vector<Choice>& choices,
              std::string initial, std::string doc);

template <class E>
Key EnumKey(std::string name, Field<E> field, const std::vector<Choice>& choices,
            std::string initial, std::string doc) {
  return ChoiceKey(
      std::move(name),
      [field](const Config& config) {
        return static_cast<int>(field(const_cast<Config&>(config)));
      },
      [field](Config& config, int value) { field(config) = static_cast<E>(value); }, choices,
      std::move(initial), std::move(doc));
}

// A text as a YAML scalar, quoted where it would otherwise read as something else.
std::string FormatText(absl::string_view text);

}  // namespace overtok
