#include "trainer/config/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace overtok {
namespace {

// Aliases may make a small file expand without bound (or contain itself); a configuration needs
// far less than this.
constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 20000;

absl::Status ErrorAt(const Origin& origin, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(origin.ToString(), ": ", message));
}

// Turns yaml-cpp's tree into ours, checking on the way.
class Converter {
 public:
  // command_line: lines of the text mean nothing to the reader.
  Converter(std::string file, bool command_line)
      : file_(std::move(file)), command_line_(command_line) {}

  Origin At(const YAML::Mark& mark) const {
    // Marks count from 0, and are -1 where the library does not know.
    return command_line_ ? CommandLine() : Origin{file_, std::max(mark.line, 0) + 1};
  }

  absl::StatusOr<YamlValue> Convert(const YAML::Node& node, int depth) {
    YamlValue value;
    value.origin = At(node.Mark());
    if (depth > kMaxDepth || ++values_ > kMaxValues) {
      return ErrorAt(value.origin, "nested too deeply, or an alias that contains itself");
    }
    const std::string& tag = node.Tag();
    if (!tag.empty() && tag != "?" && tag != "!") {
      return ErrorAt(value.origin,
                     absl::StrCat("the tag ", tag, " is not supported; write the plain value"));
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return value;
      case YAML::NodeType::Scalar:
        value.kind = YamlValue::Kind::kScalar;
        value.text = node.Scalar();
        value.quoted = tag == "!";
        return value;
      case YAML::NodeType::Sequence:
        value.kind = YamlValue::Kind::kList;
        for (const auto& item : node) {
          OT_ASSIGN_OR_RETURN(YamlValue child, Convert(item, depth + 1));
          value.children.push_back(std::move(child));
        }
        return value;
      case YAML::NodeType::Map:
        value.kind = YamlValue::Kind::kMap;
        for (const auto& entry : node) {
          OT_ASSIGN_OR_RETURN(YamlValue child, ConvertEntry(entry.first, entry.second, depth));
          if (const YamlValue* first = value.Find(child.key)) {
            return ErrorAt(child.origin,
                           absl::StrCat("duplicate key ", child.key, ", already given at ",
                                        first->origin.ToString(), "; remove one"));
          }
          value.children.push_back(std::move(child));
        }
        return value;
    }
    return value;
  }

 private:
  absl::StatusOr<YamlValue> ConvertEntry(const YAML::Node& key, const YAML::Node& node, int depth) {
    const Origin origin = At(key.Mark());
    if (!key.IsScalar()) return ErrorAt(origin, "a key must be plain text");
    if (key.Scalar() == "<<") {
      return ErrorAt(origin,
                     "merge keys (<<) are not supported; use `base:` or write the keys out");
    }
    OT_ASSIGN_OR_RETURN(YamlValue child, Convert(node, depth + 1));
    child.key = key.Scalar();
    child.origin = origin;
    return child;
  }

  std::string file_;
  bool command_line_;
  int values_ = 0;
};

// Finds where a second document begins. yaml-cpp's LoadAll cannot be used for that: it never ends
// on some stray brackets.
class DocumentCounter : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    ++documents;
    last = mark;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  int documents = 0;
  YAML::Mark last;
};

// yaml-cpp ends a document at a NUL byte, and takes a line that begins with % for a directive even
// behind the document: both would drop keys without a word.
absl::Status CheckBytes(absl::string_view text, const std::string& file) {
  int line = 1;
  bool line_start = true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') {
      return ErrorAt(Origin{file, line},
                     absl::StrCat("the control character ", static_cast<int>(byte),
                                  " does not belong in a configuration; remove it"));
    }
    if (c == '%' && line_start) {
      return ErrorAt(Origin{file, line}, "directives (%) are not supported; remove the line");
    }
    line_start = c == '\n';
    if (c == '\n') ++line;
  }
  return absl::OkStatus();
}

absl::StatusOr<YamlValue> Parse(absl::string_view text, absl::string_view file, bool command_line) {
  Converter converter{std::string(file), command_line};
  if (!command_line) OT_RETURN_IF_ERROR(CheckBytes(text, std::string(file)));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    DocumentCounter counter;
    while (counter.documents < 2 && parser.HandleNextDocument(counter)) {
    }
    if (counter.documents > 1) {
      return ErrorAt(converter.At(counter.last),
                     "a second YAML document, or a stray bracket; a configuration is one document");
    }
    return converter.Convert(YAML::Load(std::string(text)), 0);
  } catch (const YAML::Exception& error) {
    return ErrorAt(converter.At(error.mark), absl::StrCat("not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid YAML: ", error.what()));
  }
}

}  // namespace

Origin CommandLine() { return Origin{"command line", 0}; }

std::string Origin::ToString() const {
  if (file.empty()) return "default";
  return command_line() ? file : absl::StrCat(file, ":", line);
}

YamlValue* YamlValue::Find(absl::string_view child) {
  for (YamlValue& value : children) {
    if (kind == Kind::kMap && value.key == child) return &value;
  }
  return nullptr;
}

const YamlValue* YamlValue::Find(absl::string_view child) const {
  return const_cast<YamlValue*>(this)->Find(child);
}

const YamlValue* YamlValue::At(absl::string_view path) const {
  const YamlValue* value = this;
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    value = value->Find(part);
    if (value == nullptr) return nullptr;
  }
  return value;
}

std::string YamlValue::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return absl::StrCat("\"", text, "\"");
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "";
}

absl::StatusOr<YamlValue> ParseYaml(absl::string_view text, absl::string_view file) {
  OT_ASSIGN_OR_RETURN(YamlValue value, Parse(text, file, false));
  if (value.kind == YamlValue::Kind::kNull) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": holds no keys"));
  }
  if (value.kind != YamlValue::Kind::kMap) {
    return ErrorAt(value.origin, "a configuration is a mapping of keys to values");
  }
  return value;
}

absl::StatusOr<YamlValue> ParseOverride(absl::string_view argument) {
  const size_t equals = argument.find('=');
  const std::string path(absl::StripAsciiWhitespace(argument.substr(0, equals)));
  if (equals == absl::string_view::npos || path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("command line: \"", argument, "\" is not of the form key.path=value"));
  }
  absl::StatusOr<YamlValue> value = Parse(argument.substr(equals + 1), "command line", true);
  if (!value.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(value.status().message(), " (in \"", argument, "\")"));
  }
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  YamlValue tree = *std::move(value);
  tree.origin = CommandLine();
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("command line: \"", path, "\" has an empty part; write key.path=value"));
    }
    tree.key = *part;
    YamlValue parent;
    parent.kind = YamlValue::Kind::kMap;
    parent.origin = CommandLine();
    parent.children.push_back(std::move(tree));
    tree = std::move(parent);
  }
  return tree;
}

void MergeYaml(YamlValue from, YamlValue* onto) {
  if (from.kind != YamlValue::Kind::kMap || onto->kind != YamlValue::Kind::kMap) {
    *onto = std::move(from);
    return;
  }
  onto->origin = from.origin;
  for (YamlValue& child : from.children) {
    if (YamlValue* existing = onto->Find(child.key)) {
      MergeYaml(std::move(child), existing);
    } else {
      onto->children.push_back(std::move(child));
    }
  }
}

}  // namespace overtok
