#include "trainer/hardware.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io/files.h"
#include "trainer/config/key_read.h"
#include "trainer/config/strict_yaml.h"

namespace overtok {
namespace {

constexpr double kAttentionShare = 0.6, kRowShare = 0.75;
// Products of a backward pass as kernels' rates count them, and as device.attention_flops does.
constexpr double kBackwardProducts = 5.0 / 4;
constexpr int64_t kMostBytes = int64_t{1} << 20;

struct HardwareKey {
  std::string path;
  bool needed;
  std::function<absl::Status(const YamlValue&)> read;
};

HardwareKey Positive(std::string path, double* out, bool needed = true) {
  return {std::move(path), needed, [out](const YamlValue& value) {
            return ReadReal(value, Range{.least = 0, .above = true}, out);
          }};
}

absl::Status ReadFlag(const YamlValue& value, bool* out) {
  if (value.kind != YamlValue::Kind::kScalar || value.quoted ||
      (value.text != "true" && value.text != "false")) {
    return Expected(value, "true or false");
  }
  *out = value.text == "true";
  return absl::OkStatus();
}

std::vector<HardwareKey> KeysOf(Hardware* h) {
  return {
      Positive("device.matmul_flops.f32", &h->matmul.f32),
      Positive("device.matmul_flops.bf16", &h->matmul.bf16),
      Positive("device.matmul_flops.tf32", &h->matmul_tf32, false),
      Positive("device.attention_flops.f32", &h->attention.f32, false),
      Positive("device.attention_flops.bf16", &h->attention.bf16, false),
      Positive("device.attention_kernels.width_64.forward", &h->attention_64.forward, false),
      Positive("device.attention_kernels.width_64.backward", &h->attention_64.backward, false),
      Positive("device.attention_kernels.width_128.forward", &h->attention_128.forward, false),
      Positive("device.attention_kernels.width_128.backward", &h->attention_128.backward, false),
      Positive("device.memory_bandwidth", &h->memory_bandwidth),
      Positive("device.row_bandwidth", &h->row_bandwidth, false),
      Positive("device.memory", &h->memory, false),
      {"node.devices", true,
       [h](const YamlValue& value) { return ReadWhole(value, 1, 4096, &h->devices); }},
      {"node.divided", false, [h](const YamlValue& value) { return ReadFlag(value, &h->divided); }},
      Positive("node.memory_bandwidth", &h->node_memory_bandwidth, false),
      Positive("node.memory", &h->node_memory, false),
      Positive("node.link.bandwidth", &h->within.bandwidth),
      {"node.link.latency", true,
       [h](const YamlValue& value) {
         return ReadReal(value, Range{.least = 0}, &h->within.latency);
       }},
      Positive("network.link.bandwidth", &h->between.bandwidth, false),
      {"network.link.latency", false,
       [h](const YamlValue& value) {
         return ReadReal(value, Range{.least = 0}, &h->between.latency);
       }},
      {"overlap", false, [h](const YamlValue& value) {
         return ReadReal(value, Range{.least = 0, .most = 1}, &h->overlap);
       }}};
}

// Reads what lies below `value`, whose own path is `path`.
void ReadTree(const YamlValue& value, const std::string& path, const std::vector<HardwareKey>& keys,
              std::string* mistakes) {
  const auto mistake = [&](const auto&... parts) {
    absl::StrAppend(mistakes, mistakes->empty() ? "" : "\n", value.origin.ToString(), ": ", path,
                    ": ", parts...);
  };
  for (const HardwareKey& key : keys) {
    if (key.path != path) continue;
    const absl::Status status = key.read(value);
    if (!status.ok()) mistake(status.message());
    return;
  }
  const bool section = path.empty() || std::any_of(keys.begin(), keys.end(), [&](const auto& key) {
                         return key.path.rfind(path + ".", 0) == 0;
                       });
  if (!section) {
    mistake("no such key; docs/planning.md lists them");
  } else if (value.kind != YamlValue::Kind::kMap) {
    mistake(value.Describe(), " is not valid; expected a mapping of keys");
  } else {
    for (const YamlValue& child : value.children) {
      ReadTree(child, path.empty() ? child.key : absl::StrCat(path, ".", child.key), keys,
               mistakes);
    }
  }
}

}  // namespace

absl::StatusOr<Hardware> ParseHardware(absl::string_view text, absl::string_view file) {
  OT_ASSIGN_OR_RETURN(const YamlValue tree, ParseYaml(text, file));
  if (tree.kind != YamlValue::Kind::kMap) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": a machine is a mapping of keys; docs/planning.md lists them"));
  }
  Hardware hardware;
  const std::vector<HardwareKey> keys = KeysOf(&hardware);
  std::string mistakes;
  ReadTree(tree, "", keys, &mistakes);
  for (const HardwareKey& key : keys) {
    if (!key.needed || tree.At(key.path) != nullptr) continue;
    absl::StrAppend(&mistakes, mistakes.empty() ? "" : "\n", file, ": ", key.path,
                    " is missing; docs/planning.md says what it is");
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(mistakes);
  if (hardware.matmul_tf32 == 0) hardware.matmul_tf32 = hardware.matmul.f32;
  if (hardware.attention.f32 == 0) hardware.attention.f32 = kAttentionShare * hardware.matmul.f32;
  if (hardware.attention.bf16 == 0) {
    hardware.attention.bf16 = kAttentionShare * hardware.matmul.bf16;
  }
  if (hardware.row_bandwidth == 0) hardware.row_bandwidth = kRowShare * hardware.memory_bandwidth;
  for (AttentionRates* rates : {&hardware.attention_64, &hardware.attention_128}) {
    if (rates->forward == 0) rates->forward = hardware.attention.bf16;
    if (rates->backward == 0) rates->backward = kBackwardProducts * hardware.attention.bf16;
  }
  return hardware;
}

absl::StatusOr<Hardware> LoadHardware(absl::string_view path) {
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMostBytes));
  return ParseHardware(text, path);
}

AttentionRates Hardware::AttentionOf(DType dtype, int64_t head_width) const {
  if (dtype != DType::kBF16) return {attention.f32, kBackwardProducts * attention.f32};
  return head_width <= 64 ? attention_64 : attention_128;
}

double SecondsOf(const Work& work, const Hardware& hardware) {
  const double moving =
      work.bytes / hardware.memory_bandwidth + work.row_bytes / hardware.row_bandwidth;
  double rate = 0;
  switch (work.kind) {
    case Work::Kind::kPass:
      return moving;
    case Work::Kind::kProduct:
      rate = work.dtype == DType::kBF16 ? hardware.matmul.bf16
             : work.tf32                ? hardware.matmul_tf32
                                        : hardware.matmul.f32;
      break;
    case Work::Kind::kAttentionForward:
      rate = hardware.AttentionOf(work.dtype, work.head_width).forward;
      break;
    case Work::Kind::kAttentionBackward:
      rate = hardware.AttentionOf(work.dtype, work.head_width).backward;
      break;
  }
  return std::max(moving, work.flops / rate);
}

}  // namespace overtok
