// A YAML document as a tree that remembers where every value stands, read more strictly than YAML
// asks: duplicate keys, merge keys (<<), tags, several documents and keys that are not plain text
// are errors. Scalars stay text; what they mean is decided by the key that they belong to.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// Where a value was written.
struct Origin {
  std::string file;  // empty: nowhere, the value is a default
  int line = 0;      // from 1; 0: the command line

  bool command_line() const { return line == 0 && !file.empty(); }
  std::string ToString() const;  // "configs/a.yaml:12", "command line" or "default"
};
Origin CommandLine();

struct YamlValue {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  Origin origin;     // of the key, for a value in a mapping
  std::string key;   // for a value in a mapping
  std::string text;  // kScalar
  bool quoted = false;
  std::vector<YamlValue> children;  // kList, kMap (in the order written, keys unique)

  const YamlValue* Find(absl::string_view child) const;  // kMap; null when absent
  YamlValue* Find(absl::string_view child);
  // The value at a dotted path ("optimizer.schedule.type"); null when absent.
  const YamlValue* At(absl::string_view path) const;
  std::string Describe() const;  // for messages: `"abc"`, `null`, `a list`, `a mapping`
};

// Parses one document. `file` is named in errors, which have the form "file:line: ...". An empty
// document is an error.
absl::StatusOr<YamlValue> ParseYaml(absl::string_view text, absl::string_view file);

// One `key.path=value` of the command line as a tree of mappings; the value is any YAML.
absl::StatusOr<YamlValue> ParseOverride(absl::string_view argument);

// Lays `from` over `onto`: mappings merge, everything else replaces; null replaces a whole block.
void MergeYaml(YamlValue from, YamlValue* onto);

}  // namespace overtok
