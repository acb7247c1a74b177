#include "trainer/layout.h"

#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/comm/agreement.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

class Mistakes {
 public:
  explicit Mistakes(const LoadedConfig& loaded) : loaded_(loaded) {}
  template <class... Parts>
  void Add(absl::string_view key, const Parts&... parts) {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", loaded_.Where(key), ": ", parts...);
  }
  absl::Status status() const {
    return text_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text_);
  }

 private:
  const LoadedConfig& loaded_;
  std::string text_;
};

void CheckTensor(const Config& config, Mistakes* mistakes) {
  const int64_t tensor = config.parallel.tensor;
  const ModelConfig& model = config.model;
  if (model.num_attention_heads % tensor != 0) {
    mistakes->Add("parallel.tensor", tensor,
                  " does not divide model.num_attention_heads = ", model.num_attention_heads,
                  "; every rank has whole heads, equally many");
  }
  if (model.num_key_value_heads % tensor != 0 && tensor % model.num_key_value_heads != 0) {
    mistakes->Add("parallel.tensor", tensor,
                  " neither divides model.num_key_value_heads = ", model.num_key_value_heads,
                  " nor is a multiple of it; a rank has whole key/value heads, or shares one");
  }
  if (model.intermediate_size < tensor) {
    mistakes->Add("parallel.tensor", tensor,
                  " is more than model.intermediate_size = ", model.intermediate_size);
  }
  const int64_t tokens = config.train.micro_batch_sequences * config.data.sequence_length;
  if (tokens % tensor != 0 || tokens <= tensor) {
    mistakes->Add("parallel.tensor", tensor, " must divide the ", tokens,
                  " tokens of a micro-batch (train.micro_batch_sequences times "
                  "data.sequence_length) and be fewer: ranks share them out");
  }
}

}  // namespace

absl::Status CheckLayout(const LoadedConfig& loaded, int world, bool training) {
  const Config& config = loaded.config;
  Mistakes mistakes(loaded);
  const int64_t tensor = config.parallel.tensor;
  if (world % tensor != 0) {
    mistakes.Add("parallel.tensor", tensor, " does not divide the number of ranks, ", world,
                 "; start a multiple of it, or choose a divisor");
    return mistakes.status();
  }
  if (tensor > 1) CheckTensor(config, &mistakes);
  const int64_t data = world / tensor, micro = config.train.micro_batch_sequences;
  if (training && config.train.batch_sequences % (data * micro) != 0) {
    mistakes.Add("train.batch_sequences", config.train.batch_sequences,
                 " is no multiple of train.micro_batch_sequences times the data-parallel ranks, ",
                 micro, " x ", data,
                 "; every rank runs whole micro-batches, equally many. A smaller micro-batch, or "
                 "another number of ranks, fits");
  }
  return mistakes.status();
}

absl::Status CheckSameConfig(Communicator& world, const Config& config) {
  // Values in the fixed order of the keys, "null" of those in a section that is off; no value has a
  // line break.
  std::vector<std::string> mine;
  for (const Key& key : ConfigKeys()) mine.push_back(key.write(config));
  const std::string text = world.BroadcastText(absl::StrJoin(mine, "\n"), 0);
  const std::vector<std::string> expected = absl::StrSplit(text, '\n');
  std::vector<std::string> differences;
  for (size_t k = 0; k < mine.size() && expected.size() == mine.size(); ++k) {
    if (mine[k] == expected[k]) continue;
    differences.push_back(
        absl::StrCat(ConfigKeys()[k].name, " is ", mine[k], ", and ", expected[k], " on rank 0"));
  }
  absl::Status status;
  if (!differences.empty()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "the configuration is not the same on all ranks: ", absl::StrJoin(differences, "; "),
        "; start all ranks with the same files and overrides"));
  }
  OT_RETURN_IF_ERROR(Agree(world, status));
  return CheckSame(world, "the configuration", ResolvedYaml(config));
}

int64_t MicroBatchesOf(const Config& config, int world) {
  const int64_t data = world / config.parallel.tensor;
  return config.train.batch_sequences / data / config.train.micro_batch_sequences;
}

std::string LayoutWarning(const Config& config, int world) {
  const int64_t data = world / config.parallel.tensor, each = MicroBatchesOf(config, world);
  if (config.parallel.gradient_sum != GradientOrder::kTree || data == 1 ||
      std::has_single_bit(static_cast<uint64_t>(each))) {
    return "";
  }
  return absl::StrCat("each of ", data, " data-parallel ranks runs ", each,
                      " micro-batches, no power of two: gradients are summed in an order of this "
                      "layout's own, and other numbers of ranks give other bits");
}

}  // namespace overtok
