#include "optim/table_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "optim/schedule.h"

namespace overtok {
namespace {

// Terms of the sums below this, relative to their first one, are left out: in f64, in f32.
constexpr double kNegligible = 0x1p-60, kNegligibleF32 = 0x1p-30;
// The series in eps / sqrt(v) stops at the second order where the third is below this, relative to
// the whole movement: half a rounding of f32.
constexpr double kSeriesError = 0x1p-25;

}  // namespace

TableStorage StorageOf(const OptimizerConfig& config) {
  const TablesConfig& tables = config.tables;
  const bool exact = tables.update == TablesConfig::Update::kExact;
  TableStorage storage;
  storage.value = tables.storage;
  storage.first_moment = exact && tables.beta1 != 0;
  storage.second_moment = tables.update == TablesConfig::Update::kSgd
                              ? TableStorage::SecondMoment::kNone
                          : tables.second_moment == TablesConfig::SecondMoment::kRow
                              ? TableStorage::SecondMoment::kRow
                              : TableStorage::SecondMoment::kElement;
  storage.last_step = exact || tables.untouched_decay != 0;
  storage.all_in_host_memory = tables.memory == TablesConfig::Memory::kHost;
  if (tables.memory == TablesConfig::Memory::kAuto) {
    for (const std::string& table : tables.moved)
      storage.in_host_memory.push_back(absl::StrCat(table, ".table.weight"));
  }
  return storage;
}

TableSchedule::TableSchedule(const OptimizerConfig& config, int64_t steps, Memory* memory)
    : config_(config), steps_(steps) {
  switch (config.tables.update) {
    case TablesConfig::Update::kExact:
      rule_ = {TableRule::Kind::kAdam, config.tables.beta1, config.beta2, config.eps};
      break;
    case TablesConfig::Update::kAdagrad:
      rule_ = {TableRule::Kind::kAdagrad, 0, 0, config.eps};
      break;
    case TablesConfig::Update::kSgd:
      rule_ = {TableRule::Kind::kSgd, 0, 0, 0};
      break;
  }
  if (moves()) {
    rho_ = rule_.beta1 / std::sqrt(rule_.beta2);
    series_ = rho_ < 1;
    const auto window = [&](double negligible) {
      const double terms = std::ceil(std::log(negligible) / std::log(rho_));
      return series_ && terms < static_cast<double>(steps) ? static_cast<int64_t>(terms) : steps;
    };
    replay_.window = window(kNegligible);
    replay_.window_f32 = window(kNegligibleF32);
  }
  const Purpose purpose = Purpose::kOptimizer;
  const Memory::InputsOf inputs(memory, InputGroup::kSchedule);
  for (Tensor* tensor : {&replay_.moved, &replay_.moved_eps, &replay_.moved_eps2,
                         &replay_.series_from, &replay_.kept, &replay_.power1, &replay_.power2,
                         &replay_.root_power2, &replay_.gain, &replay_.root}) {
    *tensor = memory->TakeInput(purpose, "table schedule", DType::kF64, {steps + 1});
  }
  rates_ = memory->TakeHost(purpose, "table rates", DType::kF64, {steps + 1});
  if (moves()) final_ = memory->TakeHost(purpose, "table sums", DType::kF64, {steps + 1, 4});
  if (memory->dry()) return;

  // Powers by repeated products: the same bits on every machine.
  double power1 = 1, power2 = 1, root_power2 = 1;
  for (int64_t i = 0; i <= steps; ++i) {
    replay_.power1.data<double>()[i] = power1;
    replay_.power2.data<double>()[i] = power2;
    replay_.root_power2.data<double>()[i] = root_power2;
    power1 *= rule_.beta1;
    power2 *= rule_.beta2;
    root_power2 *= std::sqrt(rule_.beta2);
    const double rate = Rate(i);
    OT_CHECK_LE(rate * config.tables.untouched_decay, 1)
        << "rate times untouched_decay at step " << i;
    rates_.data<double>()[i] = rate;
    replay_.gain.data<double>()[i] = rate / (1 - power1);
    replay_.root.data<double>()[i] = 1 / std::sqrt(1 - power2);
    replay_.kept.data<double>()[i] = 1;
    if (moves() && !series_)
      replay_.series_from.data<double>()[i] = std::numeric_limits<double>::infinity();
  }
}

TableRule TableSchedule::rule() const { return rule_; }

double TableSchedule::Rate(int64_t step) const {
  return config_.adam_lr * config_.tables.lr_scale * LrScale(config_.schedule, steps_, step);
}

TableSchedule::Sums TableSchedule::Before(const Sums& later, int64_t i) const {
  const double root2 = std::sqrt(rule_.beta2);
  const double second = 1 / replay_.root.data<double>()[i];  // sqrt(c2_i)
  Sums sums;
  double term = replay_.gain.data<double>()[i] * second * later.kept;
  double ratio = rho_;
  for (int k = 0; k < 4; ++k) {
    sums.moved[k] = ratio * (term + later.moved[k]);
    term *= second;
    ratio /= root2;
  }
  sums.kept = later.kept * (1 - rates_.data<double>()[i] * config_.tables.untouched_decay);
  return sums;
}

void TableSchedule::Write(int64_t last, const double* moved, double kept) {
  replay_.moved.data<double>()[last] = moved[0] * kept;
  replay_.moved_eps.data<double>()[last] = moved[1] * kept;
  replay_.moved_eps2.data<double>()[last] = moved[2] * kept;
  const double largest = moved[0] > 0 ? std::cbrt(kSeriesError * moved[0] / moved[3]) : 0;
  const double root = largest > 0 ? rule_.eps / largest : 0;
  replay_.series_from.data<double>()[last] = root * root;
}

const TableReplay& TableSchedule::At(int64_t step) {
  OT_CHECK(step >= 0 && step <= steps_) << "step " << step << " of a run of " << steps_;
  OT_CHECK(rates_.raw() != nullptr) << "a planned run has no schedule";
  replay_.step = step;
  double* kept = replay_.kept.data<double>();
  const bool decays = config_.tables.untouched_decay != 0;
  if (decays) {
    kept[step] = 1;
    for (int64_t i = step - 1; i >= 0; --i)
      kept[i] = kept[i + 1] * (1 - rates_.data<double>()[i] * config_.tables.untouched_decay);
  }
  if (!series_) return replay_;

  // Rows that have been silent for a window or longer move no more: their sums depend on their last
  // step alone. Sums over a window are always taken from its end back, whenever they are taken.
  const int64_t window = replay_.window;
  const int64_t finals = std::max<int64_t>(0, step - window + 1);
  double* final_sums = final_.data<double>();
  for (; finals_ < finals - 1; ++finals_) {
    Sums sums;
    for (int64_t i = finals_ + window - 1; i >= finals_; --i) sums = Before(sums, i);
    std::copy_n(sums.moved, 4, final_sums + 4 * finals_);
  }
  Sums sums;
  const int64_t first = std::max<int64_t>(0, step - window);
  for (int64_t i = step;; --i) {
    Write(i, sums.moved, 1);
    if (i == first) break;
    sums = Before(sums, i - 1);
  }
  if (finals_ < finals) {
    std::copy_n(sums.moved, 4, final_sums + 4 * finals_);
    finals_ = finals;
  }
  for (int64_t i = decays ? 0 : std::min(written_, finals); i < finals; ++i)
    Write(i, final_sums + 4 * i, kept[i + window]);
  written_ = finals;
  return replay_;
}

}  // namespace overtok
