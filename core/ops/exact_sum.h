// Exact sums of doubles on the device (core/exact_sum.h), so that norms and the sums of AdamH's
// heads are the same bits under every layout and no host has to add them up; and the flag that
// stops updates once a number is not finite. A sum's words are an ExactSum's as its words() gives
// them, carried, the same bits whoever added what in which order: they add up over ranks as plain
// integers.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// values[i] is added to the sum i % S, without rounding and in no order.
struct AddExactArgs {
  Tensor values;            // [n] f64, any; n is a multiple of S, at most 2^28 S
  Tensor words;             // [S, ExactSum::kWords] i64: an ExactSum each
  bool accumulate = false;  // to what `words` hold; else to 0
};
// An empty `values` clears where it does not accumulate.
void AddExact(const Context& context, const AddExactArgs& args);

// out[s] = the sum over all ranks' words of s, rounded once to the nearest double as
// ExactSum::Round does: NaN, infinities and overflow as there.
struct RoundExactArgs {
  Tensor words;  // [ranks, S, ExactSum::kWords] i64; up to 2^20 ranks
  Tensor out;    // [S] f64
};
void RoundExact(const Context& context, const RoundExactArgs& args);

// Sets halted[0] to 1 where a number of x, or the sum of all in their order, is not finite; else
// leaves it as it is: what has been halted stays so.
struct HaltUnlessFiniteArgs {
  Tensor x;       // [n] f64
  Tensor halted;  // [1] u32
};
void HaltUnlessFinite(const Context& context, const HaltUnlessFiniteArgs& args);

}  // namespace overtok
