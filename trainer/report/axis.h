// Axes of a plot: where the ticks stand and how their numbers are written. Pure functions of the
// data's range.
#pragma once

#include <string>
#include <vector>

namespace overtok {

struct Tick {
  double value;
  std::string label;  // empty: a minor tick
};

struct Axis {
  double low, high;  // low < high, finite; both positive on a logarithmic axis
  bool log;
  std::vector<Tick> ticks;  // ascending, inside [low, high]
  // 0 at low, 1 at high.
  double Fraction(double value) const;
};

// An axis over [low, high] whose ends are widened to a little more than the data; `ticks` is the
// largest number of labelled ticks wanted. A range of one value gets room on both sides. Infinite
// or NaN ends, and a non-positive `low` on a logarithmic axis, are the caller's bug.
Axis LinearAxis(double low, double high, int ticks, bool from_zero = false,
                bool scientific = false);
Axis LogAxis(double low, double high, int ticks);

// "1.5M", "20k", "0": up to three significant digits with the suffixes of counts up to 1e15,
// scientific ("2×10¹⁸") above.
std::string CompactNumber(double value);
// "2.4×10¹⁵"; "0" for zero.
std::string ScientificNumber(double value, int digits = 2);

}  // namespace overtok
