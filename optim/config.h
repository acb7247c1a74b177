// The optimizer: the section `optimizer` of a configuration, resolved (no `auto` left but that of
// tables.memory, which the size of a run's device decides) and checked.
// Which parameter belongs to which group (muonh, adamh, adam) is declared by the parameter.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace overtok {

// The coefficients (a, b, c) of X <- a X + (b A + c A A) X, A = X X^T, that `simple` stands for.
inline constexpr std::array<double, 3> kSimpleNewtonSchulz = {3.4445, -4.7750, 2.0315};

struct NewtonSchulzConfig {
  // Of the products, which all accumulate in f32. kTF32: f32 matrices, rounded to 10 bits of
  // mantissa where a product reads them (core/tf32.h). kBF16: matrices stored in bf16.
  enum class Precision : uint8_t { kF32, kTF32, kBF16 };
  int64_t steps = 5;
  double eps = 1e-5;  // X0 = G / (|G|_F + eps)
  std::array<double, 3> coefficients = kSimpleNewtonSchulz;
  Precision precision = Precision::kF32;
};
// What an iteration's matrices are stored in.
constexpr DType StorageType(NewtonSchulzConfig::Precision precision) {
  return precision == NewtonSchulzConfig::Precision::kBF16 ? DType::kBF16 : DType::kF32;
}
constexpr const char* NameOf(NewtonSchulzConfig::Precision precision) {
  switch (precision) {
    case NewtonSchulzConfig::Precision::kF32:
      return "f32";
    case NewtonSchulzConfig::Precision::kTF32:
      return "tf32";
    case NewtonSchulzConfig::Precision::kBF16:
      return "bf16";
  }
  return "";
}

struct ScheduleConfig {
  enum class Type { kLinear, kCosine };
  Type type = Type::kLinear;
  int64_t warmup_steps = 0;  // the multiplier of step t is t / warmup_steps for t < warmup_steps
  double decay = 0.8;        // linear: the last int(decay * steps) steps fall from 1
  double min_lr_ratio = 0;   // where the fall ends, as a fraction of the full rate
};

// The update of hashed tables (docs/methods/table_optimizers.md), input and output tables alike
// except where said. A step reads and writes the rows it touches and no others.
struct TablesConfig {
  // kExact equals dense Adam to fp32 rounding: the steps that a row was not touched are replayed
  // when it is touched next.
  enum class Update : uint8_t { kExact, kAdagrad, kSgd };
  enum class SecondMoment : uint8_t { kElement, kRow };  // kRow: the mean square of a row
  Update update = Update::kExact;
  SecondMoment second_moment = SecondMoment::kElement;  // of exact and adagrad
  double beta1 = 0.9;                                   // of exact; 0 keeps no first moment
  DType storage = DType::kF32;  // of the rows: kF32, or kBF16 with stochastic rounding
  double lr_scale = 1;          // the tables' rate is adam_lr times this times the schedule
  double untouched_decay = 0;   // a row not touched by a step is scaled by 1 - rate * this
  // From this step on the input tables get no gradient (their moments decay); 0: never.
  int64_t freeze_step = 0;
  // Where tables lie beside a device with memory of its own; no bit depends on it. kAuto: in host
  // memory those that a run has moved there because the device has no room (`moved`: "ngram.0";
  // trainer/table_memory.h), else on the device.
  enum class Memory : uint8_t { kAuto, kDevice, kHost };
  Memory memory = Memory::kAuto;
  std::vector<std::string> moved = {};
};

struct OptimizerConfig {
  double lr = 0;           // of the groups muonh and adamh, before the schedule's multiplier
  double adam_lr = 0;      // of the group adam, before the schedule's multiplier
  double momentum = 0.95;  // muonh: B <- momentum * B + g
  bool nesterov = true;    // muonh: direction g + momentum * B instead of B
  NewtonSchulzConfig newton_schulz;
  double beta1 = 0.9;          // adam, adamh: decay of the first moment
  double beta2 = 0.98;         // adam, adamh: decay of the second moment
  double eps = 1e-20;          // adam, adamh: added to the root of the second moment
  double max_grad_norm = 1.0;  // > 0; each group's gradient is scaled down to this L2 norm
  ScheduleConfig schedule;
  TablesConfig tables;
};

}  // namespace overtok
