// Keys of the sections model and loss.
#include "trainer/config/schema_parts.h"

namespace overtok {
namespace {

// Rows are named by 32-bit numbers. method_rules.cc checks the largest table.
constexpr int64_t kMostRows = (int64_t{1} << 32) - 1;

std::vector<Choice> Corrections() {
  return {Word("none", Correction::kNone), Word("inclusion", Correction::kInclusion)};
}

}  // namespace

void AddModelKeys(std::vector<Key>& keys) {
  // The upper bounds keep every product of sizes within 64 bits.
  keys.push_back(WholeKey("model.vocab_size", OT_FIELD(model.vocab_size), 2, int64_t{1} << 31, "",
                          "Token ids are 0 ... vocab_size - 1."));
  keys.push_back(WholeKey("model.hidden_size", OT_FIELD(model.hidden_size), 1, 1 << 20, "",
                          "Width of the residual stream."));
  keys.push_back(WholeKey("model.intermediate_size", OT_FIELD(model.intermediate_size), 1, 1 << 22,
                          "", "Inner width of the SwiGLU MLP."));
  keys.push_back(WholeKey("model.num_hidden_layers", OT_FIELD(model.num_hidden_layers), 1, 4096, "",
                          "Transformer blocks."));
  keys.push_back(WholeKey("model.num_attention_heads", OT_FIELD(model.num_attention_heads), 1, 4096,
                          "", "Query heads."));
  keys.push_back(WholeKey("model.num_key_value_heads", OT_FIELD(model.num_key_value_heads), 1, 4096,
                          "auto", "Key and value heads; divides num_attention_heads.")
                     .OrAuto("num_attention_heads"));
  keys.push_back(WholeKey("model.head_dim", OT_FIELD(model.head_dim), 2, 4096, "auto",
                          "Width of one head; even. heads * head_dim need not be hidden_size.")
                     .OrAuto("hidden_size / num_attention_heads"));
  keys.push_back(RealKey("model.rope_theta", OT_FIELD(model.rope_theta), kPositive, "10000",
                         "Base of the rotary position frequencies."));
  keys.push_back(RealKey("model.rms_norm_eps", OT_FIELD(model.rms_norm_eps), kPositive, "1e-5",
                         "Added to the mean square inside every RMSNorm."));
  keys.push_back(BoolKey("model.hybrid_norm", OT_FIELD(model.hybrid_norm), "true",
                         "Norms on the outputs of attention and MLP as well as on their inputs."));
  keys.push_back(BoolKey("model.tie_word_embeddings", OT_FIELD(model.tie_word_embeddings), "false",
                         "The output head uses the token embedding; there is no lm_head."));

  using Ngram = NgramEmbeddingConfig;
  keys.push_back(WholesChoiceKey("model.ngram_embedding.orders",
                                 OT_FIELD(model.ngram_embedding->orders), {{2, 3}, {2}, {3}},
                                 "[2, 3]", "Tokens in the n-grams that have tables."));
  keys.push_back(WholeKey("model.ngram_embedding.rows", OT_FIELD(model.ngram_embedding->rows), 2,
                          kMostRows, "12800000",
                          "Rows of the first table; the others have a few more (moduli)."));
  keys.push_back(WholeKey("model.ngram_embedding.splits", OT_FIELD(model.ngram_embedding->splits),
                          1, 1024, "auto", "Tables for each order.")
                     .OrAuto("hidden_size / (256 * the highest order), rounded, at least 1"));
  keys.push_back(WholeKey("model.ngram_embedding.width", OT_FIELD(model.ngram_embedding->width), 1,
                          1 << 20, "auto", "Width of a table's rows.")
                     .OrAuto("hidden_size / (the highest order * splits), rounded down"));
  keys.push_back(EnumKey<Ngram::Moduli>(
      "model.ngram_embedding.moduli", OT_FIELD(model.ngram_embedding->moduli),
      {Word("paper", Ngram::Moduli::kPaper), Word("prime", Ngram::Moduli::kPrime)}, "paper",
      "Rows of table t = 0, 1, ...: paper: rows + 4 t; prime: the next unused prime from rows on "
      "that does not divide vocab_size."));
  keys.push_back(RealKey("model.ngram_embedding.row_dropout",
                         OT_FIELD(model.ngram_embedding->row_dropout), {0, 1, false, true}, "0",
                         "Probability that a position reads zeros in place of a table's row while "
                         "training; what stays is scaled up."));
  keys.push_back(EnumKey<Ngram::EachPass>(
      "model.ngram_embedding.each_pass", OT_FIELD(model.ngram_embedding->each_pass),
      {Word("keep", Ngram::EachPass::kKeep), Word("reinitialize", Ngram::EachPass::kReinitialize),
       Word("rehash", Ngram::EachPass::kRehash)},
      "keep",
      "What happens to the tables where another pass over the data begins. reinitialize: fresh "
      "initial values and no moments; rehash: other rows for the n-grams."));
  const char* const no_weight =
      "to train without this head, write null in the place of its section";
  keys.push_back(RealKey("model.second_token_head.weight",
                         OT_FIELD(model.second_token_head->weight), kPositive, "0.1",
                         "Weight of the head's mean loss in the sum.")
                     .WithHint(no_weight));
  keys.push_back(WholesChoiceKey("model.ngram_head.orders", OT_FIELD(model.ngram_head->orders),
                                 {{2}, {2, 3}}, "[2]",
                                 "Tokens in the n-grams that are classes; one head for each."));
  keys.push_back(WholeKey("model.ngram_head.rows", OT_FIELD(model.ngram_head->rows), 2, kMostRows,
                          "12800000", "Classes of the 2-gram head; the 3-gram head has 4 more."));
  keys.push_back(WholeKey("model.ngram_head.width", OT_FIELD(model.ngram_head->width), 1, 1 << 20,
                          "auto", "Width of a class's row.")
                     .OrAuto("ngram_embedding.width where there is one, else as that would be by "
                             "default"));
  keys.push_back(RealKey("model.ngram_head.weight", OT_FIELD(model.ngram_head->weight), kPositive,
                         "0.1", "Weight of each head's mean loss in the sum.")
                     .WithHint(no_weight));
  keys.push_back(EnumKey<Correction>(
      "model.ngram_head.correction", OT_FIELD(model.ngram_head->correction), Corrections(), "none",
      "As loss.sampled_softmax.correction, for these heads' own candidates."));
}

void AddLossKeys(std::vector<Key>& keys) {
  keys.push_back(StagesKey("loss.sampled_softmax.stages", OT_FIELD(loss.sampled_softmax->stages),
                           "[{until: 0.57, candidates: 24576}, {until: 0.81, candidates: 36864}, "
                           "{until: 0.93, candidates: 65536}]",
                           "Candidates of each vocabulary head until this fraction of the steps; "
                           "after the last stage the full softmax."));
  keys.push_back(EnumKey<Correction>(
      "loss.sampled_softmax.correction", OT_FIELD(loss.sampled_softmax->correction), Corrections(),
      "none",
      "Added to the logits of negatives. inclusion: log((V - T) / (P - T)) for V classes, P "
      "candidates, T distinct labels."));
  keys.push_back(EnumKey<Negatives>(
      "loss.sampled_softmax.negatives", OT_FIELD(loss.sampled_softmax->negatives),
      {Word("sweep", Negatives::kSweep), Word("uniform", Negatives::kUniform)}, "sweep",
      "Where candidates that are no labels come from. sweep: a fixed permutation from an offset "
      "drawn for each step; uniform: drawn without replacement. N-gram heads do the same."));
  keys.push_back(WholeKey("loss.sampled_softmax.block_sequences", OT_FIELD(loss.block_sequences), 1,
                          1 << 24, "auto",
                          "Windows that share one candidate set; divides train.batch_sequences.")
                     .OrAuto("the largest divisor of train.batch_sequences up to 32; hashed n-gram "
                             "heads use it without this section too"));
  keys.push_back(RealKey("loss.focal_gamma", OT_FIELD(loss.focal_gamma), kNotNegative, "0",
                         "gamma: the cross-entropy is multiplied by (1 - p)^gamma, p the target's "
                         "probability; 0: off. Main and second head, full softmax only."));
  keys.push_back(RealKey("loss.z_loss", OT_FIELD(loss.z_loss), kNotNegative, "0",
                         "Weight of the mean squared log-sum-exp of the logits, added to the "
                         "cross-entropy and reported apart; 0: off."));
}

}  // namespace overtok
