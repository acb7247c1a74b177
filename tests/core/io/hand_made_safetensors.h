// Safetensors files put together from their bytes, without the project's writer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace overtok::testing {

// Length of the header, the header's text, the data.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((static_cast<uint64_t>(header.size()) >> (8 * i)) & 0xffU);
  }
  return bytes + header + data;
}

// A header of entries with commas between them.
inline std::string Object(const std::string& entries) { return absl::StrCat("{", entries, "}"); }

// An entry of a header.
inline std::string Entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, int64_t begin, int64_t end) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":[", begin, ",", end, "]}");
}

}  // namespace overtok::testing
