// Copies of rows: a memcpy for each, or one for all where no list names them.
#include "core/ops/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"

namespace overtok::cpu {

void CopyRows(const Context& /*context*/, const CopyRowsArgs& args) {
  constexpr int64_t kGrainBytes = 65536;
  const int64_t count = RowsOf(args), bytes = RowBytesOf(args);
  const auto* from = static_cast<const char*>(args.from.raw());
  auto* to = static_cast<char*>(args.to.raw());
  const uint32_t* from_rows = args.from_rows.defined() ? args.from_rows.data<uint32_t>() : nullptr;
  const uint32_t* to_rows = args.to_rows.defined() ? args.to_rows.data<uint32_t>() : nullptr;
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / bytes);
  ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
    if (from_rows == nullptr && to_rows == nullptr) {
      std::memcpy(to + begin * bytes, from + begin * bytes,
                  static_cast<size_t>((end - begin) * bytes));
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const int64_t source = from_rows != nullptr ? from_rows[i] : i;
      const int64_t target = to_rows != nullptr ? to_rows[i] : i;
      OT_CHECK_LT(source, args.from.dim(0)) << "a row to copy from";
      OT_CHECK_LT(target, args.to.dim(0)) << "a row to copy to";
      std::memcpy(to + target * bytes, from + source * bytes, static_cast<size_t>(bytes));
    }
  });
}

}  // namespace overtok::cpu
