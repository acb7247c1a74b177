// Inside the schema: its parts, one file a part. schema.h is the interface.
#pragma once

#include <limits>
#include <vector>

#include "trainer/config/key.h"

// A reference to a member of the Config, for the tables of keys.
#define OT_FIELD(member) \
  [](Config & c) -> auto& { return c.member; }

namespace overtok {

inline constexpr int64_t kLarge = int64_t{1} << 53;
inline constexpr Range kPositive = {0, std::numeric_limits<double>::infinity(), true};
inline constexpr Range kNotNegative = {0, std::numeric_limits<double>::infinity(), false};
inline constexpr Range kFraction = {0, 1, false};

// The word of an enumerator's choice.
template <class E>
Choice Word(const char* word, E value) {
  return {word, static_cast<int>(value)};
}

void AddModelKeys(std::vector<Key>& keys);      // schema_model.cc
void AddLossKeys(std::vector<Key>& keys);       // schema_model.cc
void AddOptimizerKeys(std::vector<Key>& keys);  // schema_optimizer.cc
void AddDataKeys(std::vector<Key>& keys);       // schema_run.cc
void AddTrainKeys(std::vector<Key>& keys);      // schema_run.cc
void AddOtherKeys(std::vector<Key>& keys);      // schema_run.cc

}  // namespace overtok
