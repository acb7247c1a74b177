// For initial_weights_check.py: reads the parts of a checkpoint that the ranks of a tensor group
// hold, and writes each as raw f32 into a file of its own.
//   initial_weights_probe CHECKPOINT OUT TENSOR V d m L H K D TIED
// OUT/<rank>/<parameter> and OUT/<rank>/bytes_read; for TENSOR = 1 also OUT/written/, the weights
// written again as one BF16 file.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/io/files.h"
#include "core/io/safetensors_writer.h"
#include "trainer/initial_weights.h"

namespace overtok {
namespace {

// Gains are whole, matrices divided as docs/parallel.md says.
Sharding ShardingOfName(const std::string& name, const ModelConfig& model, int64_t tensor,
                        int64_t rank) {
  const auto is = [&name](const char* part) { return absl::StrContains(name, part); };
  if (tensor == 1 || is("norm")) return {};
  if (is("embed") || is("lm_head")) return {Split::kBlocks, tensor, rank, 1};
  if (is("q_proj")) return {Split::kRows, tensor, rank, model.head_dim};
  if (is("o_proj")) return {Split::kColumns, tensor, rank, model.head_dim};
  if (is("down_proj")) return {Split::kColumns, tensor, rank, 1};
  if (is("gate_proj") || is("up_proj")) return {Split::kRows, tensor, rank, 1};
  const int64_t parts = std::min(tensor, model.num_key_value_heads);
  if (parts == 1) return {};
  return {Split::kRows, parts, rank / (tensor / parts), model.head_dim};
}

absl::Status Run(const std::string& checkpoint, const std::string& out, int64_t tensor,
                 const ModelConfig& model) {
  for (int64_t rank = 0; rank < tensor; ++rank) {
    std::vector<ShardedTensor> wanted;
    std::vector<std::vector<float>> buffers;
    for (const HfPlace& place : HfPlaces(model)) {
      const Region region =
          Region::Part(place.shape, ShardingOfName(place.name, model, tensor, rank));
      buffers.emplace_back(static_cast<size_t>(region.count));
      wanted.push_back(
          {place.name, region,
           Tensor(buffers.back().data(), LocalShape(region.sharding, region.logical))});
    }
    OT_ASSIGN_OR_RETURN(const FilledWeights filled,
                        LoadInitialWeights(checkpoint, model, NewParameters::kRefuse, wanted));
    const std::string directory = JoinPath(out, absl::StrCat(rank));
    OT_RETURN_IF_ERROR(CreateDirectories(directory));
    for (const ShardedTensor& part : wanted) {
      OT_RETURN_IF_ERROR(
          WriteFileAtomically(JoinPath(directory, part.name),
                              absl::string_view(static_cast<const char*>(part.tensor.raw()),
                                                static_cast<size_t>(part.tensor.bytes()))));
    }
    OT_RETURN_IF_ERROR(
        WriteFileAtomically(JoinPath(directory, "bytes_read"), absl::StrCat(filled.bytes_read)));
    if (tensor > 1) continue;
    std::vector<TensorToStore> tensors;
    const std::vector<HfPlace> places = HfPlaces(model);
    for (size_t i = 0; i < wanted.size(); ++i) {
      tensors.push_back({places[i].hf_name, StoredType::kBF16, wanted[i].tensor});
    }
    OT_RETURN_IF_ERROR(CreateDirectories(JoinPath(out, "written")));
    OT_RETURN_IF_ERROR(WriteSafetensorsFiles(JoinPath(out, "written"), tensors, 1 << 15));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace overtok

int main(int argc, char** argv) {
  if (argc != 12) {
    std::fprintf(stderr, "see the head of initial_weights_probe.cc\n");
    return 2;
  }
  std::vector<int64_t> numbers;
  for (int i = 3; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  overtok::ModelConfig model;
  model.vocab_size = numbers[1];
  model.hidden_size = numbers[2];
  model.intermediate_size = numbers[3];
  model.num_hidden_layers = numbers[4];
  model.num_attention_heads = numbers[5];
  model.num_key_value_heads = numbers[6];
  model.head_dim = numbers[7];
  model.tie_word_embeddings = numbers[8] != 0;
  model.rope_theta = 1e6;
  model.rms_norm_eps = 1e-6;
  model.hybrid_norm = false;
  const absl::Status status = overtok::Run(argv[1], argv[2], numbers[0], model);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
