// Small elementwise ops. act: f32, bf16 or f64.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

struct FillArgs {
  Tensor x;  // any float dtype, any shape
  double value = 0;
};
void Fill(const Context& context, const FillArgs& args);

// y = x in y's dtype, rounded to nearest even. f32 <-> bf16, f32 -> f32, bf16 -> bf16, f64 -> f64.
struct CastArgs {
  Tensor x, y;  // equal element counts
};
void Cast(const Context& context, const CastArgs& args);

// y += x. Equal dtype (act) and element count.
struct AddArgs {
  Tensor x, y;
};
void Add(const Context& context, const AddArgs& args);

}  // namespace overtok
