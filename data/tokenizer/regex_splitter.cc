// PCRE2 with UTF and UCP. The text is validated before it comes here, so the matcher's own check,
// which would run from the start for every match, is off.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/regex_splitter.h"

#include <pcre2.h>

#include "core/check.h"
#include "data/tokenizer/newer_characters.h"

namespace overtok {
namespace {

constexpr size_t kJitStackStart = size_t{64} << 10;
constexpr size_t kJitStackLimit = size_t{32} << 20;

// Match data, JIT stack and context belong to one thread; all expressions share them, because only
// the bounds of the whole match are ever read.
class MatchState {
 public:
  MatchState()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)) {
    OT_CHECK(data_ != nullptr && context_ != nullptr) << "out of memory for PCRE2's match data";
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~MatchState() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data() const { return data_; }
  pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

MatchState& ThreadMatchState() {
  thread_local MatchState state;
  return state;
}

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

size_t NextCharacter(absl::string_view text, size_t at) {
  ++at;
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegexSplitter>> RegexSplitter::Compile(const SplitSpec& spec) {
  std::unique_ptr<RegexSplitter> splitter(new RegexSplitter());
  splitter->pattern_ = spec.pattern;
  splitter->literal_ = spec.literal;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  OT_CHECK(context != nullptr) << "out of memory for PCRE2's compile context";
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  const uint32_t options =
      PCRE2_UTF | (spec.literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  splitter->code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spec.pattern.data()),
                                  spec.pattern.size(), options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (splitter->code_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", spec.pattern,
                                                   "\" does not compile: ", ErrorText(error),
                                                   " at its byte ", offset));
  }
  // Without a JIT for this machine the interpreter gives the same matches.
  splitter->jit_ = pcre2_jit_compile(splitter->code_, PCRE2_JIT_COMPLETE) == 0;
  return splitter;
}

RegexSplitter::~RegexSplitter() { pcre2_code_free(code_); }

absl::Status RegexSplitter::Split(absl::string_view text,
                                  absl::FunctionRef<void(absl::string_view piece)> take) const {
  const MatchState& state = ThreadMatchState();
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data());
  std::string replaced;
  const bool newer = !literal_ && ReplaceNewerCharacters(text, &replaced);
  const PCRE2_SPTR subject = reinterpret_cast<PCRE2_SPTR>(newer ? replaced.data() : text.data());
  const auto give = [&](size_t begin, size_t end) {
    if (begin < end) take(text.substr(begin, end - begin));
  };
  size_t done = 0;   // end of the last piece
  size_t start = 0;  // where the next match may begin
  while (start < text.size()) {
    const int code =
        jit_ ? pcre2_jit_match(code_, subject, text.size(), start, 0, state.data(), state.context())
             : pcre2_match(code_, subject, text.size(), start, PCRE2_NO_UTF_CHECK, state.data(),
                           state.context());
    if (code == PCRE2_ERROR_NOMATCH) break;
    if (code < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the pattern \"", pattern_,
                                                     "\" failed at byte ", start, " of a text of ",
                                                     text.size(), " bytes: ", ErrorText(code)));
    }
    const size_t begin = bounds[0], end = bounds[1];
    // \K inside a lookahead can report a match that ends before it begins or before the last one.
    if (begin > end || begin < done) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the pattern \"", pattern_, "\" matches out of order; do not use \\K in lookarounds"));
    }
    give(done, begin);
    give(begin, end);
    done = end;
    start = end > begin ? end : NextCharacter(text, end);
  }
  give(done, text.size());
  return absl::OkStatus();
}

}  // namespace overtok
