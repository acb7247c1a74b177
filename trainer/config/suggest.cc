#include "trainer/config/suggest.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace overtok {
namespace {

// Names that other frameworks use, and the key that means the same here.
constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"hidden_dim", "model.hidden_size"},
    {"n_embd", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"intermediate_dim", "model.intermediate_size"},
    {"ffn_hidden_size", "model.intermediate_size"},
    {"num_layers", "model.num_hidden_layers"},
    {"n_layer", "model.num_hidden_layers"},
    {"n_layers", "model.num_hidden_layers"},
    {"num_heads", "model.num_attention_heads"},
    {"n_head", "model.num_attention_heads"},
    {"n_heads", "model.num_attention_heads"},
    {"num_kv_heads", "model.num_key_value_heads"},
    {"num_query_groups", "model.num_key_value_heads"},
    {"n_query_groups", "model.num_key_value_heads"},
    {"n_kv_head", "model.num_key_value_heads"},
    {"n_kv_heads", "model.num_key_value_heads"},
    {"kv_channels", "model.head_dim"},
    {"head_size", "model.head_dim"},
    {"layer_norm_epsilon", "model.rms_norm_eps"},
    {"layernorm_epsilon", "model.rms_norm_eps"},
    {"norm_eps", "model.rms_norm_eps"},
    {"rotary_base", "model.rope_theta"},
    {"rope_base", "model.rope_theta"},
    {"tied_embeddings", "model.tie_word_embeddings"},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings"},
    {"padded_vocab_size", "model.vocab_size"},
    {"learning_rate", "optimizer.lr"},
    {"adam_learning_rate", "optimizer.adam_lr"},
    {"epsilon", "optimizer.eps"},
    {"clip_grad", "optimizer.max_grad_norm"},
    {"grad_clip", "optimizer.max_grad_norm"},
    {"warmup", "optimizer.schedule.warmup_steps"},
    {"lr_schedule", "optimizer.schedule.type"},
    {"seq_len", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"block_size", "data.sequence_length"},
    {"max_position_embeddings", "data.sequence_length"},
    {"global_batch_size", "train.batch_sequences"},
    {"batch_size", "train.batch_sequences"},
    {"micro_batch_size", "train.micro_batch_sequences"},
    {"max_steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"max_tokens", "train.tokens"},
    {"epochs", "train.passes_over_data"},
    {"save_interval", "checkpoint.every_steps"},
};

std::string Last(absl::string_view path) {
  const size_t dot = path.rfind('.');
  return std::string(dot == absl::string_view::npos ? path : path.substr(dot + 1));
}

std::string Parent(absl::string_view path) {
  const size_t dot = path.rfind('.');
  return std::string(dot == absl::string_view::npos ? "" : path.substr(0, dot));
}

// Names directly below a section ("" for the top), each once.
std::vector<std::string> Below(absl::string_view section, const std::vector<std::string>& keys) {
  const std::string prefix = section.empty() ? "" : absl::StrCat(section, ".");
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    if (!absl::StartsWith(key, prefix)) continue;
    const std::string rest = key.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min(
          {previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string Nearest(absl::string_view text, const std::vector<std::string>& choices) {
  std::string best;
  int best_distance = 0;
  for (const std::string& choice : choices) {
    int distance = EditDistance(text, choice);
    // An abbreviation is near, however much it leaves out.
    const bool prefix = (absl::StartsWith(choice, text) || absl::StartsWith(text, choice)) &&
                        std::min(text.size(), choice.size()) >= 3;
    if (prefix) distance = std::min(distance, 2);
    const int limit = static_cast<int>(std::max(text.size(), choice.size())) / 3;
    if (!prefix && (distance > std::max(1, limit) || distance >= static_cast<int>(choice.size()))) {
      continue;
    }
    if (best.empty() || distance < best_distance) {
      best = choice;
      best_distance = distance;
    }
  }
  return best;
}

std::string NearestPath(absl::string_view path, const std::vector<std::string>& keys) {
  std::string section;
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    const std::string name = Nearest(part, Below(section, keys));
    if (name.empty()) return "";
    section = section.empty() ? name : absl::StrCat(section, ".", name);
  }
  return section;
}

std::string SuggestKey(absl::string_view path, const std::vector<std::string>& keys) {
  const std::string last = Last(path);
  const std::string section = Parent(path);
  std::vector<std::string> elsewhere;
  for (const std::string& key : keys) {
    if (Last(key) == last) elsewhere.push_back(key);
  }
  // A near name in the section that was meant beats the same name in another one only when it is
  // the whole path that is near.
  if (elsewhere.size() == 1) {
    const std::string right = Parent(elsewhere[0]);
    if (Nearest(section, {right}).empty()) {
      return absl::StrCat(last, " belongs in the section ", right, ": write ", elsewhere[0]);
    }
    return absl::StrCat("did you mean ", elsewhere[0], "?");
  }
  for (const auto& [other, ours] : kOtherNames) {
    if (last == other) return absl::StrCat("it is called ", ours, " here");
  }
  if (const std::string near = NearestPath(path, keys); !near.empty()) {
    return absl::StrCat("did you mean ", near, "?");
  }
  if (elsewhere.size() > 1) {
    return absl::StrCat(last, " belongs in another section: ", absl::StrJoin(elsewhere, ", "));
  }
  std::vector<std::string> names;
  for (const auto& [other, ours] : kOtherNames) names.push_back(other);
  if (const std::string near = Nearest(last, names); !near.empty()) {
    for (const auto& [other, ours] : kOtherNames) {
      if (near == other) return absl::StrCat("did you mean ", ours, "?");
    }
  }
  std::vector<std::string> lasts;
  for (const std::string& key : keys) lasts.push_back(Last(key));
  if (const std::string near = Nearest(last, lasts); !near.empty()) {
    const auto found = std::find(lasts.begin(), lasts.end(), near);
    return absl::StrCat("did you mean ",
                        keys[static_cast<size_t>(std::distance(lasts.begin(), found))], "?");
  }
  const std::string known = section.empty() ? "" : NearestPath(section, keys);
  return absl::StrCat(known.empty() ? "the sections are " : absl::StrCat(known, " has the keys "),
                      absl::StrJoin(Below(known, keys), ", "));
}

}  // namespace overtok
