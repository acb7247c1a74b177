// Parsed with simdjson's DOM, which keeps a repeated key, where most libraries keep one of the two.
#include "core/io/safetensors_header.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace overtok {
namespace {

namespace dom = simdjson::dom;

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Text(std::string_view text) { return std::string(text); }

// A list of whole numbers from 0 to 2^63 - 1.
std::optional<std::vector<int64_t>> Wholes(const dom::element& value) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const dom::element& item : array) {
    int64_t number;
    // Of 2.0 too, which is not how sizes are written, nothing is taken.
    if (!item.is_int64() || item.get(number) != simdjson::SUCCESS || number < 0) {
      return std::nullopt;
    }
    numbers.push_back(number);
  }
  return numbers;
}

// The product, or nothing when it is beyond 2^63 - 1.
std::optional<int64_t> Product(const std::vector<int64_t>& factors, int64_t first) {
  int64_t product = first;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

class Parser {
 public:
  Parser(absl::string_view path, int64_t data_begin, int64_t data_size)
      : path_(path), data_begin_(data_begin), data_size_(data_size) {}

  absl::StatusOr<SafetensorsHeader> Parse(const dom::object& root) {
    SafetensorsHeader header;
    std::set<std::string> names;
    for (const dom::key_value_pair& field : root) {
      const std::string name = Text(field.key);
      if (!names.insert(name).second) {
        return Invalid(path_, ": two entries named ", name, "; expected each name once");
      }
      dom::object entry;
      if (field.value.get(entry) != simdjson::SUCCESS) {
        return Invalid(path_, ": ", name, ": expected a JSON object");
      }
      if (name == "__metadata__") {
        OT_RETURN_IF_ERROR(Metadata(entry, &header));
      } else {
        OT_ASSIGN_OR_RETURN(header.tensors.emplace_back(), Tensor(name, entry));
      }
    }
    OT_RETURN_IF_ERROR(CheckPlaces(header.tensors));
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
    return header;
  }

 private:
  absl::Status Metadata(const dom::object& entry, SafetensorsHeader* header) const {
    for (const dom::key_value_pair& field : entry) {
      std::string_view value;
      if (field.value.get(value) != simdjson::SUCCESS) {
        return Invalid(path_, ": __metadata__: ", Text(field.key), " is not a text");
      }
      if (!header->metadata.emplace(Text(field.key), Text(value)).second) {
        return Invalid(path_, ": __metadata__: two entries named ", Text(field.key));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SafetensorsEntry> Tensor(const std::string& name, const dom::object& entry) const {
    const std::string where = absl::StrCat(path_, ": ", name, ": ");
    std::optional<std::string> type;
    std::optional<std::vector<int64_t>> shape, offsets;
    for (const dom::key_value_pair& field : entry) {
      const bool again = (field.key == "dtype" && type) || (field.key == "shape" && shape) ||
                         (field.key == "data_offsets" && offsets);
      if (again) return Invalid(where, Text(field.key), " is given twice");
      if (field.key == "dtype") {
        std::string_view text;
        if (field.value.get(text) != simdjson::SUCCESS) {
          return Invalid(where, "dtype: expected a text");
        }
        type = Text(text);
      } else if (field.key == "shape") {
        shape = Wholes(field.value);
        if (!shape) return Invalid(where, "shape: expected a list of whole numbers >= 0");
      } else if (field.key == "data_offsets") {
        offsets = Wholes(field.value);
        if (!offsets || offsets->size() != 2) {
          return Invalid(where, "data_offsets: expected [begin, end], two whole numbers >= 0");
        }
      } else {
        return Invalid(where, "unknown key ", Text(field.key),
                       "; expected dtype, shape and data_offsets");
      }
    }
    if (!type || !shape || !offsets) {
      return Invalid(where, "expected dtype, shape and data_offsets");
    }
    const std::optional<StoredType> stored = StoredTypeNamed(*type);
    if (!stored) {
      return Invalid(where, "the type ", *type,
                     " is not known; expected F64, F32, F16, BF16, or one of I64 ... U8, F8_E4M3, "
                     "F8_E5M2, BOOL");
    }
    const std::optional<int64_t> elements = Product(*shape, 1);
    const std::optional<int64_t> bytes = Product(*shape, SizeOf(*stored));
    if (!elements || !bytes) {
      return Invalid(where, "shape ", FormatShape(*shape), " has more than 2^63 bytes");
    }
    const int64_t begin = (*offsets)[0], end = (*offsets)[1];
    if (begin > end || end > data_size_) {
      return Invalid(where, "data_offsets [", begin, ", ", end, "] do not lie inside the ",
                     data_size_, " bytes of data that the file has; is it cut off?");
    }
    if (end - begin != *bytes) {
      return Invalid(where, "data_offsets [", begin, ", ", end, "] are ", end - begin, " bytes; ",
                     *type, " ", FormatShape(*shape), " takes ", *bytes);
    }
    return SafetensorsEntry{
        name, *stored, *std::move(shape), *elements, data_begin_ + begin, data_begin_ + end};
  }

  // The tensors' bytes follow each other and are all of the data.
  absl::Status CheckPlaces(const std::vector<SafetensorsEntry>& tensors) const {
    std::vector<const SafetensorsEntry*> order;
    order.reserve(tensors.size());
    for (const SafetensorsEntry& tensor : tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
      return std::make_pair(a->begin, a->end) < std::make_pair(b->begin, b->end);
    });
    int64_t at = data_begin_;
    const SafetensorsEntry* before = nullptr;
    for (const SafetensorsEntry* tensor : order) {
      if (tensor->begin < at) {
        return Invalid(path_, ": ", tensor->name, " and ", before->name,
                       " overlap; expected bytes of their own");
      }
      if (tensor->begin > at) {
        return Invalid(path_, ": ", tensor->begin - at, " bytes of data before ", tensor->name,
                       " belong to no tensor");
      }
      at = tensor->end;
      before = tensor;
    }
    if (at != data_begin_ + data_size_) {
      return Invalid(path_, ": the last ", data_begin_ + data_size_ - at,
                     " bytes of data belong to no tensor");
    }
    return absl::OkStatus();
  }

  std::string path_;
  int64_t data_begin_, data_size_;
};

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view path, const char* file,
                                                         int64_t file_size) {
  constexpr int64_t kLengthBytes = 8;
  if (file_size < kLengthBytes) {
    return Invalid(path, ": has ", file_size, " bytes; a safetensors file has at least 10");
  }
  uint64_t stored_length;
  std::memcpy(&stored_length, file, sizeof(stored_length));
  const auto most =
      static_cast<uint64_t>(std::min(kMaxSafetensorsHeader, file_size - kLengthBytes));
  if (stored_length > most) {
    return Invalid(path, ": states a header of ", stored_length, " bytes; expected at most ", most,
                   ", as the file has ", file_size, " (it may be no safetensors file, or cut off)");
  }
  const auto length = static_cast<int64_t>(stored_length);
  if (length == 0 || file[kLengthBytes] != '{') {
    return Invalid(path, ": the header does not begin with {; is it a safetensors file?");
  }
  dom::parser parser;
  const simdjson::padded_string text(file + kLengthBytes, static_cast<size_t>(length));
  dom::element element;
  dom::object root;
  const simdjson::error_code error = parser.parse(text).get(element);
  if (error != simdjson::SUCCESS) {
    return Invalid(path,
                   ": the header is not valid JSON: ", std::string(simdjson::error_message(error)));
  }
  if (element.get(root) != simdjson::SUCCESS) {
    return Invalid(path, ": the header is not a JSON object");
  }
  const int64_t data_begin = kLengthBytes + length;
  return Parser(path, data_begin, file_size - data_begin).Parse(root);
}

std::string FormatShape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace overtok
