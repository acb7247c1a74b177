// Rules between keys: which exclude each other, and which have no effect under which.
#include "trainer/config/schema.h"

namespace overtok {
namespace {

bool NotLinearOrder(const Config& c) { return c.data.order.type != OrderOptions::Type::kLinear; }
bool SequentialOrder(const Config& c) {
  return c.data.order.type == OrderOptions::Type::kSequential;
}
bool NothingToEvaluate(const Config& c) { return !c.eval.enabled(); }
bool NoInputTables(const Config& c) { return !c.model.ngram_embedding.has_value(); }
bool NoTables(const Config& c) { return NoInputTables(c) && !c.model.ngram_head.has_value(); }

InactiveRule TablesRule(absl::string_view option) {
  return {absl::StrCat("optimizer.tables.", option),
          {"model.ngram_embedding", "model.ngram_head"},
          NoTables,
          "the model has no hashed tables"};
}

}  // namespace

const std::vector<ExclusiveKeys>& ConfigExclusiveKeys() {
  static const auto* const groups = new std::vector<ExclusiveKeys>{
      {{"train.steps", "train.tokens", "train.passes_over_data", "train.tokens_per_parameter"},
       true},
      {{"data.passes", "data.unique_tokens"}, false},
      {{"optimizer.tables.freeze_after_passes", "optimizer.tables.freeze_step"}, false, "0"}};
  return *groups;
}

const std::vector<InactiveRule>& ConfigInactiveRules() {
  static const auto* const rules = new std::vector<InactiveRule>{
      {"optimizer.schedule.decay",
       {"optimizer.schedule.type"},
       [](const Config& c) { return c.optimizer.schedule.type != ScheduleConfig::Type::kLinear; },
       "the cosine schedule falls from the end of the warm-up to the end of the run"},
      {"optimizer.schedule.min_lr_ratio",
       {"optimizer.schedule.decay"},
       [](const Config& c) {
         return c.optimizer.schedule.type == ScheduleConfig::Type::kLinear &&
                c.optimizer.schedule.decay == 0;
       },
       "with decay 0 the rate never falls"},
      {"train.new_parameters",
       {"train.initial_weights"},
       [](const Config& c) { return !c.train.initial_weights.has_value(); },
       "without train.initial_weights all parameters are drawn"},
      {"parallel.vocabulary_map",
       {"parallel.tensor"},
       [](const Config& c) { return c.parallel.tensor == 1; },
       "with parallel.tensor 1 every rank has all rows"},
      {"data.order.block", {"data.order.type"}, NotLinearOrder, "only the linear order has blocks"},
      {"data.order.a", {"data.order.type"}, NotLinearOrder, "only the linear order has it"},
      {"data.order.b", {"data.order.type"}, NotLinearOrder, "only the linear order has it"},
      {"data.order.seed",
       {"data.order.type"},
       SequentialOrder,
       "the sequential order draws nothing"},
      {"data.order.reshuffle",
       {"data.order.type"},
       SequentialOrder,
       "the sequential order is the same in every pass"},
      {"eval.tokenizer",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.every_steps",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.at_start",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.tail",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.inclusion_adjusted",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.pass_offsets",
       {"eval.paloma", "eval.held_out"},
       NothingToEvaluate,
       "there is nothing to evaluate"},
      {"eval.inclusion_adjusted",
       {"loss.sampled_softmax"},
       [](const Config& c) { return !c.loss.sampled_softmax.has_value(); },
       "every class is a candidate of the full softmax"},
      {"eval.inclusion_adjusted",
       {"loss.sampled_softmax.correction"},
       [](const Config& c) {
         return c.loss.sampled_softmax.has_value() &&
                c.loss.sampled_softmax->correction == Correction::kInclusion;
       },
       "the correction already makes the logits those of all classes"},
      TablesRule("update"),
      TablesRule("second_moment"),
      TablesRule("beta1"),
      TablesRule("storage"),
      TablesRule("lr_scale"),
      TablesRule("untouched_decay"),
      TablesRule("memory"),
      {"optimizer.tables.freeze_after_passes",
       {"model.ngram_embedding"},
       NoInputTables,
       "only input tables freeze"},
      {"optimizer.tables.freeze_step",
       {"model.ngram_embedding"},
       NoInputTables,
       "only input tables freeze"},
      {"optimizer.tables.second_moment",
       {"optimizer.tables.update"},
       [](const Config& c) { return c.optimizer.tables.update == TablesConfig::Update::kSgd; },
       "sgd has no moments"},
      {"optimizer.tables.beta1",
       {"optimizer.tables.update"},
       [](const Config& c) { return c.optimizer.tables.update != TablesConfig::Update::kExact; },
       "only exact has a first moment"}};
  return *rules;
}

const InactiveRule* FindInactive(absl::string_view key, const Config& config) {
  for (const InactiveRule& rule : ConfigInactiveRules()) {
    if (rule.option == key && rule.inactive(config)) return &rule;
  }
  return nullptr;
}

}  // namespace overtok
