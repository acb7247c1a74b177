// The stages of pre-tokenization and the expressions known by name.
#include "data/tokenizer/pre_tokenizer.h"

#include <array>
#include <utility>

#include "data/tokenizer/regex_splitter.h"

namespace overtok {
namespace {

// These four are facts about published vocabularies: any other spelling that matches differently
// would give other ids.
constexpr char kGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

struct NamedPattern {
  const char* name;
  const char* pattern;
};
constexpr std::array<NamedPattern, 4> kNamed = {
    {{"gpt2", kGpt2}, {"cl100k", kLlama3}, {"llama3", kLlama3}, {"qwen2", kQwen2}}};

}  // namespace

absl::StatusOr<std::string> ResolvePattern(absl::string_view name_or_expression) {
  if (name_or_expression.empty()) {
    return absl::InvalidArgumentError(
        "no pattern is given; expected gpt2, cl100k, llama3, qwen2 or a regular expression");
  }
  for (const NamedPattern& named : kNamed) {
    if (name_or_expression == named.name) return std::string(named.pattern);
  }
  return std::string(name_or_expression);
}

absl::string_view Gpt2Pattern() { return kGpt2; }

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const PreTokenizerSpec& spec) {
  PreTokenizer result;
  for (const SplitSpec& split : spec.splits) {
    OT_ASSIGN_OR_RETURN(std::unique_ptr<RegexSplitter> splitter, RegexSplitter::Compile(split));
    result.splitters_.push_back(std::move(splitter));
  }
  result.add_prefix_space_ = spec.add_prefix_space;
  result.prefix_stage_ = result.splitters_.size();
  if (spec.gpt2_split) {
    OT_ASSIGN_OR_RETURN(std::unique_ptr<RegexSplitter> splitter,
                        RegexSplitter::Compile({kGpt2, /*literal=*/false}));
    result.splitters_.push_back(std::move(splitter));
  }
  return result;
}

absl::Status PreTokenizer::Split(absl::string_view text,
                                 absl::FunctionRef<void(absl::string_view piece)> take) const {
  if (text.empty()) return absl::OkStatus();
  return SplitFrom(0, text, take);
}

absl::Status PreTokenizer::SplitFrom(size_t stage, absl::string_view text,
                                     absl::FunctionRef<void(absl::string_view piece)> take) const {
  std::string spaced;
  if (add_prefix_space_ && stage == prefix_stage_ && text.front() != ' ') {
    spaced = absl::StrCat(" ", text);
    text = spaced;
  }
  if (stage == splitters_.size()) {
    take(text);
    return absl::OkStatus();
  }
  const bool last =
      stage + 1 == splitters_.size() && !(add_prefix_space_ && prefix_stage_ == splitters_.size());
  if (last) return splitters_[stage]->Split(text, take);
  absl::Status inner = absl::OkStatus();
  OT_RETURN_IF_ERROR(splitters_[stage]->Split(text, [&](absl::string_view piece) {
    if (inner.ok()) inner = SplitFrom(stage + 1, piece, take);
  }));
  return inner;
}

}  // namespace overtok
