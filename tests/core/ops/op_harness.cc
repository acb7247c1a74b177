#include "tests/core/ops/op_harness.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/cuda/attention_cudnn.h"
#include "core/cuda/device.h"
#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/emulator.h"
#include "core/cuda/emulation/known_memory.h"
#include "hwy/targets.h"

namespace overtok::testing {
namespace {

constexpr int64_t kGuard = 256;  // bytes on either side
constexpr unsigned char kPattern = 0xA5;
constexpr int64_t kAlignment = 64;

// Whether this program tests the checked device.
bool Checks() {
#if defined(OVERTOK_TEST_CHECKED)
  return TestedDevice() == CheckedDevice();
#else
  return false;
#endif
}

int64_t BytesOf(DType dtype, int64_t elements) { return elements * SizeOf(dtype); }

double RoundingUnit(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::ldexp(1.0, -24);
    case DType::kBF16:
      return std::ldexp(1.0, -8);
    default:
      return std::ldexp(1.0, -53);
  }
}

DType StorageType(const Operand& operand, DType act) {
  if (operand.storage == Storage::kFixed) return operand.fixed;
  if (operand.storage == Storage::kActivation || act == DType::kF64) return act;
  return DType::kF32;
}

// The operands of one run: inputs hold the rounded values of `source`, pure outputs are poisoned.
std::vector<Buffer> Prepare(const OpDescription& op, const std::vector<std::vector<double>>& source,
                            DType act, Buffer::Start start = Buffer::Start::kOdd) {
  std::vector<Buffer> buffers;
  buffers.reserve(op.operands.size());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Operand& operand = op.operands[i];
    buffers.emplace_back(StorageType(operand, act), operand.shape, start);
    if (operand.role == Role::kOutput) {
      buffers.back().Poison();
    } else {
      for (int64_t k = 0; k < buffers.back().size(); ++k)
        buffers.back().Set(k, source[i][static_cast<size_t>(k)]);
    }
  }
  return buffers;
}

void RunOnce(const OpDescription& op, DType act, std::vector<Buffer>& buffers) {
  const ScratchContext context(op.scratch ? op.scratch(act) : 0,
                               act == DType::kF64 ? CpuDevice() : TestedDevice());
  std::vector<Tensor> tensors;
  std::vector<Buffer> before;
  before.reserve(buffers.size());
  for (const Buffer& buffer : buffers) {
    tensors.push_back(buffer.tensor());
    before.emplace_back(buffer);
  }
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].SetName(op.operands[i].name);
  op.run(*context, tensors);
  EXPECT_TRUE(context.GuardsIntact()) << op.name << ": wrote outside its scratch";
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(buffers[i].GuardsIntact())
        << op.name << " " << NameOf(act) << ": wrote outside " << op.operands[i].name;
    if (act == DType::kF64) buffers[i].CountAsWritten();
    if (op.operands[i].role == Role::kOutput) {
      EXPECT_EQ(buffers[i].FirstUnwritten(), -1)
          << op.name << " " << NameOf(act) << " did not write this element of "
          << op.operands[i].name;
    }
    if (op.operands[i].role == Role::kInput) {
      EXPECT_TRUE(buffers[i].SameBits(before[i]))
          << op.name << " " << NameOf(act) << ": changed its input " << op.operands[i].name;
    }
  }
}

void CheckOutputs(const OpDescription& op, DType act, const std::vector<Buffer>& actual,
                  const std::vector<Buffer>& exact, const std::string& where) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const Operand& operand = op.operands[i];
    if (operand.role == Role::kInput) continue;
    double value_units = operand.value_units, tensor_units = operand.tensor_units;
    double unit = RoundingUnit(actual[i].dtype());
    // Computed from f32 or bf16, whatever it is stored in.
    if (actual[i].dtype() == DType::kF64) unit = RoundingUnit(DType::kF32);
    if (act == DType::kBF16 && (operand.bf16_value_units > 0 || operand.bf16_tensor_units > 0)) {
      value_units = operand.bf16_value_units;
      tensor_units = operand.bf16_tensor_units;
      unit = RoundingUnit(DType::kBF16);
    }
    ExpectClose(op.name + " " + NameOf(act) + " " + operand.name + where, actual[i], exact[i],
                {.relative = value_units * unit,
                 .absolute = tensor_units * unit * MaxAbs(exact[i].Values())});
  }
}

void CheckStorage(const OpDescription& op, const std::vector<std::vector<double>>& source,
                  DType act) {
  std::vector<Buffer> one = Prepare(op, source, act);
  std::vector<Buffer> two = Prepare(op, source, act);
  // What the op under test really sees, for the f64 run.
  std::vector<std::vector<double>> rounded(source.size());
  for (size_t i = 0; i < one.size(); ++i)
    if (op.operands[i].role != Role::kOutput) rounded[i] = one[i].Values();
  std::vector<Buffer> exact = Prepare(op, rounded, DType::kF64);
  {
    const ThreadScope threads(1);
    RunOnce(op, act, one);
    RunOnce(op, DType::kF64, exact);
  }
  {
    const ThreadScope threads(2);
    const emulation::ReversedBlocks reversed;
    RunOnce(op, act, two);
  }
  CheckOutputs(op, act, one, exact, "");
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(one[i].SameBits(two[i])) << op.name << " " << NameOf(act) << " "
                                         << op.operands[i].name << ": 1 and 2 threads differ";
  if (!TestsCpu()) {
    // Rows that can be read in packs.
    std::vector<Buffer> aligned = Prepare(op, source, act, Buffer::Start::kAligned);
    RunOnce(op, act, aligned);
    CheckOutputs(op, act, aligned, exact, " (aligned)");
    return;
  }
  // The code for lesser processors, where this one runs something better.
  const ThreadScope threads(1);
  for (const int64_t disabled : {HWY_AVX3 | HWY_AVX3_DL, HWY_AVX3 | HWY_AVX3_DL | HWY_AVX2}) {
    hwy::DisableTargets(disabled);
    std::vector<Buffer> lesser = Prepare(op, source, act);
    RunOnce(op, act, lesser);
    CheckOutputs(op, act, lesser, exact, (disabled & HWY_AVX2) != 0 ? " (baseline)" : " (AVX2)");
  }
  hwy::DisableTargets(0);
}

bool TestsCuda() { return TestedDevice()->kind() == DeviceKind::kCuda; }

std::unique_ptr<unsigned char[], void (*)(unsigned char*)> TakeBlock(int64_t bytes) {
  if (TestsCuda()) {
    return {static_cast<unsigned char*>(cuda::AllocateManaged(bytes)),
            [](unsigned char* block) { cuda::FreeManaged(block); }};
  }
  return {new unsigned char[static_cast<size_t>(bytes)],
          [](unsigned char* block) { delete[] block; }};
}

}  // namespace

Buffer::Buffer(DType dtype, Shape shape, Start start)
    : dtype_(dtype), shape_(shape), start_(start) {
  elements_ = shape.rank() == 0 ? 0 : shape.elements();
  const int64_t bytes = BytesOf(dtype, elements_) + 2 * kGuard + 2 * kAlignment;
  block_ = TakeBlock(bytes);
  std::memset(block_.get(), kPattern, static_cast<size_t>(bytes));
  std::memset(data(), 0, static_cast<size_t>(BytesOf(dtype, elements_)));
  if (Checks()) emulation::AddMemory(data(), BytesOf(dtype, elements_), "a buffer", SizeOf(dtype));
}

Buffer::~Buffer() {
  if (Checks() && elements_ > 0) emulation::RemoveMemory(data());
}

Buffer::Buffer(DType dtype, Shape shape, const std::vector<double>& values) : Buffer(dtype, shape) {
  OT_CHECK_EQ(static_cast<int64_t>(values.size()), elements_);
  for (int64_t i = 0; i < elements_; ++i) Set(i, values[static_cast<size_t>(i)]);
}

Buffer::Buffer(const Buffer& other) : Buffer(other.dtype_, other.shape_, other.start_) {
  std::memcpy(data(), other.data(), static_cast<size_t>(BytesOf(dtype_, elements_)));
  if (other.poisoned_ && other.FirstUnwritten() >= 0) {
    poisoned_ = true;
    emulation::MarkUnwritten(data(), BytesOf(dtype_, elements_));
  }
}

void* Buffer::data() const {
  if (TestsCuda()) TestedDevice()->Wait();  // managed memory: for one side at a time
  const auto address = reinterpret_cast<uintptr_t>(block_.get()) + kGuard;
  const uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  return block_.get() + kGuard + (aligned - address) +
         (start_ == Start::kAligned ? 0 : SizeOf(dtype_));
}

double Buffer::Get(int64_t i) const {
  OT_CHECK(i >= 0 && i < elements_);
  const Tensor t = tensor();
  switch (dtype_) {
    case DType::kF32:
      return static_cast<double>(t.data<float>()[i]);
    case DType::kF64:
      return t.data<double>()[i];
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(t.data<bf16>()[i]));
    case DType::kI32:
      return t.data<int32_t>()[i];
    case DType::kU32:
      return t.data<uint32_t>()[i];
    default:
      OT_CHECK(false) << NameOf(dtype_) << " is not among the harness's types";
      return 0;
  }
}

void Buffer::Set(int64_t i, double value) {
  OT_CHECK(i >= 0 && i < elements_);
  const Tensor t = tensor();
  if (poisoned_ && Checks()) {
    emulation::MarkWritten(static_cast<char*>(data()) + BytesOf(dtype_, i), SizeOf(dtype_));
  }
  switch (dtype_) {
    case DType::kF32:
      t.data<float>()[i] = static_cast<float>(value);
      return;
    case DType::kF64:
      t.data<double>()[i] = value;
      return;
    case DType::kBF16:
      t.data<bf16>()[i] = bf16(static_cast<float>(value));
      return;
    case DType::kI32:
      t.data<int32_t>()[i] = static_cast<int32_t>(value);
      return;
    case DType::kU32:
      t.data<uint32_t>()[i] = static_cast<uint32_t>(value);
      return;
    default:
      OT_CHECK(false) << NameOf(dtype_) << " is not among the harness's types";
  }
}

std::vector<double> Buffer::Values() const {
  std::vector<double> values(static_cast<size_t>(elements_));
  for (int64_t i = 0; i < elements_; ++i) values[static_cast<size_t>(i)] = Get(i);
  return values;
}

void Buffer::Poison() {
  std::memset(data(), 0xFF, static_cast<size_t>(BytesOf(dtype_, elements_)));
  poisoned_ = true;
  if (Checks()) emulation::MarkUnwritten(data(), BytesOf(dtype_, elements_));
}

void Buffer::CountAsWritten() const {
  if (Checks()) emulation::MarkWritten(data(), BytesOf(dtype_, elements_));
}

int64_t Buffer::FirstUnwritten() const {
  if (!Checks()) return -1;
  const int64_t byte = emulation::FirstUnwritten(data(), BytesOf(dtype_, elements_));
  return byte < 0 ? -1 : byte / SizeOf(dtype_);
}

void Buffer::SetName(const std::string& name) const {
  if (Checks()) emulation::RenameMemory(data(), name);
}

bool Buffer::GuardsIntact() const {
  const auto* begin = static_cast<const unsigned char*>(data());
  const unsigned char* end = begin + BytesOf(dtype_, elements_);
  const auto untouched = [](unsigned char byte) { return byte == kPattern; };
  return std::all_of(begin - kGuard, begin, untouched) && std::all_of(end, end + kGuard, untouched);
}

bool Buffer::SameBits(const Buffer& other) const {
  return dtype_ == other.dtype_ && elements_ == other.elements_ &&
         std::memcmp(data(), other.data(), static_cast<size_t>(BytesOf(dtype_, elements_))) == 0;
}

void FillUniform(Buffer& buffer, uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  for (int64_t i = 0; i < buffer.size(); ++i) buffer.Set(i, uniform(random));
}

void FillNormal(Buffer& buffer, uint64_t seed, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < buffer.size(); ++i) buffer.Set(i, normal(random));
}

void FillIds(Buffer& buffer, uint64_t seed, int64_t below) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < buffer.size(); ++i)
    buffer.Set(i, static_cast<double>(random() % static_cast<uint64_t>(below)));
}

void ExpectClose(const std::string& what, const Buffer& actual, const std::vector<double>& expected,
                 Tolerance tolerance) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size())) << what;
  double worst = 0;
  int64_t at = -1, wrong = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double a = actual.Get(i), e = expected[static_cast<size_t>(i)];
    const double bound = tolerance.relative * std::abs(e) + tolerance.absolute;
    if (std::isfinite(a) && std::isfinite(e) && std::abs(a - e) <= bound) continue;
    ++wrong;
    const double excess = std::isfinite(a) && std::isfinite(e) ? std::abs(a - e) - bound : HUGE_VAL;
    if (at < 0 || excess > worst) {
      worst = excess;
      at = i;
    }
  }
  if (wrong == 0) return;
  const double e = expected[static_cast<size_t>(at)];
  ADD_FAILURE() << what << ": " << wrong << " of " << actual.size()
                << " elements are off; worst at " << at << ": got " << actual.Get(at)
                << ", expected " << e << ", allowed "
                << tolerance.relative * std::abs(e) + tolerance.absolute << ", difference "
                << actual.Get(at) - e;
}

void ExpectClose(const std::string& what, const Buffer& actual, const Buffer& expected,
                 Tolerance tolerance) {
  ExpectClose(what, actual, expected.Values(), tolerance);
}

double MaxAbs(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

Device* TestedDevice() {
  static Device* const device = [] {
    const char* name = std::getenv("OVERTOK_TEST_DEVICE");
    const absl::string_view wanted = name == nullptr ? "cpu" : name;
    if (wanted == "cpu") return CpuDevice();
    if (wanted == "emulated") return EmulatedDevice();
    if (wanted == "cuda") {
      const absl::StatusOr<Device*> cuda = CudaDevice(0);
      OT_CHECK(cuda.ok()) << cuda.status();
      const char* attention = std::getenv("OVERTOK_TEST_ATTENTION");
      if (attention != nullptr && absl::string_view(attention) == "cudnn") {
        const absl::Status started = StartCudnnAttention(*cuda, {}).status();
        OT_CHECK(started.ok()) << started;
      }
      return *cuda;
    }
#if defined(OVERTOK_TEST_CHECKED)
    if (wanted == "checked") return CheckedDevice();
#endif
    OT_CHECK(false) << "OVERTOK_TEST_DEVICE is " << std::string(wanted)
                    << ", expected cpu, emulated, cuda or (in builds without sanitizers) checked";
    return CpuDevice();
  }();
  return device;
}

ScratchContext::ScratchContext(int64_t bytes, Device* device)
    : block_(DType::kF64, {(bytes + 7) / 8}, Buffer::Start::kAligned), context_(device) {
  block_.Poison();
  block_.SetName("scratch");
  context_.SetScratch(block_.tensor().raw(), bytes);
}

Lend::Lend(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  if (!Checks()) return;
  for (const Tensor& tensor : tensors_)
    emulation::AddMemory(tensor.raw(), tensor.bytes(), "lent memory", SizeOf(tensor.dtype()));
}
Lend::~Lend() {
  if (!Checks()) return;
  for (const Tensor& tensor : tensors_) emulation::RemoveMemory(tensor.raw());
}

ThreadScope::ThreadScope(int threads) : before_(omp_get_max_threads()) {
  omp_set_num_threads(threads);
}
ThreadScope::~ThreadScope() { omp_set_num_threads(before_); }

void CheckOp(const OpDescription& op) {
  std::vector<std::vector<double>> source;
  for (const Operand& operand : op.operands) {
    Buffer values(operand.storage == Storage::kFixed ? operand.fixed : DType::kF64, operand.shape);
    if (operand.fill) operand.fill(values);
    source.push_back(values.Values());
  }
  CheckStorage(op, source, DType::kF32);
  if (op.bf16) CheckStorage(op, source, DType::kBF16);
}

void CheckGradient(const std::string& what, Buffer& input, const Buffer& gradient,
                   const std::function<double()>& loss, int64_t samples, double step,
                   double relative) {
  ASSERT_TRUE(input.dtype() == DType::kF64 && gradient.dtype() == DType::kF64) << what;
  ASSERT_EQ(input.size(), gradient.size()) << what;
  const double largest = MaxAbs(gradient.Values());
  const int64_t n = input.size();
  const int64_t count = samples == 0 ? n : std::min(samples, n);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t i = k * n / count;
    const double value = input.Get(i);
    const double h = step * std::max(1.0, std::abs(value));
    input.Set(i, value + h);
    const double up = loss();
    input.Set(i, value - h);
    const double down = loss();
    input.Set(i, value);
    const double difference = (up - down) / (2 * h);
    const double g = gradient.Get(i);
    EXPECT_TRUE(std::abs(difference - g) <= relative * (std::abs(g) + largest))
        << what << " at " << i << ": gradient " << g << ", central difference " << difference;
  }
}

double Dot(const Buffer& weight, const Buffer& buffer) {
  OT_CHECK_EQ(weight.size(), buffer.size());
  double sum = 0;
  for (int64_t i = 0; i < weight.size(); ++i) sum += weight.Get(i) * buffer.Get(i);
  return sum;
}

}  // namespace overtok::testing
