#include "trainer/training_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/config/derived.h"

namespace overtok {

absl::StatusOr<TrainingData> OpenTrainingData(LoadedConfig* loaded) {
  const Config& config = loaded->config;
  if (config.data.train.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        loaded->Where("data.train"),
        ": no shards are named. Give paths or patterns of what `overtok tokenize` wrote, "
        "for example data.train=[corpus/train/*.h5]."));
  }
  TrainingData data;
  OT_ASSIGN_OR_RETURN(data.corpus, Corpus::Open(config.data.train));
  const ShardIdentity& identity = data.corpus->identity();
  if (identity.vocab_size > config.model.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded->Where("model.vocab_size"), ": ", config.model.vocab_size,
                     " is smaller than the vocabulary of the shards (", identity.vocab_size,
                     ", tokenizer ", identity.tokenizer_name, "). Set it to at least that."));
  }
  data.windows = CountWindows(*data.corpus, config.data.sequence_length);
  OT_RETURN_IF_ERROR(ResolveHorizon(data.windows, loaded));
  const int64_t prefix = KeptBatches(config) * config.train.batch_sequences;
  absl::StatusOr<Order> order = Order::Create(config.data.order, data.windows, prefix);
  if (!order.ok()) return Annotate(order.status(), loaded->Where("data.order"));
  data.order = *std::move(order);
  data.loader.batch_sequences = config.train.batch_sequences;
  data.loader.sequence_length = config.data.sequence_length;
  data.loader.first_step = 0;
  data.loader.end_step = config.train.steps;
  return data;
}

}  // namespace overtok
