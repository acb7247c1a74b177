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

// Keys of which at most one may be given. A value in a later layer (a file over its base, the
// command line over files) replaces those of earlier layers.
struct ExclusiveKeys {
  std::vector<std::string> keys;
  bool required = false;  // exactly one
};
const std::vector<ExclusiveKeys>& ConfigExclusiveKeys();

// The key `option` has no effect while `inactive` holds, which is decided by the keys
// `disabled_by`.
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
