// Keys of the section optimizer.
#include "trainer/config/schema_parts.h"

namespace overtok {
namespace {

void AddTableKeys(std::vector<Key>& keys) {
  using Tables = TablesConfig;
  keys.push_back(EnumKey<Tables::Update>(
      "optimizer.tables.update", OT_FIELD(optimizer.tables.update),
      {Word("exact", Tables::Update::kExact), Word("adagrad", Tables::Update::kAdagrad),
       Word("sgd", Tables::Update::kSgd)},
      "exact",
      "Of hashed tables. exact: what Adam over every row in every step does, at the cost of the "
      "rows touched; adagrad, sgd: rows that are not touched do not move."));
  keys.push_back(EnumKey<Tables::SecondMoment>(
      "optimizer.tables.second_moment", OT_FIELD(optimizer.tables.second_moment),
      {Word("element", Tables::SecondMoment::kElement), Word("row", Tables::SecondMoment::kRow)},
      "element", "row: one number for a row, the mean over its elements."));
  keys.push_back(RealKey("optimizer.tables.beta1", OT_FIELD(optimizer.tables.beta1),
                         {0, 0.999999999, false}, "auto",
                         "exact: decay of the first moment; 0 keeps none.")
                     .OrAuto("optimizer.beta1"));
  keys.push_back(EnumKey<DType>(
      "optimizer.tables.storage", OT_FIELD(optimizer.tables.storage),
      {Word("f32", DType::kF32), Word("bf16", DType::kBF16)}, "f32",
      "Of the tables' values; bf16 rounds updates up or down at random, right on average."));
  keys.push_back(RealKey("optimizer.tables.lr_scale", OT_FIELD(optimizer.tables.lr_scale),
                         kNotNegative, "1", "The tables' rate is adam_lr times this."));
  keys.push_back(RealKey("optimizer.tables.untouched_decay",
                         OT_FIELD(optimizer.tables.untouched_decay), kNotNegative, "0",
                         "A row that a step does not touch is multiplied by 1 - rate * this."));
  keys.push_back(RealKey("optimizer.tables.freeze_after_passes", OT_FIELD(freeze_after_passes),
                         kNotNegative, "0",
                         "Input tables get no gradient from the first step of this pass over the "
                         "data on (1: from the second pass on); 0: never. At most one of this and "
                         "freeze_step; the resolved form has freeze_step."));
  keys.push_back(WholeKey("optimizer.tables.freeze_step", OT_FIELD(optimizer.tables.freeze_step), 0,
                          kLarge, "0", "The same from this step on; 0: never."));
  keys.push_back(EnumKey<Tables::Memory>(
      "optimizer.tables.memory", OT_FIELD(optimizer.tables.memory),
      {Word("auto", Tables::Memory::kAuto), Word("device", Tables::Memory::kDevice),
       Word("host", Tables::Memory::kHost)},
      "auto",
      "Where values and state lie beside a GPU. host: in host memory, from where a step brings the "
      "rows that it touches; auto: the largest that the GPU has no room for. Bits are the same."));
}

}  // namespace

void AddOptimizerKeys(std::vector<Key>& keys) {
  keys.push_back(RealKey("optimizer.lr", OT_FIELD(optimizer.lr), kNotNegative, "",
                         "Rate of the groups muonh and adamh."));
  keys.push_back(RealKey("optimizer.adam_lr", OT_FIELD(optimizer.adam_lr), kNotNegative, "",
                         "Rate of the group adam."));
  keys.push_back(RealKey("optimizer.momentum", OT_FIELD(optimizer.momentum), kFraction, "0.95",
                         "muonh: buffer = momentum * buffer + gradient."));
  keys.push_back(BoolKey("optimizer.nesterov", OT_FIELD(optimizer.nesterov), "true",
                         "muonh: direction gradient + momentum * buffer instead of the buffer."));
  keys.push_back(WholeKey("optimizer.newton_schulz.steps", OT_FIELD(optimizer.newton_schulz.steps),
                          1, 100, "5", "Iterations that orthogonalise a muonh update."));
  keys.push_back(RealKey("optimizer.newton_schulz.eps", OT_FIELD(optimizer.newton_schulz.eps),
                         kPositive, "1e-5",
                         "Added to the norm that the first iterate divides by."));
  keys.push_back(CoefficientsKey(
      "optimizer.newton_schulz.coefficients", OT_FIELD(optimizer.newton_schulz.coefficients),
      "a, b, c of X = a X + (b A + c A A) X, A = X X^T; simple: [3.4445, -4.7750, 2.0315]."));
  using Precision = NewtonSchulzConfig::Precision;
  keys.push_back(EnumKey<Precision>(
                     "optimizer.newton_schulz.precision",
                     OT_FIELD(optimizer.newton_schulz.precision),
                     {Word("f32", Precision::kF32), Word("tf32", Precision::kTF32),
                      Word("bf16", Precision::kBF16)},
                     "auto",
                     "Of the products inside the iterations, which sum in f32. tf32: f32 operands "
                     "rounded to 10 bits of mantissa, on GPUs by tensor cores.")
                     .OrAuto("train.precision"));
  keys.push_back(RealKey("optimizer.beta1", OT_FIELD(optimizer.beta1), {0, 0.999999999, false},
                         "0.9", "adam, adamh: decay of the first moment."));
  keys.push_back(RealKey("optimizer.beta2", OT_FIELD(optimizer.beta2), {0, 0.999999999, false},
                         "0.98", "adam, adamh: decay of the second moment."));
  keys.push_back(RealKey("optimizer.eps", OT_FIELD(optimizer.eps), kPositive, "1e-20",
                         "adam, adamh: added to the root of the second moment."));
  keys.push_back(RealKey("optimizer.max_grad_norm", OT_FIELD(optimizer.max_grad_norm), kPositive,
                         "1",
                         "Each group's gradient is scaled down to this L2 norm, each group for "
                         "itself. A very large value clips nothing."));
  keys.push_back(EnumKey<ScheduleConfig::Type>(
      "optimizer.schedule.type", OT_FIELD(optimizer.schedule.type),
      {{"linear", static_cast<int>(ScheduleConfig::Type::kLinear)},
       {"cosine", static_cast<int>(ScheduleConfig::Type::kCosine)}},
      "linear",
      "linear: full rate, then a straight fall over the last part of the run; cosine: half a "
      "cosine from the end of the warm-up on."));
  keys.push_back(WholeKey("optimizer.schedule.warmup_steps",
                          OT_FIELD(optimizer.schedule.warmup_steps), 0, kLarge, "0",
                          "Steps of linear warm-up; the first of them has rate 0."));
  keys.push_back(RealKey("optimizer.schedule.decay", OT_FIELD(optimizer.schedule.decay), kFraction,
                         "0.8",
                         "linear: the part of all steps that falls, rounded down to whole steps; "
                         "0: the rate stays."));
  keys.push_back(RealKey("optimizer.schedule.min_lr_ratio",
                         OT_FIELD(optimizer.schedule.min_lr_ratio), kFraction, "0",
                         "Where the fall ends, as a part of the full rate."));

  AddTableKeys(keys);
}

}  // namespace overtok
