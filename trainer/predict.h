// How long a training step takes on a described machine: an estimate from sums that fit on a page.
// Every part of the step is floating-point operations at the rate of its kind, or bytes at the
// memory's; exchanges are bytes over a link and a latency for each message; gradients and updated
// weights may hide behind computing as far as the machine can do both at once. docs/planning.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/parameter.h"
#include "optim/ownership.h"
#include "trainer/config/config.h"
#include "trainer/hardware.h"
#include "trainer/traffic.h"

namespace overtok {

struct PredictedPart {
  std::string name;
  double flops = 0, bytes = 0;  // of one rank
  double seconds = 0;           // alone
  double hidden = 0;            // of these, behind other parts
  // Of an exchange: what it would take if all ranks received equally much all the time.
  double even_seconds = 0;
  double exposed() const { return seconds - hidden; }
};

struct StepPrediction {
  std::vector<PredictedPart> computing, exchanges;
  double tokens = 0;  // of a step, all ranks
  double seconds() const;
  double tokens_per_second() const { return tokens / seconds(); }
  double exchange_seconds() const;  // not hidden
};

struct PredictedStep {
  Layout layout;  // of any rank
  int64_t ranks_per_node = 1;
  int64_t candidates = 0;  // P of vocabulary heads in the step, or V
  TrafficByKind sent{};    // by the rank that sends most
};

// `parameters`: of any rank of the layout; `pieces`: AssignPieces of them. Of the busiest rank:
// that with the largest part of the classes, and the one whose optimizer work takes longest.
StepPrediction PredictStep(const Config& config, const ParameterSet& parameters,
                           const std::vector<Piece>& pieces, const PredictedStep& step,
                           const Hardware& hardware);

}  // namespace overtok
