// Initial values from weights that exist: a Hugging Face checkpoint of the architecture Qwen3 in
// safetensors files. A rank reads its own rows and columns only; while it places one piece, a
// thread reads and converts the next ones into buffers of a fixed size. No tensor is held whole
// beside the parameters. docs/initial_weights.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/io/safetensors.h"
#include "core/sharding.h"
#include "core/status.h"
#include "model/config.h"
#include "model/hf_names.h"

namespace overtok {

struct FilledWeights {
  int64_t tensors = 0;             // of those wanted, how many have values from the files
  std::vector<std::string> drawn;  // parameters that kept their values, each once
  int64_t bytes_read = 0;          // of the files' tensors, by this rank
  int64_t file_bytes = 0;          // of all tensors in the files
  double seconds = 0;              // of wall time
  double waited = 0;               // of them, with nothing to place
};

class InitialWeights {
 public:
  // Opens what `path` names (core/io/safetensors.h) and compares it with the model, headers and
  // the config.json beside it only. One error lists all differences: values of config.json,
  // tensors that are missing, that the model has no place for, of another shape or type, and new
  // parameters where they are refused. The same on all ranks that read the same files.
  static absl::StatusOr<InitialWeights> Open(absl::string_view path, const ModelConfig& model,
                                             NewParameters policy);

  // Fills the tensors (f32, on the host): exactly their regions, from the files; those of
  // parameters without a place there stay as they are. A parameter may be there several times, as
  // this rank's part and as the whole matrix that it updates. Errors: a value that is not finite;
  // in a tied model a stored lm_head.weight that differs from the embedding, in the rows of this
  // rank. The tensors' values are undefined after an error. `buffer_bytes`: of the buffers between
  // the two threads, at least 64.
  absl::StatusOr<FilledWeights> Fill(const std::vector<ShardedTensor>& wanted,
                                     int64_t buffer_bytes = int64_t{32} << 20) const;

 private:
  InitialWeights(Safetensors files, std::vector<HfPlace> places, NewParameters policy)
      : files_(std::move(files)), places_(std::move(places)), policy_(policy) {}

  Safetensors files_;
  std::vector<HfPlace> places_;
  NewParameters policy_;
  // Of a tied model whose files store the head as well; null otherwise.
  const SafetensorsEntry* tied_head_ = nullptr;
};

// Open and Fill: what a run calls after its parameters have been drawn.
absl::StatusOr<FilledWeights> LoadInitialWeights(absl::string_view path, const ModelConfig& model,
                                                 NewParameters policy,
                                                 const std::vector<ShardedTensor>& wanted);

}  // namespace overtok
