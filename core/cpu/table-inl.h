// What the passes over table rows share: where a row lies, and how its values are stored (f32, f64,
// or bf16 with stochastic rounding).
#if defined(OVERTOK_CORE_CPU_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_TABLE_INL_H_
#undef OVERTOK_CORE_CPU_TABLE_INL_H_
#else
#define OVERTOK_CORE_CPU_TABLE_INL_H_
#endif

#include "core/cpu/simd-inl.h"
#include "core/rng.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// Random numbers of one row's stochastic rounding: 16 bits an element, eight elements a Philox
// block; its counter is (row of the logical table, column / 8) and (step, stage), with stage 0 for
// the replay before a step and 1 for the step's own update.
struct Rounding {
  uint64_t key, high;
  Rounding(uint64_t random_key, int64_t step, int stage)
      : key(random_key), high(static_cast<uint64_t>(step) << 1 | static_cast<uint64_t>(stage)) {}
};

// Writes a row left to right. Plain storage: a store.
template <class D, class S>
class RowWriter {
 public:
  RowWriter(const Rounding& /*rounding*/, uint64_t /*row*/, S* values) : values_(values) {}
  HWY_INLINE void Write(D d, hn::Vec<D> v, int64_t column, int64_t count) {
    StoreFirst(d, v, values_ + column, count);
  }

 private:
  S* values_;
};

// bf16: the random bits are added below the last kept bit and the sum is cut off, so that the
// expected value is the value. Infinities stay, and a NaN stays one.
template <class D>
class RowWriter<D, bf16> {
 public:
  RowWriter(const Rounding& rounding, uint64_t row, bf16* values)
      : rounding_(rounding), row_(row << 32), values_(values) {}
  HWY_INLINE void Write(D d, hn::Vec<D> v, int64_t column, int64_t count) {
    const hn::Rebind<uint32_t, D> du32;
    const hn::Rebind<int32_t, D> di32;
    const hn::Rebind<uint16_t, D> du16;
    if (column % kAhead == 0) Draw(column);
    const auto random = hn::PromoteTo(du32, hn::LoadU(du16, random_ + column % kAhead));
    const auto bits = hn::BitCast(du32, v);
    const auto rounded = hn::IfThenElse(hn::RebindMask(du32, hn::Eq(v, v)), hn::Add(bits, random),
                                        hn::Or(bits, hn::Set(du32, 0x00400000u)));
    const auto narrow = hn::DemoteTo(du16, hn::BitCast(di32, hn::ShiftRight<16>(rounded)));
    auto* out = reinterpret_cast<uint16_t*>(values_ + column);
    if (count == static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(narrow, du16, out);
      return;
    }
    HWY_ALIGN uint16_t lanes[hn::MaxLanes(D())];
    hn::StoreU(narrow, du16, lanes);
    std::memcpy(out, lanes, static_cast<size_t>(count) * sizeof(uint16_t));
  }

 private:
  static constexpr int64_t kAhead = 64;  // columns drawn at once, a multiple of any vector
  void Draw(int64_t column) {
    for (int64_t i = 0; i < kAhead; i += 8) {
      const auto words =
          Philox(rounding_.key, row_ | static_cast<uint64_t>((column + i) / 8), rounding_.high);
      std::memcpy(random_ + i, words.data(), 16);
    }
  }
  Rounding rounding_;
  uint64_t row_;
  bf16* values_;
  HWY_ALIGN uint16_t random_[kAhead];
};

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
