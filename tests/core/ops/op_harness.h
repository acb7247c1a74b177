// The op harness: one description of an op (operands, sizes, a call) drives five checks: f32 and
// bf16 storage against f64 (inputs rounded to the storage type first), the code for lesser
// processors (AVX2, baseline) against the same, one thread against two (equal bits; on devices also
// blocks from first to last against last to first), inputs left alone, and guard zones around every
// operand and the scratch block. On the checked device every access is looked at
// (core/cuda/emulation/checker.h): buffers are known to the checker, poisoned ones as unwritten,
// and outputs have to be written whole.
//
// Test programs take the device they test from the environment, OVERTOK_TEST_DEVICE = cpu (when
// unset) | emulated | checked | cuda; CTest runs them once for each (NAME, NAME_checked). f64 is
// the CPU's: the reference that other devices are held against. OVERTOK_TEST_ATTENTION = cudnn has
// cuda's attention go through that.
// CheckGradient holds a backward op against central differences in f64.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace overtok::testing {

// An owned tensor between two guard zones. Its data begin one element past a 64-byte border, so
// that code which assumes aligned rows is found out (Start::kAligned: on the border). Values go in
// and out as doubles; writing rounds to the storage type.
class Buffer {
 public:
  enum class Start : uint8_t { kOdd, kAligned };
  explicit Buffer(DType dtype, Shape shape, Start start = Start::kOdd);  // zeros
  Buffer(DType dtype, Shape shape, const std::vector<double>& values);
  Buffer(const Buffer& other);
  ~Buffer();
  Buffer& operator=(const Buffer&) = delete;

  Tensor tensor() const { return Tensor(data(), dtype_, shape_); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return elements_; }
  double Get(int64_t i) const;
  void Set(int64_t i, double value);
  std::vector<double> Values() const;
  // Every byte 0xFF: NaN in the float types, -1 in the integers. To checked kernels, unwritten
  // until a kernel or Set writes them.
  void Poison();
  // Where other host code has filled a poisoned buffer.
  void CountAsWritten() const;
  // The first element of which checked kernels have left a byte unwritten; -1: none.
  int64_t FirstUnwritten() const;
  // For messages of the checker.
  void SetName(const std::string& name) const;
  bool GuardsIntact() const;
  bool SameBits(const Buffer& other) const;

 private:
  void* data() const;
  DType dtype_;
  Shape shape_;
  Start start_;
  int64_t elements_ = 0;
  bool poisoned_ = false;
  std::unique_ptr<unsigned char[], void (*)(unsigned char*)> block_{nullptr, nullptr};
};

// Random values: a pure function of the seed. Uniform in [low, high), and normal.
void FillUniform(Buffer& buffer, uint64_t seed, double low, double high);
void FillNormal(Buffer& buffer, uint64_t seed, double scale);
void FillIds(Buffer& buffer, uint64_t seed, int64_t below);

// Every pair must be finite and satisfy |actual - expected| <= relative |expected| + absolute. On
// failure: the worst index, both values and the bound.
struct Tolerance {
  double relative = 0, absolute = 0;
};
void ExpectClose(const std::string& what, const Buffer& actual, const std::vector<double>& expected,
                 Tolerance tolerance);
void ExpectClose(const std::string& what, const Buffer& actual, const Buffer& expected,
                 Tolerance tolerance);
double MaxAbs(const std::vector<double>& values);

// The device that this run of the program tests.
Device* TestedDevice();
inline bool TestsCpu() { return TestedDevice()->kind() == DeviceKind::kCpu; }

// A device's context with a guarded, aligned scratch block of exactly `bytes`, poisoned. Tests in
// f64 name CpuDevice().
class ScratchContext {
 public:
  explicit ScratchContext(int64_t bytes, Device* device = TestedDevice());
  const Context& operator*() const { return context_; }
  bool GuardsIntact() const { return block_.GuardsIntact(); }

 private:
  Buffer block_;
  Context context_;
};

// Lets checked kernels touch host memory that is no Buffer's, for a scope.
class Lend {
 public:
  explicit Lend(std::vector<Tensor> tensors);
  ~Lend();
  Lend(const Lend&) = delete;
  Lend& operator=(const Lend&) = delete;

 private:
  std::vector<Tensor> tensors_;
};

// Sets OpenMP's thread count for a scope.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

enum class Role : uint8_t { kInput, kOutput, kInputOutput };
enum class Storage : uint8_t {
  kActivation,  // the dtype under test
  kStatistic,   // f32, and f64 in the f64 run
  kFixed,       // `fixed`, in every run
};

struct Operand {
  std::string name;
  Role role = Role::kInput;
  Storage storage = Storage::kActivation;
  Shape shape;
  // Fills inputs (and the old contents of inputs that are outputs too); called once, on an f64
  // buffer (or one of `fixed`).
  std::function<void(Buffer&)> fill = nullptr;
  DType fixed = DType::kF64;
  // Bounds of an output, in units of the rounding error of its storage type (2^-24, 2^-8): relative
  // to the value, and relative to the largest value of the tensor.
  double value_units = 4, tensor_units = 4;
  // In bf16 runs: bounds in units of 2^-8 where intermediate roundings differ from those of a
  // stored result (a statistic computed from rounded inputs keeps f32 units: leave 0).
  double bf16_value_units = 0, bf16_tensor_units = 0;
};

struct OpDescription {
  std::string name;
  std::vector<Operand> operands;
  std::function<void(const Context&, const std::vector<Tensor>&)> run =
      nullptr;                                      // tensors as in `operands`
  std::function<int64_t(DType)> scratch = nullptr;  // null: none
  bool bf16 = true;
};

// All checks at once; failures name the op, the dtype and the operand.
void CheckOp(const OpDescription& op);

// Central differences: perturbs `samples` elements of `input` (f64; all when 0), calls `loss` twice
// for each and compares with `gradient`. `step` is relative to max(1, |value|); the bound is
// `relative` times (|gradient| + the largest |gradient|).
void CheckGradient(const std::string& what, Buffer& input, const Buffer& gradient,
                   const std::function<double()>& loss, int64_t samples = 0, double step = 1e-5,
                   double relative = 1e-7);

// Sum of weight[i] * buffer[i]: the scalar function for CheckGradient.
double Dot(const Buffer& weight, const Buffer& buffer);

}  // namespace overtok::testing
