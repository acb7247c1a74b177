// One rank's table with its exchange, and what ranks read in a step: what the tests of divided
// tables share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/ops/embedding.h"
#include "core/parameter.h"
#include "model/table_exchange.h"
#include "model/touched_rows.h"

namespace overtok::testing {

inline constexpr int64_t kRows = 1000, kWidth = 70, kPositions = 300;
// Distinct rows of a rank and step; one rank may have the positions of all.
inline constexpr int64_t kCapacity = 900;

inline TableStorage TableStorageOf(DType value) { return {.value = value}; }

inline ParameterSpec TableSpec(Shape shape, int64_t touched) {
  return {.name = "gram",
          .shape = shape,
          .placement = Placement::kTableRows,
          .group = OptimizerGroup::kAdam,
          .initializer = Initializer::kNormal,
          .scale = 0.5,
          .update = UpdateKind::kTable,
          .touched_capacity = touched};
}

// One rank's table and what it reads in a step.
class RankTable {
 public:
  RankTable(Communicator* world, int tensor, DType value, bool training)
      : context_(CpuContext()),
        mesh_(world, tensor),
        parameters_(&memory_, DType::kF32, training, TableStorageOf(value), mesh_.layout()),
        table_(&parameters_.Add(TableSpec({kRows, kWidth}, kCapacity), false)),
        exchange_(table_, &mesh_, kCapacity, training, &memory_),
        builder_(kCapacity),
        named_rows_(kCapacity),
        slots_(kCapacity) {
    parameters_.Initialize(5);
    memory_.Commit(&context_);
    named_.rows = Tensor(named_rows_.data(), {kCapacity});
    if (training) return;
    // Rows of an evaluation reflect 0 to 3 steps.
    for (int64_t i = 0; i < table_->value.dim(0); ++i) {
      const int64_t row = GlobalOf(table_->sharding, kRows, i);
      table_->table.last.data<uint32_t>()[i] = static_cast<uint32_t>(row % 4);
      for (int64_t c = 0; c < kWidth; ++c) {
        const auto element = static_cast<float>((row * kWidth + c) % 97);
        table_->table.m.data<float>()[i * kWidth + c] = element - 40;
        table_->table.v.data<float>()[i * kWidth + c] = element + 1;
      }
    }
  }

  absl::Status Name(std::vector<uint32_t> ids) {
    ids_ = std::move(ids);
    TouchedRows* named = table_->touched.rows.defined() ? &table_->touched : &named_;
    builder_.Fill(ids_, named, slots_.data());
    return exchange_.Name(named->used(), slots());
  }
  std::vector<float> Read(const TableReading* reading) {
    exchange_.Fetch(context_, reading);
    const auto count = static_cast<int64_t>(ids_.size());
    std::vector<float> y(static_cast<size_t>(count * kWidth), -1);
    exchange_.Read(context_, Tensor(ids_.data(), {count}), slots(), reading,
                   Tensor(y.data(), {count, kWidth}));
    return y;
  }
  Tensor slots() { return Tensor(slots_.data(), {static_cast<int64_t>(ids_.size())}); }
  Parameter& table() { return *table_; }
  TableExchange& exchange() { return exchange_; }
  const Context& context() const { return context_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  Memory memory_{Memory::Mode::kReal};
  Context context_;
  Mesh mesh_;
  ParameterSet parameters_;
  Parameter* table_;
  TableExchange exchange_;
  RowSlots builder_;
  TouchedRows named_;
  std::vector<uint32_t> named_rows_, slots_, ids_;
};

// Reads of rank (or leaf) `rank` in pattern `pattern`: everything anywhere, nothing on some ranks,
// nothing at all, the same on all ranks, one row only.
inline constexpr int kPatterns = 5;
inline std::vector<uint32_t> Ids(int pattern, int rank) {
  std::mt19937 generator(static_cast<uint32_t>(pattern * 100 + (pattern == 3 ? 0 : rank)));
  std::vector<uint32_t> ids(kPositions);
  for (uint32_t& id : ids) {
    // A third of them are few rows that all ranks have.
    id = generator() % 3 == 0 ? 90 + generator() % 9 : generator() % kRows;
    if (generator() % 10 == 0) id = kNoRow;
    if (pattern == 4) id = 999;
  }
  if (pattern == 2 || (pattern == 1 && (rank + rank / 4) % 2 == 0))
    std::fill(ids.begin(), ids.end(), kNoRow);
  return ids;
}

inline std::set<uint32_t> Distinct(const std::vector<uint32_t>& ids) {
  std::set<uint32_t> rows(ids.begin(), ids.end());
  rows.erase(kNoRow);
  return rows;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace overtok::testing
