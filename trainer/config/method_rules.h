// Inside LoadConfig: what the keys of the methods (hashed tables, further heads, sampled softmax)
// come to and which combinations are refused. load.h is the interface.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace overtok {

// Replaces `auto` in the keys of the methods. Mistakes become entries of `errors`, here and below.
void ResolveMethodAutos(const std::set<std::string>& autos, LoadedConfig* loaded,
                        std::vector<std::string>* errors);

void CheckMethods(const LoadedConfig& loaded, std::vector<std::string>* errors);

// Turns freeze_after_passes into freeze_step as soon as the steps and the length of a pass are
// known, and checks freeze_step against the steps. `windows`: of the corpus; -1 when not known yet.
void ResolveFreeze(int64_t windows, LoadedConfig* loaded, std::vector<std::string>* errors);

// Adds what a run of these settings should be warned of, each once. `windows` as above.
void WarnOfMethods(int64_t windows, LoadedConfig* loaded);

}  // namespace overtok
