#include "core/rng.h"

#include <cmath>

#include "core/cpu/parallel.h"
#include "core/philox.h"

namespace overtok {
namespace {

// Polynomial with coefficients in ascending order.
template <size_t N>
double Polynomial(const std::array<double, N>& c, double x) {
  double value = c[N - 1];
  for (size_t i = N - 1; i-- > 0;) value = value * x + c[i];
  return value;
}

// AS 241, PPND16: three rational approximations, by distance from the middle.
double NormalQuantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    static constexpr std::array<double, 8> a = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                                1.9715909503065514427e3, 1.3731693765509461125e4,
                                                4.5921953931549871457e4, 6.7265770927008700853e4,
                                                3.3430575583588128105e4, 2.5090809287301226727e3};
    static constexpr std::array<double, 8> b = {1.0,
                                                4.2313330701600911252e1,
                                                6.8718700749205790830e2,
                                                5.3941960214247511077e3,
                                                2.1213794301586595867e4,
                                                3.9307895800092710610e4,
                                                2.8729085735721942674e4,
                                                5.2264952788528545610e3};
    const double r = 0.180625 - q * q;
    return q * Polynomial(a, r) / Polynomial(b, r);
  }
  double r = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  double value = 0;
  if (r <= 5) {
    static constexpr std::array<double, 8> c = {
        1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static constexpr std::array<double, 8> d = {1.0,
                                                2.05319162663775882187e0,
                                                1.67638483018380384940e0,
                                                6.89767334985100004550e-1,
                                                1.48103976427480074590e-1,
                                                1.51986665636164571966e-2,
                                                5.47593808499534494600e-4,
                                                1.05075007164441684324e-9};
    r -= 1.6;
    value = Polynomial(c, r) / Polynomial(d, r);
  } else {
    static constexpr std::array<double, 8> e = {
        6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
        2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static constexpr std::array<double, 8> f = {1.0,
                                                5.99832206555887937690e-1,
                                                1.36929880922735805310e-1,
                                                1.48753612908506148525e-2,
                                                7.86869131145613259100e-4,
                                                1.84631831751005468180e-5,
                                                1.42151175831644588870e-7,
                                                2.04426310338993978564e-15};
    r -= 5;
    value = Polynomial(e, r) / Polynomial(f, r);
  }
  return q < 0 ? -value : value;
}

}  // namespace

std::array<uint32_t, 4> Philox(uint64_t key, uint64_t low, uint64_t high) {
  return PhiloxWords(key, low, high);
}

double UniformOpen(uint32_t a, uint32_t b) {
  // 52 bits and a half: never 0, never 1.
  const uint64_t bits = (static_cast<uint64_t>(a) << 32 | b) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

double TruncatedNormal(double u) {
  // The standard normal's mass below -3.
  static const double low = 0.5 * std::erfc(3.0 / std::sqrt(2.0));
  return NormalQuantile(low + u * (1 - 2 * low));
}

void FillTruncatedNormal(uint64_t key, int64_t first_index, float scale, const Tensor& x) {
  auto* values = x.data<float>();
  cpu::ParallelFor(x.elements(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto words = Philox(key, static_cast<uint64_t>(first_index + i), 0);
      values[i] = static_cast<float>(static_cast<double>(scale) *
                                     TruncatedNormal(UniformOpen(words[0], words[1])));
    }
  });
}

}  // namespace overtok
