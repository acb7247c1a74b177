// Where a step stands in its run: the stage of a sampled softmax and the pass over the data. Pure
// functions of configuration, order and step, so that a resumed run marks the same places.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "trainer/config/config.h"

namespace overtok {

// P of the main head at `step` (from 0); V where it scores all classes.
int64_t CandidatesOfStep(const Config& config, int64_t step);

// P of the stage that the last of `completed` steps belonged to; V before the first step. Below V,
// the weights have been taught by candidates alone for some time, and the full softmax of an
// evaluation is worse than they deserve (docs/training.md).
int64_t CandidatesBehind(const Config& config, int64_t completed);
bool BehindSampledStage(const Config& config, int64_t completed);

// First step of every pass but the first, and the pass (FirstStepOfPass of derived.h). `windows`:
// of the corpus.
std::map<int64_t, int64_t> PassStarts(const Config& config, int64_t windows);

// Numbers of completed steps after which eval.pass_offsets asks for an evaluation.
std::set<int64_t> PassEvaluations(const Config& config, const std::map<int64_t, int64_t>& starts);

}  // namespace overtok
