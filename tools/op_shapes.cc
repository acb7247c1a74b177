#include "tools/op_shapes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "losses/linear_cross_entropy.h"

namespace overtok {
namespace {

// What a tile of the head holds on a device.
int64_t TileRows(int64_t tokens, int64_t classes) {
  const int64_t fit = kDeviceHeadTileBytes / (classes * SizeOf(DType::kF32));
  return std::min(tokens, fit / 64 * 64);
}

OpShapes Recipe(std::string name, int64_t width, int64_t inner, int64_t heads, int64_t kv_heads,
                int64_t head_width, int64_t layers, int64_t table_width, int64_t touched) {
  OpShapes shapes{.name = std::move(name),
                  .batch = 32,
                  .length = 4096,
                  .width = width,
                  .inner = inner,
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_width = head_width,
                  .layers = layers,
                  .vocabulary = 128256,
                  .candidates = 24576,
                  .table_rows = int64_t{1} << 21,
                  .table_width = table_width,
                  .touched = touched,
                  .activations = {DType::kBF16},
                  .newton_schulz = {DType::kBF16}};
  shapes.tile_rows = TileRows(shapes.tokens(), shapes.vocabulary);
  shapes.candidate_rows = TileRows(shapes.tokens(), shapes.candidates);
  return shapes;
}

// Touched rows: 3-grams in so many windows of English text, about.
std::vector<OpShapes> AllShapes() {
  return {OpShapes{.name = "small",
                   .batch = 8,
                   .length = 1024,
                   .width = 768,
                   .inner = 2048,
                   .heads = 12,
                   .kv_heads = 4,
                   .head_width = 64,
                   .layers = 8,
                   .vocabulary = 32000,
                   .tile_rows = 256,
                   .table_rows = 65536,
                   .table_width = 256,
                   .touched = 8192,
                   .activations = {DType::kF32, DType::kBF16},
                   .newton_schulz = {DType::kF32}},
          Recipe("130m", 512, 1792, 8, 8, 64, 6, 170, 370000),
          Recipe("300m", 768, 2688, 12, 12, 64, 12, 256, 370000),
          Recipe("520m", 1024, 3584, 16, 8, 64, 24, 341, 680000),
          Recipe("1_2b", 2048, 7168, 16, 8, 128, 16, 227, 680000)};
}

}  // namespace

absl::StatusOr<OpShapes> OpShapesNamed(absl::string_view name) {
  for (OpShapes& shapes : AllShapes())
    if (shapes.name == name) return std::move(shapes);
  return absl::InvalidArgumentError(absl::StrCat("--shape is \"", name, "\", expected ",
                                                 absl::StrJoin(OpShapeNames(), ", "), " or all"));
}

std::vector<std::string> OpShapeNames() {
  std::vector<std::string> names;
  for (const OpShapes& shapes : AllShapes()) names.push_back(shapes.name);
  return names;
}

}  // namespace overtok
