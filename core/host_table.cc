#include "core/host_table.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/ops/copy_rows.h"

namespace overtok {
namespace {

// f(tensor of a, the same of b) for all that tables keep.
template <class F>
void ForEachTensor(const TableState& a, const TableState& b, const F& f) {
  f(a.value, b.value);
  if (a.m.defined()) f(a.m, b.m);
  if (a.v.defined()) f(a.v, b.v);
  if (a.last.defined()) f(a.last, b.last);
}

}  // namespace

HostTable::HostTable(absl::string_view name, const TableState& table, int64_t capacity,
                     Memory* memory)
    : device_(memory->device()), table_(table) {
  OT_CHECK(device_ != nullptr) << "the CPU's tables lie in host memory as they are";
  for (size_t i = 0; i < sets_.size(); ++i) {
    const auto take = [&](Purpose purpose, const char* what, const Tensor& of) {
      if (!of.defined()) return Tensor();
      const Shape shape = of.rank() == 1 ? Shape{capacity} : Shape{capacity, of.dim(1)};
      return memory->Take(purpose, absl::StrCat(name, ".copies", i, what), of.dtype(), shape);
    };
    TableState& set = sets_[i];
    set.value = take(Purpose::kParameters, ".value", table.value);
    set.m = take(Purpose::kOptimizer, ".m", table.m);
    set.v = take(Purpose::kOptimizer, ".v", table.v);
    set.last = take(Purpose::kOptimizer, ".last", table.last);
    set.sharding = table.sharding;
    set.logical_rows = table.logical_rows;
  }
  const Memory::InputsOf group(memory, InputGroup::kAhead);
  const auto list = [&](const char* what) {
    return memory->TakeInput(Purpose::kBatches, absl::StrCat(name, what), DType::kU32, {capacity});
  };
  held_ = list(".held");
  fresh_ = list(".fresh");
  fresh_to_ = list(".fresh_to");
  kept_ = list(".kept");
  kept_to_ = list(".kept_to");
  named_ =
      memory->TakeHost(Purpose::kBatches, absl::StrCat(name, ".named"), DType::kU32, {capacity});
  identity_ =
      memory->Take(Purpose::kBatches, absl::StrCat(name, ".places"), DType::kU32, {capacity});
  if (memory->dry()) return;
  std::vector<uint32_t> places(static_cast<size_t>(capacity));
  std::iota(places.begin(), places.end(), 0U);
  const Device::Piece piece = {identity_.raw(), places.data(), identity_.bytes()};
  device_->Send({&piece, 1}, StreamName::kMain);
}

void HostTable::Name(const Tensor& rows) {
  const int64_t count = rows.elements();
  OT_CHECK_LE(count, named_.elements());
  const uint32_t* row = rows.data<uint32_t>();
  const uint32_t* held = held_.data<uint32_t>();
  uint32_t *fresh = fresh_.data<uint32_t>(), *fresh_to = fresh_to_.data<uint32_t>(),
           *kept = kept_.data<uint32_t>(), *kept_to = kept_to_.data<uint32_t>();
  named_count_ = count;
  fresh_count_ = kept_count_ = 0;
  int64_t place = 0;  // in the step before's rows, ascending as well
  for (int64_t i = 0; i < count; ++i) {
    OT_CHECK(i == 0 || row[i - 1] < row[i]) << "rows of a table are not ascending";
    while (place < held_count_ && held[place] < row[i]) ++place;
    if (place < held_count_ && held[place] == row[i]) {
      kept[kept_count_] = static_cast<uint32_t>(place);
      kept_to[kept_count_++] = static_cast<uint32_t>(i);
    } else {
      fresh[fresh_count_] = row[i];
      fresh_to[fresh_count_++] = static_cast<uint32_t>(i);
    }
  }
  std::copy_n(row, count, named_.data<uint32_t>());
}

void HostTable::CopyFresh(const Context& context) const {
  if (fresh_count_ == 0) return;
  const Tensor from_rows = context.OnDevice(fresh_.Rows(0, fresh_count_));
  const Tensor to_rows = context.OnDevice(fresh_to_.Rows(0, fresh_count_));
  ForEachTensor(table_, sets_[1 - current_], [&](const Tensor& from, const Tensor& to) {
    CopyRows(context, {.from = from, .to = to, .from_rows = from_rows, .to_rows = to_rows});
  });
}

void HostTable::CopyKept(const Context& context) const {
  if (kept_count_ == 0) return;
  const Tensor from_rows = context.OnDevice(kept_.Rows(0, kept_count_));
  const Tensor to_rows = context.OnDevice(kept_to_.Rows(0, kept_count_));
  ForEachTensor(sets_[current_], sets_[1 - current_], [&](const Tensor& from, const Tensor& to) {
    CopyRows(context, {.from = from, .to = to, .from_rows = from_rows, .to_rows = to_rows});
  });
}

void HostTable::CopyBack(const Context& context) const {
  if (!pending_ || held_count_ == 0) return;
  const Tensor to_rows = context.OnDevice(held_.Rows(0, held_count_));
  ForEachTensor(sets_[current_], table_, [&](const Tensor& from, const Tensor& to) {
    CopyRows(context, {.from = from, .to = to, .from_rows = Tensor(), .to_rows = to_rows});
  });
}

void HostTable::Commit() {
  current_ = 1 - current_;
  held_count_ = named_count_;
  std::copy_n(named_.data<uint32_t>(), held_count_, held_.data<uint32_t>());
  named_count_ = -1;
  pending_ = true;
  behind_main_ = false;
}

void HostTable::BringRows(const Context& context, std::span<HostTable* const> tables) {
  if (tables.empty()) return;
  const Context side = context.Side();
  bool behind_main = false;
  for (const HostTable* table : tables) {
    OT_CHECK_GE(table->named_count_, 0) << "a step brings rows that it has not named";
    behind_main |= table->behind_main_;
  }
  if (behind_main) side.Follow(context);
  side.SendInputs(InputGroup::kAhead);
  for (const HostTable* table : tables) table->CopyFresh(side);
  context.Follow(side);
  for (const HostTable* table : tables) table->CopyKept(context);
  side.Follow(context);
  for (const HostTable* table : tables) table->CopyBack(side);
  for (HostTable* table : tables) table->Commit();
}

void HostTable::Settle(const Context& context) {
  if (!pending_) return;
  const Context side = context.Side();
  side.Follow(context);
  side.SendInputs(InputGroup::kAhead);
  CopyBack(side);
  context.Follow(side);
  pending_ = false;
}

void HostTable::Forget() {
  device_->Order(StreamName::kSide, StreamName::kMain);
  pending_ = false;
  held_count_ = 0;
  named_count_ = -1;
  behind_main_ = true;
}

}  // namespace overtok
