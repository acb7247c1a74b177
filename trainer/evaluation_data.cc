#include "trainer/evaluation_data.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "core/console.h"

namespace overtok {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const Config& config) {
  if (!config.eval.tokenizer.has_value()) return std::unique_ptr<Tokenizer>();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(*config.eval.tokenizer, TokenizerOptions());
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), "eval.tokenizer");
  return tokenizer;
}

absl::Status CheckPalomaNames(const EvalCollection& loaded, const std::string& directory) {
  for (const EvalSubset& subset : loaded.subsets) {
    const bool known =
        std::any_of(PalomaSubsets().begin(), PalomaSubsets().end(),
                    [&](const std::string& name) { return SubsetTag(name) == subset.name; });
    if (known) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("eval.paloma: ", directory, " has a subset ", subset.name,
                     ", which Paloma has not; name other collections under eval.held_out"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t WindowsToScore(int64_t tokens, int64_t sequence_length, EvalConfig::Tail tail) {
  const int64_t whole = tokens / sequence_length, rest = tokens % sequence_length;
  // A single token has no target.
  return whole + (tail == EvalConfig::Tail::kKeep && rest >= 2 ? 1 : 0);
}

absl::Status EvaluationData::Add(const Config& config, EvalCollection loaded,
                                 const std::string& directory, EvaluationCollection* into) {
  hashes_.emplace_back(directory, loaded.content_hash);
  const bool first = into->subsets.empty() && into->left_out.empty();
  into->identity = loaded.identity;
  into->missing = loaded.missing;
  // A mean over subsets of which some have no bytes would not be one.
  into->has_exact_bytes = (first || into->has_exact_bytes) && loaded.has_exact_bytes;
  into->has_levanter_bytes = (first || into->has_levanter_bytes) && loaded.has_levanter_bytes;
  into->left_out.insert(into->left_out.end(), loaded.empty.begin(), loaded.empty.end());
  for (EvalSubset& subset : loaded.subsets) {
    for (const EvaluationSubset& other : into->subsets) {
      if (other.data.name != subset.name) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "eval.held_out: ", directory, " has a subset ", subset.name,
          ", and so has a directory before it; their tags would be the same, rename one"));
    }
    const int64_t windows = WindowsToScore(static_cast<int64_t>(subset.ids.size()),
                                           config.data.sequence_length, config.eval.tail);
    if (windows == 0) {
      into->left_out.push_back(subset.name);
    } else {
      into->subsets.push_back({std::move(subset), windows});
    }
  }
  return absl::OkStatus();
}

absl::Status EvaluationData::Finish(EvaluationCollection collection, const Config& config) {
  if (collection.subsets.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        collection.prefix, ": no subset fills a window of ", config.data.sequence_length,
        " tokens (", absl::StrJoin(collection.left_out, ", "),
        "); eval.tail=keep scores what is shorter"));
  }
  if (!collection.missing.empty()) {
    LogWarning(absl::StrCat(collection.prefix, ": of Paloma's 16 subsets these are missing: ",
                            absl::StrJoin(collection.missing, ", "),
                            "; means over the others are called partial_macro_loss"));
  }
  if (!collection.left_out.empty()) {
    LogWarning(absl::StrCat(
        collection.prefix, ": left out, shorter than a window of ", config.data.sequence_length,
        " tokens: ", absl::StrJoin(collection.left_out, ", "),
        config.eval.tail == EvalConfig::Tail::kDrop ? "; eval.tail=keep scores them"
                                                    : "; they have no target"));
  }
  if (!collection.has_levanter_bytes) {
    LogInfo(absl::StrCat(collection.prefix, ": no ", collection.has_exact_bytes ? "levanter " : "",
                         "bits per byte, because no tokenizer is known; eval.tokenizer=FILE "
                         "gives one"));
  }
  collections_.push_back(std::move(collection));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EvaluationData>> EvaluationData::Open(const Config& config,
                                                                     const ShardIdentity& corpus) {
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(config));
  EvalOptions options;
  options.identity = corpus;
  auto data = std::make_unique<EvaluationData>();
  if (config.eval.paloma.has_value()) {
    const std::string& directory = *config.eval.paloma;
    absl::StatusOr<EvalCollection> loaded = LoadEvalCollection(directory, tokenizer.get(), options);
    if (!loaded.ok()) return Annotate(loaded.status(), "eval.paloma");
    OT_RETURN_IF_ERROR(CheckPalomaNames(*loaded, directory));
    EvaluationCollection paloma;
    paloma.prefix = kPalomaPrefix;
    const bool all = loaded->is_paloma;
    OT_RETURN_IF_ERROR(data->Add(config, *std::move(loaded), directory, &paloma));
    paloma.complete = all && paloma.subsets.size() == PalomaSubsets().size();
    OT_RETURN_IF_ERROR(data->Finish(std::move(paloma), config));
  }
  if (!config.eval.held_out.empty()) {
    EvaluationCollection held_out;
    held_out.prefix = kHeldOutPrefix;
    for (const std::string& directory : config.eval.held_out) {
      absl::StatusOr<EvalCollection> loaded =
          LoadEvalCollection(directory, tokenizer.get(), options);
      if (!loaded.ok()) return Annotate(loaded.status(), "eval.held_out");
      OT_RETURN_IF_ERROR(data->Add(config, *std::move(loaded), directory, &held_out));
    }
    held_out.missing.clear();  // whatever names its subsets have, this is not Paloma
    OT_RETURN_IF_ERROR(data->Finish(std::move(held_out), config));
  }
  return data;
}

int64_t EvaluationData::windows() const {
  int64_t windows = 0;
  for (const EvaluationCollection& collection : collections_) {
    for (const EvaluationSubset& subset : collection.subsets) windows += subset.windows;
  }
  return windows;
}

int64_t EvaluationData::bytes() const {
  int64_t ids = 0;
  for (const EvaluationCollection& collection : collections_) {
    for (const EvaluationSubset& subset : collection.subsets) {
      ids += static_cast<int64_t>(subset.data.ids.size());
    }
  }
  return ids * 8;  // an id and its two numbers of bytes
}

}  // namespace overtok
