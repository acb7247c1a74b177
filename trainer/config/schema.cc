#include "trainer/config/schema.h"

#include "absl/strings/match.h"
#include "trainer/config/schema_parts.h"

namespace overtok {
namespace {

// What reaches a section that may be off goes through its optional.
void Confine(const OptionalSection& section, Key* key) {
  const OptionalSection* const of = &section;
  key->write = [of, inner = std::move(key->write)](const Config& config) -> std::string {
    return of->on(config) ? inner(config) : "null";
  };
}

std::vector<Key> BuildKeys() {
  std::vector<Key> keys;
  AddModelKeys(keys);
  AddLossKeys(keys);
  AddOptimizerKeys(keys);
  AddDataKeys(keys);
  AddTrainKeys(keys);
  AddOtherKeys(keys);
  for (Key& key : keys) {
    if (const OptionalSection* section = OptionalSectionOf(key.name)) Confine(*section, &key);
  }
  return keys;
}

}  // namespace

#define OT_OPTIONAL_SECTION(name, member, doc)                                                \
  {                                                                                           \
    name, doc, [](const Config& c) { return c.member.has_value(); }, [](Config& c, bool on) { \
      c.member.reset();                                                                       \
      if (on) c.member.emplace();                                                             \
    }                                                                                         \
  }

const std::vector<OptionalSection>& ConfigOptionalSections() {
  static const auto* const sections = new std::vector<OptionalSection>{
      OT_OPTIONAL_SECTION("model.ngram_embedding", model.ngram_embedding,
                          "Hashed n-gram tables beside the token embedding."),
      OT_OPTIONAL_SECTION("model.second_token_head", model.second_token_head,
                          "OT-H: a second head that predicts the token two ahead."),
      OT_OPTIONAL_SECTION("model.ngram_head", model.ngram_head,
                          "OT-2: heads over hashed n-grams of the tokens ahead."),
      OT_OPTIONAL_SECTION("loss.sampled_softmax", loss.sampled_softmax,
                          "Cross-entropy over some candidate classes instead of all, in stages.")};
  return *sections;
}

const OptionalSection* FindOptionalSection(absl::string_view name) {
  for (const OptionalSection& section : ConfigOptionalSections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

const OptionalSection* OptionalSectionOf(absl::string_view key) {
  for (const OptionalSection& section : ConfigOptionalSections()) {
    if (absl::StartsWith(key, absl::StrCat(section.name, "."))) return &section;
  }
  return nullptr;
}

bool IsOff(absl::string_view key, const Config& config) {
  const OptionalSection* section = OptionalSectionOf(key);
  return section != nullptr && !section->on(config);
}

std::string WriteSetting(absl::string_view name, const Config& config) {
  if (const OptionalSection* section = FindOptionalSection(name)) {
    return section->on(config) ? "{...}" : "null";
  }
  return FindKey(name)->write(config);
}

const std::vector<Key>& ConfigKeys() {
  static const auto* const keys = new std::vector<Key>(BuildKeys());
  return *keys;
}

const std::vector<std::string>& ConfigKeyNames() {
  static const auto* const names = [] {
    auto* built = new std::vector<std::string>;
    for (const Key& key : ConfigKeys()) built->push_back(key.name);
    return built;
  }();
  return *names;
}

const Key* FindKey(absl::string_view name) {
  for (const Key& key : ConfigKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

bool IsSection(absl::string_view name) {
  const std::string prefix = absl::StrCat(name, ".");
  for (const Key& key : ConfigKeys()) {
    if (absl::StartsWith(key.name, prefix)) return true;
  }
  return false;
}

}  // namespace overtok
