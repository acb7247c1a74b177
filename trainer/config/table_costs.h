// What hashed tables take: rows, parameters, bytes that stay and bytes that a step moves.
// Arithmetic on a configuration; nothing is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace overtok {

struct TableCost {
  std::string name;   // "ngram.0", "gram2": of parameters and traces
  int64_t order = 0;  // tokens in its n-grams
  int64_t rows = 0, width = 0;
  int64_t value_bytes = 0;
  int64_t state_bytes = 0;  // moments, and the number of steps that each row reflects
  // Rows that one step can touch: min(rows, tokens of a step).
  int64_t touched_rows = 0;
  // Bytes that a step reads and writes at most, U touched rows, T tokens of a step: bringing rows
  // up to date (where silent steps change them) and the update each read and write values and
  // state of U rows; the forward pass reads T values; gradients of U rows are written and read.
  int64_t step_bytes = 0;
  bool in_host_memory = false;  // value_bytes and state_bytes, beside a device

  int64_t parameters() const { return rows * width; }
};

// Input tables in their order, then those of n-gram heads. Needs a resolved configuration.
std::vector<TableCost> TableCosts(const Config& config);

struct TableTotals {
  int64_t parameters = 0, value_bytes = 0, state_bytes = 0, step_bytes = 0;
  int64_t host_bytes = 0;  // of values and state, in host memory beside a device
};
TableTotals TotalOf(const std::vector<TableCost>& tables);

// The same tables under other settings of optimizer.tables.
struct TableOption {
  std::string setting;  // "storage: bf16"
  TableTotals totals;
};
std::vector<TableOption> TableOptions(const Config& config);

}  // namespace overtok
