// docs/configuration.md, written from the schema.
#pragma once

#include <string>

namespace overtok {

std::string ConfigurationPage();

}  // namespace overtok
