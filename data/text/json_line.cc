#include "data/text/json_line.h"

#include <simdjson.h>

#include <vector>

namespace overtok {
namespace {

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Whether the line holds an escape of the range D800-DFFF: the likely reason where a string cannot
// be decoded.
bool HasSurrogateEscape(absl::string_view line) {
  for (size_t i = line.find("\\u"); i != absl::string_view::npos; i = line.find("\\u", i + 2)) {
    if (i + 5 < line.size() && (line[i + 2] == 'd' || line[i + 2] == 'D') && IsHex(line[i + 3]) &&
        (line[i + 3] >= '8')) {
      return true;
    }
  }
  return false;
}

}  // namespace

struct JsonLineParser::State {
  simdjson::dom::parser parser;
  std::vector<char> padded;  // grows with the longest line
};

JsonLineParser::JsonLineParser() : state_(std::make_unique<State>()) {}
JsonLineParser::~JsonLineParser() = default;

absl::StatusOr<absl::string_view> JsonLineParser::Text(absl::string_view line,
                                                       absl::string_view field) {
  std::vector<char>& padded = state_->padded;
  if (padded.size() < line.size() + simdjson::SIMDJSON_PADDING) {
    padded.resize(2 * line.size() + simdjson::SIMDJSON_PADDING);
  }
  line.copy(padded.data(), line.size());
  simdjson::dom::element root;
  const simdjson::error_code error =
      state_->parser.parse(padded.data(), line.size(), false).get(root);
  if (error != simdjson::SUCCESS) {
    if (error == simdjson::STRING_ERROR && HasSurrogateEscape(line)) {
      return absl::InvalidArgumentError(
          "a lone surrogate escape (\\ud800 to \\udfff without its other half) stands for no text");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("not valid JSON: ", std::string(simdjson::error_message(error))));
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("not a JSON object");
  }
  simdjson::dom::element value;
  if (object.at_key(std::string_view(field.data(), field.size())).get(value) != simdjson::SUCCESS) {
    std::string keys;
    for (const simdjson::dom::key_value_pair pair : object) {
      absl::StrAppend(&keys, keys.empty() ? "" : ", ", std::string(pair.key));
      if (keys.size() > 200) break;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("no field \"", field, "\"; the object has: ", keys.empty() ? "none" : keys));
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat("the field \"", field, "\" is not a string"));
  }
  return absl::string_view(text.data(), text.size());
}

}  // namespace overtok
