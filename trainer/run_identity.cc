#include "trainer/run_identity.h"

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

// Every key of the section, so that one that is added later is in it without anybody's help.
void AddKeys(const Config& config, absl::string_view section, Identity* identity) {
  for (const Key& key : ConfigKeys()) {
    if (!absl::StartsWith(key.name, section) || FindInactive(key.name, config) != nullptr) continue;
    identity->emplace_back(key.name, key.write(config));
  }
}

}  // namespace

Identity ModelIdentity(const Config& config) {
  Identity identity;
  AddKeys(config, "model.", &identity);
  // What is kept of a table, and what its silent steps do: without agreement it cannot be read.
  for (const char* key : {"optimizer.tables.update", "optimizer.tables.second_moment",
                          "optimizer.tables.beta1", "optimizer.tables.storage"}) {
    AddKeys(config, key, &identity);
  }
  // The seed of the hash functions that name rows.
  if (config.model.ngram_embedding.has_value() &&
      config.model.ngram_embedding->each_pass == NgramEmbeddingConfig::EachPass::kRehash) {
    AddKeys(config, "train.seed", &identity);
  }
  return identity;
}

Identity TrainingIdentity(const Config& config, const Corpus& corpus, const Order& order) {
  Identity identity = ModelIdentity(config);
  AddKeys(config, "data.sequence_length", &identity);
  AddKeys(config, "data.order.", &identity);
  AddKeys(config, "train.batch_sequences", &identity);
  AddKeys(config, "train.initial_weights", &identity);
  identity.emplace_back("hash of the shards' tokenizer", corpus.identity().tokenizer_hash);
  identity.emplace_back("hash of the shards' ids", absl::StrFormat("%016x", corpus.content_hash()));
  // data.passes and data.unique_tokens by what they come to.
  identity.emplace_back("number of windows in one pass", absl::StrCat(order.length()));
  return identity;
}

}  // namespace overtok
