#include "model/table_exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/comm/agreement.h"
#include "core/ops/embedding.h"
#include "core/ops/row_tree_sum.h"
#include "core/ops/table.h"
#include "core/sort_by_id.h"

namespace overtok {
namespace {

constexpr int64_t kIdBytes = 4;

size_t At(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

int64_t ServedCapacity(int64_t local_rows, int64_t ranks, int64_t asked_by_each) {
  constexpr int64_t kBesides = 16384;
  const int64_t most = ranks * std::min(asked_by_each, local_rows);
  return std::min(most, asked_by_each + asked_by_each / 2 + kBesides);
}

int64_t OwnedCapacity(int64_t local_rows, int64_t ranks, int64_t asked_by_each) {
  return std::min(local_rows, ServedCapacity(local_rows, ranks, asked_by_each));
}

int64_t TableBytesSent(const TableCounts& counts, int64_t ranks, int64_t width, DType value,
                       bool training) {
  if (ranks == 1) return 0;
  const int64_t f32 = SizeOf(DType::kF32);
  int64_t bytes = kIdBytes * ranks * (ranks - 1) + kIdBytes * counts.asked;
  bytes += counts.served * width * (training ? SizeOf(value) : f32);
  if (training) bytes += counts.asked * width * f32;
  return bytes;
}

TableExchange::TableExchange(Parameter* table, const Mesh* mesh, int64_t asked, bool training,
                             Memory* memory)
    : table_(table), mesh_(mesh), training_(training), ranks_(mesh->layout().world()) {
  OT_CHECK(table->is_table());
  OT_CHECK(table->sharding.parts == ranks_ || ranks_ == 1) << table->spec.name;
  if (direct()) {
    table->owned = table->touched;
  } else {
    TakeBuffers(asked, memory);
  }
  if (training && table->in_host_memory) {
    table->copies = std::make_unique<HostTable>(table->spec.name, table->table,
                                                table->owned.rows.elements(), memory);
  }
}

void TableExchange::TakeBuffers(int64_t asked, Memory* memory) {
  const int64_t rows = table_->spec.shape[0], width = table_->spec.shape[1];
  const int64_t local_rows = table_->value.dim(0);
  asked_capacity_ = std::min(asked, rows);
  served_capacity_ = ServedCapacity(local_rows, ranks_, asked_capacity_);
  const int64_t owned_capacity = OwnedCapacity(local_rows, ranks_, asked_capacity_);
  OT_CHECK_LT(served_capacity_, int64_t{1} << 32);
  asked_of_.resize(At(ranks_));
  served_from_.resize(At(ranks_));
  served_begin_.resize(At(ranks_ + 1));
  const auto take = [&](Purpose purpose, const char* what, DType dtype, Shape shape) {
    return memory->Take(purpose, absl::StrCat(table_->spec.name, what), dtype, shape);
  };
  // Lists of rows: the host makes all of them, ops read some.
  const auto take_list = [&](bool input, const char* what, DType dtype, Shape shape) {
    const std::string name = absl::StrCat(table_->spec.name, what);
    return input ? memory->TakeInput(Purpose::kBatches, name, dtype, shape)
                 : memory->TakeHost(Purpose::kBatches, name, dtype, shape);
  };
  counts_ = take_list(false, ".counts", DType::kU32, {ranks_, ranks_});
  asked_ids_ = take_list(false, ".asked", DType::kU32, {asked_capacity_});
  places_ = take_list(false, ".places", DType::kU32, {asked_capacity_});
  served_ids_ = take_list(true, ".served", DType::kU32, {served_capacity_});
  fetched_ = take(Purpose::kActivations, ".fetched",
                  training_ ? table_->value.dtype() : DType::kF32, {asked_capacity_, width});
  served_ = take(Purpose::kActivations, ".served_rows", DType::kF32, {served_capacity_, width});
  if (!training_) return;
  sort_ = take_list(true, ".sort", DType::kU64, {2, served_capacity_});
  starts_ = take_list(true, ".starts", DType::kU32, {owned_capacity + 1});
  table_->owned = {.rows = take_list(true, ".owned", DType::kU32, {owned_capacity}),
                   .gradient = take(Purpose::kGradients, ".owned_gradient", DType::kF32,
                                    {owned_capacity, width}),
                   .count = 0};
}

void TableExchange::WaitForAll() {
  fetch_.Wait();
  return_.Wait();
  returning_ = false;
}

absl::Status TableExchange::Name(const Tensor& rows, const Tensor& slots) {
  WaitForAll();
  if (training_) OT_CHECK(rows.raw() == table_->touched.rows.raw());
  if (direct()) {
    if (training_) table_->owned = table_->touched;
    if (copies() != nullptr) copies()->Name(table_->owned.used());
    return absl::OkStatus();
  }
  OrderByOwner(rows, slots);
  OT_RETURN_IF_ERROR(ShareCounts());
  StartExchange(asked_ids_, served_ids_, /*to_owners=*/true).Wait();
  if (training_) MergeLists();
  return absl::OkStatus();
}

void TableExchange::OrderByOwner(const Tensor& rows, const Tensor& slots) {
  const int64_t logical_rows = table_->spec.shape[0];
  const uint32_t* row = rows.data<uint32_t>();
  uint32_t* place = places_.data<uint32_t>();
  uint32_t* ids = asked_ids_.data<uint32_t>();
  asked_count_ = rows.elements();
  OT_CHECK_LE(asked_count_, asked_capacity_) << "rows of " << table_->spec.name;
  for (Stretch& stretch : asked_of_) stretch = {};
  // First the owners, then the places behind those of all owners before.
  for (int64_t i = 0; i < asked_count_; ++i) {
    OT_CHECK(i == 0 || row[i - 1] < row[i]) << "rows of " << table_->spec.name << " not ascending";
    place[i] = static_cast<uint32_t>(PartOf(table_->sharding, logical_rows, row[i]));
    ++asked_of_[place[i]].count;
  }
  int64_t begin = 0;
  for (Stretch& stretch : asked_of_) {
    stretch.begin = begin;
    begin += stretch.count;
    stretch.count = 0;
  }
  for (int64_t i = 0; i < asked_count_; ++i) {
    Stretch& stretch = asked_of_[place[i]];
    place[i] = static_cast<uint32_t>(stretch.begin + stretch.count++);
    ids[place[i]] = static_cast<uint32_t>(LocalOf(table_->sharding, logical_rows, row[i]));
  }
  if (slots.elements() == 0) return;
  auto* slot = slots.data<uint32_t>();
  for (int64_t i = 0; i < slots.elements(); ++i) {
    if (slot[i] == kNoRow) continue;
    OT_CHECK_LT(static_cast<int64_t>(slot[i]), asked_count_);
    slot[i] = place[slot[i]];
  }
}

absl::Status TableExchange::ShareCounts() {
  const Layout& layout = mesh_->layout();
  const int64_t me = layout.world_rank();
  uint32_t* counts = counts_.data<uint32_t>();
  for (int64_t part = 0; part < ranks_; ++part)
    counts[me * ranks_ + part] = static_cast<uint32_t>(asked_of_[At(part)].count);
  mesh_->world().AllGather(counts_.Rows(me, 1), counts_, Traffic::kTables);

  // Every rank sees what every part is asked for, so that all of them find the same error.
  for (int64_t part = 0; part < ranks_; ++part) {
    Sharding sharding = table_->sharding;
    sharding.part = part;
    const int64_t room =
        ServedCapacity(SizeOfPart(sharding, table_->spec.shape[0]), ranks_, asked_capacity_);
    int64_t asked = 0;
    for (int64_t rank = 0; rank < ranks_; ++rank) asked += counts[rank * ranks_ + part];
    if (asked <= room) continue;
    return Agree(
        mesh_->world(),
        absl::ResourceExhaustedError(absl::StrCat(
            table_->spec.name, ": ", asked, " rows are asked of rank ", part,
            "'s part in one step, and it has room for ", room,
            " (half more than an even spread): this data's rows collect on few ranks; use fewer "
            "ranks, more sequences per rank, or a table of another number of rows")));
  }

  // Contributions in the order of the sums: data ranks of one tensor rank next to each other.
  int64_t begin = 0, order = 0;
  for (int of_tensor = 0; of_tensor < layout.tensor; ++of_tensor) {
    for (int of_data = 0; of_data < layout.data; ++of_data) {
      const int64_t rank = layout.RankOf(of_data, of_tensor);
      const int64_t count = counts[rank * ranks_ + me];
      served_from_[At(rank)] = {begin, count};
      served_begin_[At(order++)] = begin;
      begin += count;
    }
  }
  served_begin_[At(order)] = begin;
  return absl::OkStatus();
}

int64_t TableExchange::served() const { return served_begin_.back(); }

void TableExchange::MergeLists() {
  TouchedRows& owned = table_->owned;
  uint64_t* pairs = sort_.data<uint64_t>();
  auto* ids = served_ids_.data<uint32_t>();
  const int64_t count = served();
  for (int64_t i = 0; i < count; ++i)
    pairs[i] = static_cast<uint64_t>(ids[i]) << 32 | static_cast<uint64_t>(i);
  contributions_ = SortById(pairs, pairs + served_capacity_, count);
  uint32_t* rows = owned.rows.data<uint32_t>();
  uint32_t* starts = starts_.data<uint32_t>();
  owned.count = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto row = static_cast<uint32_t>(contributions_[i] >> 32);
    if (owned.count > 0 && rows[owned.count - 1] == row) continue;
    rows[owned.count] = row;
    starts[owned.count++] = static_cast<uint32_t>(i);
  }
  starts[owned.count] = static_cast<uint32_t>(count);
  if (copies() == nullptr) return;
  // Rows are served from their copies, which lie in the order of the merged list.
  copies()->Name(owned.used());
  for (int64_t row = 0; row < owned.count; ++row) {
    for (uint32_t i = starts[row]; i < starts[row + 1]; ++i)
      ids[contributions_[i] & 0xffffffffU] = static_cast<uint32_t>(row);
  }
}

Request TableExchange::StartExchange(const Tensor& asked, const Tensor& served, bool to_owners) {
  std::vector<Communicator::Message> of_owners, of_askers;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const Stretch& a = asked_of_[At(rank)];
    const Stretch& s = served_from_[At(rank)];
    const int peer = static_cast<int>(rank);
    if (a.count > 0) of_owners.push_back({peer, asked.Rows(a.begin, a.count)});
    if (s.count > 0) of_askers.push_back({peer, served.Rows(s.begin, s.count)});
  }
  return to_owners ? mesh_->world().StartExchange(of_owners, of_askers, Traffic::kTables)
                   : mesh_->world().StartExchange(of_askers, of_owners, Traffic::kTables);
}

void TableExchange::Fetch(const Context& context, const TableReading* reading) {
  OT_CHECK_EQ(reading == nullptr, training_);
  if (direct()) return;
  WaitForAll();  // their rows lie where these will
  const Tensor ids = context.OnDevice(served_ids_.Rows(0, served()));
  // Of narrower values the first half of the room is used.
  const Tensor rows(served_.raw(), fetched_.dtype(), served_.shape());
  const Tensor used = rows.Rows(0, served());
  if (reading == nullptr) {
    EmbeddingForward(context, {.ids = ids, .table = table_->step_table(context).value, .y = used});
  } else {
    table_->Settle(context);
    TableLookup(context, {.state = table_->table,
                          .rule = reading->rule,
                          .replay = OnDevice(context, reading->replay),
                          .ids = ids,
                          .y = used});
  }
  fetch_ = StartExchange(fetched_, rows, /*to_owners=*/false);
}

void TableExchange::Read(const Context& context, const Tensor& ids, const Tensor& slots,
                         const TableReading* reading, const Tensor& y) {
  if (!direct()) {
    fetch_.Wait();
    EmbeddingForward(context, {.ids = context.OnDevice(slots), .table = fetched_, .y = y});
  } else if (reading == nullptr) {
    const Tensor places = context.OnDevice(copies() != nullptr ? slots : ids);
    EmbeddingForward(context, {.ids = places, .table = table_->step_table(context).value, .y = y});
  } else {
    table_->Settle(context);
    TableLookup(context, {.state = table_->table,
                          .rule = reading->rule,
                          .replay = OnDevice(context, reading->replay),
                          .ids = context.OnDevice(ids),
                          .y = y});
  }
}

void TableExchange::StartReturn() {
  OT_CHECK(training_);
  if (direct()) return;
  OT_CHECK(!returning_) << "gradients of " << table_->spec.name << " have set out before";
  fetch_.Wait();  // a rank may have read nothing; what it served still leaves from served_
  return_ = StartExchange(table_->touched.gradient, served_, /*to_owners=*/true);
  returning_ = true;
}

void TableExchange::ReturnGradients(const Context& context) {
  OT_CHECK(training_);
  if (direct()) return;
  if (!returning_) StartReturn();
  return_.Wait();
  returning_ = false;
  const TouchedRows& owned = table_->owned;
  if (owned.count == 0) return;
  RowTreeSum(context,
             {.contributions = served_.Rows(0, served()),
              .order = context.OnDevice(Tensor(const_cast<uint64_t*>(contributions_), {served()})),
              .starts = context.OnDevice(starts_.Rows(0, owned.count + 1)),
              .part_begin = served_begin_,
              .leaves = mesh_->layout().data,
              .out = owned.used_gradient()});
}

TableCounts TableExchange::counts() const {
  if (direct()) return {};
  const auto me = At(mesh_->layout().world_rank());
  return {.asked = asked_count_ - asked_of_[me].count, .served = served() - served_from_[me].count};
}

}  // namespace overtok
