#include "core/ops/table.h"

#include "core/ops/check_args.h"
#include "core/ops/embedding.h"

namespace overtok {
namespace {

void CheckState(const TableState& state, const TableRule& rule) {
  const Tensor& value = state.value;
  OT_CHECK_ACT(value);
  OT_CHECK_EQ(value.rank(), 2);
  OT_CHECK_GE(value.dim(1), 1);
  OT_CHECK(state.sharding.split != Split::kColumns);
  OT_CHECK(state.logical_rows != 0 || state.sharding.split == Split::kWhole);
  if (state.numbers.defined()) {
    OT_CHECK_DTYPE(state.numbers, DType::kU32);
    OT_CHECK_SHAPE(state.numbers, {value.dim(0)});
  } else if (state.logical_rows != 0) {
    OT_CHECK_EQ(SizeOfPart(state.sharding, state.logical_rows), value.dim(0));
  }
  const DType type = internal::StatisticType(value.dtype());
  if (state.m.defined()) {
    OT_CHECK_DTYPE(state.m, type);
    OT_CHECK(state.m.shape() == value.shape());
    OT_CHECK_APART(state.m, value);
  }
  OT_CHECK_EQ(state.v.defined(), rule.kind != TableRule::Kind::kSgd);
  OT_CHECK(rule.kind == TableRule::Kind::kAdam || !state.m.defined());
  OT_CHECK(rule.kind != TableRule::Kind::kAdam || state.m.defined() == (rule.beta1 != 0));
  if (state.v.defined()) {
    OT_CHECK_DTYPE(state.v, type);
    OT_CHECK_EQ(state.v.dim(0), value.dim(0));
    OT_CHECK(state.v.rank() == 1 || state.v.shape() == value.shape());
    OT_CHECK_APART(state.v, value);
  }
  if (state.last.defined()) {
    OT_CHECK_DTYPE(state.last, DType::kU32);
    OT_CHECK_SHAPE(state.last, {value.dim(0)});
  }
  OT_CHECK(state.last.defined() || rule.kind != TableRule::Kind::kAdam);
}

void CheckReplay(const TableReplay& replay) {
  OT_CHECK_GE(replay.step, 0);
  for (const Tensor& entries :
       {replay.moved, replay.moved_eps, replay.moved_eps2, replay.series_from, replay.kept,
        replay.power1, replay.power2, replay.root_power2, replay.gain, replay.root}) {
    OT_CHECK_DTYPE(entries, DType::kF64);
    OT_CHECK_LT(replay.step, entries.elements());
  }
}

}  // namespace

TableReplay OnDevice(const Context& context, const TableReplay& replay) {
  TableReplay device = replay;
  for (Tensor* tensor :
       {&device.moved, &device.moved_eps, &device.moved_eps2, &device.series_from, &device.kept,
        &device.power1, &device.power2, &device.root_power2, &device.gain, &device.root}) {
    *tensor = context.OnDevice(*tensor);
  }
  return device;
}

void TableReplayRows(const Context& context, const TableReplayArgs& args) {
  CheckState(args.state, args.rule);
  CheckReplay(args.replay);
  OT_CHECK_DTYPE(args.rows, DType::kU32);
  if (args.halted.defined()) OT_CHECK_DTYPE(args.halted, DType::kU32);
  if (args.rows.elements() == 0 || !args.state.last.defined()) return;
  internal::Call(context.kernels().table_replay_rows, "replay of table rows", context, args);
}

void TableLookup(const Context& context, const TableLookupArgs& args) {
  CheckState(args.state, args.rule);
  CheckReplay(args.replay);
  OT_CHECK_DTYPE(args.ids, DType::kU32);
  OT_CHECK_ACT(args.y);
  OT_CHECK_SHAPE(args.y, {args.ids.elements(), args.state.value.dim(1)});
  OT_CHECK((args.y.dtype() == DType::kF64) == (args.state.value.dtype() == DType::kF64));
  if (args.ids.elements() == 0) return;
  internal::Call(context.kernels().table_lookup, "lookup in a table", context, args);
}

void TableUpdate(const Context& context, const TableUpdateArgs& args) {
  CheckState(args.state, args.rule);
  OT_CHECK_DTYPE(args.rows, DType::kU32);
  OT_CHECK_DTYPE(args.gradient, internal::StatisticType(args.state.value.dtype()));
  OT_CHECK_SHAPE(args.gradient, {args.rows.elements(), args.state.value.dim(1)});
  OT_CHECK_GE(args.clip.max_norm, 0);
  if (args.clip.max_norm > 0) OT_CHECK_DTYPE(args.clip.norm_squared, DType::kF64);
  if (args.clip.halted.defined()) OT_CHECK_DTYPE(args.clip.halted, DType::kU32);
  OT_CHECK(args.constants.correction1 > 0 && args.constants.correction2 > 0)
      << "bias corrections " << args.constants.correction1 << ", " << args.constants.correction2;
  OT_CHECK(args.step >= 0 && args.step < (int64_t{1} << 32) - 1);
  if (args.rows.elements() == 0) return;
  internal::Call(context.kernels().table_update, "update of table rows", context, args);
}

}  // namespace overtok
