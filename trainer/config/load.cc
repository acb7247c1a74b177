#include "trainer/config/load.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/io/files.h"
#include "trainer/config/numbers.h"
#include "trainer/config/resolve.h"
#include "trainer/config/schema.h"
#include "trainer/config/suggest.h"

namespace overtok {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;
constexpr size_t kMostErrors = 20;

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

void Erase(absl::string_view path, YamlValue* tree) {
  const size_t dot = path.find('.');
  const absl::string_view first = path.substr(0, dot);
  if (dot != absl::string_view::npos) {
    if (YamlValue* child = tree->Find(first)) Erase(path.substr(dot + 1), child);
    return;
  }
  std::vector<YamlValue>& children = tree->children;
  children.erase(std::remove_if(children.begin(), children.end(),
                                [&](const YamlValue& child) { return child.key == first; }),
                 children.end());
}

// The key has another value than null and the one that means "not used".
bool HasValue(const YamlValue& tree, const std::string& key, const std::string& none) {
  const YamlValue* value = tree.At(key);
  if (value == nullptr || value->kind == YamlValue::Kind::kNull) return false;
  if (value->kind != YamlValue::Kind::kScalar || value->quoted) return true;
  const std::optional<double> number = ParseReal(value->text);
  return !number.has_value() || number != ParseReal(none);
}

// Of keys that exclude each other, those that an upper layer gives replace those below it.
void EraseExcluded(const YamlValue& layer, YamlValue* below) {
  for (const ExclusiveKeys& group : ConfigExclusiveKeys()) {
    const bool decides =
        std::any_of(group.keys.begin(), group.keys.end(),
                    [&](const std::string& key) { return HasValue(layer, key, group.none); });
    if (!decides) continue;
    for (const std::string& key : group.keys) Erase(key, below);
  }
}

// Lays one layer over what came before it.
void LayOver(YamlValue layer, YamlValue* onto) {
  EraseExcluded(layer, onto);
  MergeYaml(std::move(layer), onto);
}

// `stack`: canonical paths of the files being loaded, the outermost first.
absl::StatusOr<YamlValue> LoadFile(const std::string& path, std::vector<std::string>* stack);

// Takes `base:` out of a file's tree and returns what it names, laid over each other.
absl::StatusOr<YamlValue> LoadBases(const std::string& path, YamlValue* tree,
                                    std::vector<std::string>* stack) {
  YamlValue below;
  below.kind = YamlValue::Kind::kMap;
  const YamlValue* base = tree->Find("base");
  if (base == nullptr) return below;
  std::vector<YamlValue> names = {*base};
  if (base->kind == YamlValue::Kind::kList) names = base->children;
  for (const YamlValue& name : names) {
    const std::string where = absl::StrCat(name.origin.ToString(), ": base");
    if (name.kind != YamlValue::Kind::kScalar || name.text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": ", name.Describe(), " is not valid; expected a file or a list of files"));
    }
    const std::string file =
        (std::filesystem::path(path).parent_path() / name.text).lexically_normal().string();
    const std::string canonical = CanonicalPath(file);
    if (std::find(stack->begin(), stack->end(), canonical) != stack->end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", file, " is based on itself (",
                                                     absl::StrJoin(*stack, " -> "), " -> ",
                                                     canonical, "); remove one of these"));
    }
    absl::StatusOr<YamlValue> layer = LoadFile(file, stack);
    if (!layer.ok()) {
      // A file that cannot be read is the fault of the line that names it.
      if (PathExists(file)) return layer.status();
      return Annotate(layer.status(), where);
    }
    LayOver(*std::move(layer), &below);
  }
  Erase("base", tree);
  return below;
}

absl::StatusOr<YamlValue> LoadFile(const std::string& path, std::vector<std::string>* stack) {
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMostBytes));
  OT_ASSIGN_OR_RETURN(YamlValue tree, ParseYaml(text, path));
  stack->push_back(CanonicalPath(path));
  OT_ASSIGN_OR_RETURN(YamlValue below, LoadBases(path, &tree, stack));
  stack->pop_back();
  LayOver(std::move(tree), &below);
  return below;
}

absl::Status LayOverrides(const std::vector<std::string>& overrides, YamlValue* tree) {
  // The command line is one layer, but its values are laid one by one: a null among them has to
  // remove what stands below before a later value adds to it.
  YamlValue line;
  line.kind = YamlValue::Kind::kMap;
  std::vector<YamlValue> values;
  for (const std::string& argument : overrides) {
    OT_ASSIGN_OR_RETURN(YamlValue value, ParseOverride(argument));
    if (value.Find("base") != nullptr) {
      return absl::InvalidArgumentError(
          "command line: base is a key of files; name the other file on the command line instead");
    }
    MergeYaml(value, &line);
    values.push_back(std::move(value));
  }
  EraseExcluded(line, tree);
  for (YamlValue& value : values) MergeYaml(std::move(value), tree);
  return absl::OkStatus();
}

// Walks the tree along the schema.
class Reader {
 public:
  void Walk(const YamlValue& section, const std::string& path) {
    for (const YamlValue& child : section.children) {
      const std::string name = path.empty() ? child.key : absl::StrCat(path, ".", child.key);
      if (FindKey(name) != nullptr) {
        values_[name] = &child;
      } else if (FindOptionalSection(name) != nullptr) {
        WalkOptional(child, name);
      } else if (!IsSection(name)) {
        Unknown(child, name);
      } else if (child.kind == YamlValue::Kind::kMap) {
        Walk(child, name);
      } else if (child.kind != YamlValue::Kind::kNull) {
        errors_.push_back(absl::StrCat(child.origin.ToString(), ": ", name, ": ", child.Describe(),
                                       " is not valid; ", name, " is a section of keys"));
      }
    }
  }

  void ReadKeys(const std::string& file, LoadedConfig* loaded) {
    for (const OptionalSection& section : ConfigOptionalSections()) {
      const auto found = sections_.find(section.name);
      if (found == sections_.end()) continue;
      loaded->origins[section.name] = found->second->origin;
      section.set(loaded->config, found->second->kind == YamlValue::Kind::kMap);
    }
    for (const Key& key : ConfigKeys()) {
      if (IsOff(key.name, loaded->config)) continue;
      const auto found = values_.find(key.name);
      if (found == values_.end()) {
        if (key.initial.empty()) {
          errors_.push_back(
              absl::StrCat(file, ": ", key.name, " is missing; expected a ", key.type));
        } else if (key.initial == "auto") {
          autos_.insert(key.name);
        } else {
          ReadDefault(key.name, &loaded->config);
        }
        continue;
      }
      const YamlValue& value = *found->second;
      loaded->origins[key.name] = value.origin;
      if (key.takes_auto && value.kind == YamlValue::Kind::kScalar && value.text == "auto") {
        autos_.insert(key.name);
        continue;
      }
      const absl::Status read = key.read(value, &loaded->config);
      if (!read.ok()) {
        errors_.push_back(absl::StrCat(loaded->Where(key.name), ": ", read.message()));
      }
    }
  }

  std::set<std::string> Horizons() const {
    std::set<std::string> given;
    for (const std::string& key : ConfigExclusiveKeys()[0].keys) {
      const auto found = values_.find(key);
      if (found != values_.end() && found->second->kind != YamlValue::Kind::kNull) {
        given.insert(key);
      }
    }
    return given;
  }

  const std::set<std::string>& autos() const { return autos_; }
  std::vector<std::string>& errors() { return errors_; }

 private:
  void WalkOptional(const YamlValue& section, const std::string& name) {
    sections_[name] = &section;
    if (section.kind == YamlValue::Kind::kMap) {
      Walk(section, name);
    } else if (section.kind != YamlValue::Kind::kNull) {
      errors_.push_back(absl::StrCat(section.origin.ToString(), ": ", name, ": ",
                                     section.Describe(),
                                     " is not valid; expected a mapping of its keys ({} for the "
                                     "defaults), or null to switch it off"));
    }
  }

  void Unknown(const YamlValue& value, const std::string& name) {
    // A misspelt section is reported at its keys, because those say more about what was meant.
    if (value.kind == YamlValue::Kind::kMap && !value.children.empty() &&
        !NearestPath(name, ConfigKeyNames()).empty()) {
      for (const YamlValue& child : value.children) {
        Unknown(child, absl::StrCat(name, ".", child.key));
      }
      return;
    }
    errors_.push_back(absl::StrCat(value.origin.ToString(), ": unknown key ", name, "; ",
                                   SuggestKey(name, ConfigKeyNames())));
  }

  std::map<std::string, const YamlValue*> values_;
  std::map<std::string, const YamlValue*> sections_;  // optional ones that were given
  std::set<std::string> autos_;
  std::vector<std::string> errors_;
};

absl::StatusOr<LoadedConfig> Interpret(const YamlValue& tree, const std::string& file) {
  LoadedConfig loaded;
  Reader reader;
  std::vector<std::string>& errors = reader.errors();
  reader.Walk(tree, "");
  reader.ReadKeys(file, &loaded);
  if (errors.empty()) ResolveConfig({file, reader.autos(), reader.Horizons()}, &loaded, &errors);
  if (errors.empty()) return loaded;
  if (errors.size() > kMostErrors) {
    const size_t more = errors.size() - kMostErrors;
    errors.resize(kMostErrors);
    errors.push_back(absl::StrCat("and ", more, " more mistakes"));
  }
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

// The key is in a group of which exactly one has to be given.
bool OneIsRequired(absl::string_view key) {
  for (const ExclusiveKeys& group : ConfigExclusiveKeys()) {
    if (group.required &&
        std::find(group.keys.begin(), group.keys.end(), key) != group.keys.end()) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string LoadedConfig::Where(absl::string_view key) const {
  const auto found = origins.find(std::string(key));
  return absl::StrCat(found == origins.end() ? "default" : found->second.ToString(), ": ", key);
}

absl::StatusOr<LoadedConfig> LoadConfig(absl::string_view path,
                                        const std::vector<std::string>& overrides,
                                        const std::vector<std::string>& arms) {
  const std::string file(path);
  std::vector<std::string> stack;
  OT_ASSIGN_OR_RETURN(YamlValue tree, LoadFile(file, &stack));
  for (const std::string& arm : arms) {
    OT_ASSIGN_OR_RETURN(YamlValue layer, LoadFile(arm, &stack));
    LayOver(std::move(layer), &tree);
  }
  OT_RETURN_IF_ERROR(LayOverrides(overrides, &tree));
  return Interpret(tree, file);
}

absl::StatusOr<LoadedConfig> LoadConfigText(absl::string_view text, absl::string_view name,
                                            const std::vector<std::string>& overrides) {
  OT_ASSIGN_OR_RETURN(YamlValue tree, ParseYaml(text, name));
  if (const YamlValue* base = tree.Find("base")) {
    return absl::InvalidArgumentError(
        absl::StrCat(base->origin.ToString(), ": base: only a file can be based on another one"));
  }
  OT_RETURN_IF_ERROR(LayOverrides(overrides, &tree));
  return Interpret(tree, std::string(name));
}

std::string ResolvedYaml(const Config& config) {
  std::string out;
  std::vector<std::string> open;  // sections that are open, outermost first
  const auto write = [&](absl::string_view name, absl::string_view value) {
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    size_t shared = 0;
    while (shared < open.size() && shared + 1 < parts.size() && open[shared] == parts[shared]) {
      ++shared;
    }
    open.resize(shared);
    for (size_t i = shared; i < parts.size(); ++i) {
      absl::StrAppend(&out, std::string(2 * i, ' '), parts[i], ":");
      if (i + 1 < parts.size()) {
        out += "\n";
        open.push_back(parts[i]);
      }
    }
    absl::StrAppend(&out, " ", value, "\n");
  };
  const OptionalSection* off = nullptr;  // the last one written as null
  for (const Key& key : ConfigKeys()) {
    if (IsOff(key.name, config)) {
      const OptionalSection* section = OptionalSectionOf(key.name);
      if (section != off) write(section->name, "null");
      off = section;
      continue;
    }
    const std::string value = key.write(config);
    const bool other_horizon = value == "null" && OneIsRequired(key.name);
    if (FindInactive(key.name, config) != nullptr || other_horizon) continue;
    write(key.name, value);
  }
  return out;
}

}  // namespace overtok
