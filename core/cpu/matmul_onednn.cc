// Matrix products by oneDNN. Primitives are made once per (sizes, strides, dtypes, accumulate,
// alpha is 1) and kept with their memory objects, so that a product after the first of its kind
// creates nothing.
#include "core/cpu/matmul.h"

#ifdef OVERTOK_HAVE_ONEDNN
#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

namespace overtok::cpu {
namespace {

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t, int64_t, int64_t, DType, DType, bool, bool>;

Key KeyOf(const Product& p) {
  return {
      p.batch, p.m,        p.n,       p.k,     p.a_batch, p.a_row,  p.a_column,   p.b_batch,
      p.b_row, p.b_column, p.c_batch, p.c_row, p.operand, p.result, p.accumulate, p.alpha == 1.0f};
}

struct Entry {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, alpha;  // alpha: empty when it is 1
  bool available = false;
};

dnnl::memory::desc Describe(const Product& p, DType dtype, int64_t rows, int64_t columns,
                            int64_t batch_stride, int64_t row_stride, int64_t column_stride) {
  const auto type =
      dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  if (p.batch == 1) {
    return dnnl::memory::desc({rows, columns}, type, dnnl::memory::dims{row_stride, column_stride});
  }
  return dnnl::memory::desc({p.batch, rows, columns}, type,
                            dnnl::memory::dims{batch_stride, row_stride, column_stride});
}

// One per calling thread: a primitive's memory objects and scratchpad serve one call at a time.
class Cache {
 public:
  Cache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  bool Run(const Product& p) {
    const Key key = KeyOf(p);
    auto found = entries_.find(key);
    if (found == entries_.end()) found = entries_.emplace(key, Create(p)).first;
    Entry& entry = found->second;
    if (!entry.available) return false;
    entry.a.set_data_handle(const_cast<void*>(p.a));
    entry.b.set_data_handle(const_cast<void*>(p.b));
    entry.c.set_data_handle(p.c);
    float alpha = p.alpha;
    const bool scaled = alpha != 1.0f;
    if (scaled) entry.alpha.set_data_handle(&alpha);
    // By the C interface: the C++ one builds a map and a vector for each call.
    const std::array<dnnl_exec_arg_t, 4> arguments = {
        {{DNNL_ARG_SRC, entry.a.get()},
         {DNNL_ARG_WEIGHTS, entry.b.get()},
         {DNNL_ARG_DST, entry.c.get()},
         {DNNL_ARG_ATTR_OUTPUT_SCALES, scaled ? entry.alpha.get() : nullptr}}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(entry.primitive.get(), stream_.get(),
                                                   scaled ? 4 : 3, arguments.data()),
                            "could not execute");
    stream_.wait();
    return true;
  }

 private:
  Entry Create(const Product& p) {
    Entry entry;
    const auto a = Describe(p, p.operand, p.m, p.k, p.a_batch, p.a_row, p.a_column);
    const auto b = Describe(p, p.operand, p.k, p.n, p.b_batch, p.b_row, p.b_column);
    const auto c = Describe(p, p.result, p.m, p.n, p.c_batch, p.c_row, 1);
    dnnl::primitive_attr attributes;
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    // Scales other than 1 are given at run time: a rate that changes each step must not make a
    // primitive each step.
    if (p.alpha != 1.0f) attributes.set_output_scales(0, {DNNL_RUNTIME_F32_VAL});
    try {
      entry.primitive = dnnl::matmul(
          dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine_));
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return entry;
      throw;
    }
    entry.a = dnnl::memory(a, engine_, nullptr);
    entry.b = dnnl::memory(b, engine_, nullptr);
    entry.c = dnnl::memory(c, engine_, nullptr);
    if (p.alpha != 1.0f) {
      const dnnl::memory::desc scale({1}, dnnl::memory::data_type::f32, dnnl::memory::dims{1});
      entry.alpha = dnnl::memory(scale, engine_, nullptr);
    }
    entry.available = true;
    return entry;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Entry> entries_;
};

}  // namespace

bool OneDnnProduct(const Product& product) {
  if (product.operand == DType::kF64) return false;
  try {
    thread_local Cache cache;
    return cache.Run(product);
  } catch (const dnnl::error& error) {
    OT_CHECK(false) << "oneDNN failed on a product of " << product.m << " x " << product.n << " x "
                    << product.k << ": " << error.what();
    return false;
  }
}

}  // namespace overtok::cpu

#else

namespace overtok::cpu {

bool OneDnnProduct(const Product& /*product*/) { return false; }

}  // namespace overtok::cpu

#endif
