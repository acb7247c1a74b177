// Every key that a configuration may have, and the rules between keys.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/key.h"

namespace overtok {

// All keys, in the order in which the resolved form and the documentation list them; the keys of a
// section stand together.
const std::vector<Key>& ConfigKeys();
const std::vector<std::string>& ConfigKeyNames();
const Key* FindKey(absl::string_view name);  // null when there is none
// `name` is a section: a key's name begins with "name.".
bool IsSection(absl::string_view name);

// A section that may be null, which turns off what it describes and is the default. Giving a
// mapping, even an empty one, turns it on with the defaults of its keys.
struct OptionalSection {
  std::string name;  // dotted
  std::string doc;
  bool (*on)(const Config&);
  void (*set)(Config&, bool on);  // turning it on gives it fresh values
};
const std::vector<OptionalSection>& ConfigOptionalSections();
const OptionalSection* FindOptionalSection(absl::string_view name);  // null when it is none
const OptionalSection* OptionalSectionOf(absl::string_view key);     // null when it is in none
// The key is in an optional section that is off, and so has no value.
bool IsOff(absl::string_view key, const Config& config);
// The value of a key or optional section, for people.
std::string WriteSetting(absl::string_view name, const Config& config);

// Keys of which at most one may be given. A value in a later layer (a file over its base, the
// command line over files) replaces those of earlier layers.
struct ExclusiveKeys {
  std::vector<std::string> keys;
  bool required = false;      // exactly one
  std::string none = "null";  // what a key's value is when it is not used
};
const std::vector<ExclusiveKeys>& ConfigExclusiveKeys();

// The key `option` has no effect while `inactive` holds, which is decided by the keys
// `disabled_by` (keys or optional sections).
struct InactiveRule {
  std::string option;
  std::vector<std::string> disabled_by;
  bool (*inactive)(const Config&);
  std::string why;
};
const std::vector<InactiveRule>& ConfigInactiveRules();
// The rule that makes the key inactive in this configuration; null when it has an effect.
const InactiveRule* FindInactive(absl::string_view key, const Config& config);

}  // namespace overtok
