#include "trainer/evaluation_scores.h"

#include <numbers>

#include "absl/strings/str_cat.h"

namespace overtok {

std::optional<double> SubsetScore::bpb_exact() const {
  if (!bytes.has_value() || *bytes <= 0) return std::nullopt;
  return loss_sum * std::numbers::log2e / *bytes;
}

std::optional<double> SubsetScore::bpb() const {
  if (!levanter_sum.has_value()) return std::nullopt;
  return *levanter_sum / weight;
}

double CollectionScore::macro_loss() const {
  double sum = 0;
  for (const SubsetScore& subset : subsets) sum += subset.loss();
  return sum / static_cast<double>(subsets.size());
}

double CollectionScore::micro_loss() const {
  double sum = 0, weight = 0;
  for (const SubsetScore& subset : subsets) {
    sum += subset.loss_sum;
    weight += subset.weight;
  }
  return sum / weight;
}

std::optional<double> CollectionScore::macro_bpb(bool exact) const {
  double sum = 0;
  for (const SubsetScore& subset : subsets) {
    const std::optional<double> value = exact ? subset.bpb_exact() : subset.bpb();
    if (!value.has_value()) return std::nullopt;
    sum += *value;
  }
  return sum / static_cast<double>(subsets.size());
}

std::string CollectionScore::macro_tag() const {
  return absl::StrCat(prefix, complete ? "/macro_loss" : "/partial_macro_loss");
}

namespace {

void AddCollections(const std::vector<CollectionScore>& collections, MetricsLine* line) {
  const auto add = [&](const std::string& name, const std::optional<double>& value) {
    if (value.has_value()) line->Add(name, *value);
  };
  for (const CollectionScore& collection : collections) {
    for (const SubsetScore& subset : collection.subsets) {
      const std::string tag = absl::StrCat(collection.prefix, "/", subset.name);
      line->Add(tag + "/loss", subset.loss());
      add(tag + "/bpb", subset.bpb());
      add(tag + "/bpb_exact", subset.bpb_exact());
    }
    const std::string macro =
        absl::StrCat(collection.prefix, collection.complete ? "/" : "/partial_");
    line->Add(collection.macro_tag(), collection.macro_loss());
    add(macro + "macro_bpb", collection.macro_bpb(false));
    add(macro + "macro_bpb_exact", collection.macro_bpb(true));
    line->Add(macro + "micro_loss", collection.micro_loss());
    line->Add(collection.prefix + "/subsets", static_cast<int64_t>(collection.subsets.size()));
  }
}

}  // namespace

void EvaluationScores::AddTo(MetricsLine* line) const {
  AddCollections(collections, line);
  AddCollections(adjusted, line);
}

}  // namespace overtok
