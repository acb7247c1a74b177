#include "core/io/safetensors_writer.h"

#include <cstring>
#include <vector>

#include "core/io/files.h"
#include "core/io/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::TemporaryDirectory;

TEST(SafetensorsWriter, WritesTheseBytes) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("w.safetensors");
  std::vector<float> wide = {1, -2, 0.5F}, narrow = {3, 4, 5};
  OT_ASSERT_OK(WriteSafetensors(path, {{"a", StoredType::kBF16, Tensor(narrow.data(), {3})},
                                       {"b", StoredType::kF32, Tensor(wide.data(), {1, 3})}}));
  const auto bytes = ReadFile(path);
  OT_ASSERT_OK(bytes);
  const std::string text =
      R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[12,18],"dtype":"BF16","shape":[3]},)"
      R"("b":{"data_offsets":[0,12],"dtype":"F32","shape":[1,3]}})";
  uint64_t length;
  std::memcpy(&length, bytes->data(), 8);
  EXPECT_EQ(length % 8, 0u);
  ASSERT_LT(length - text.size(), 8u);
  EXPECT_EQ(bytes->substr(8, length), text + std::string(length - text.size(), ' '));
  std::string data(reinterpret_cast<const char*>(wide.data()), 12);
  data += std::string("\x40\x40\x80\x40\xa0\x40", 6);  // 3, 4, 5 in bfloat16
  EXPECT_EQ(bytes->substr(8 + length), data);
  EXPECT_FALSE(PathExists(path + ".tmp"));
}

TEST(SafetensorsWriter, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 400;
  const std::vector<TensorToStore> tensors = {
      {"layer.10", StoredType::kF64, Tensor(values.data(), {10, 10})},
      {"layer.9", StoredType::kF32, Tensor(values.data() + 100, {300})},
      {"half", StoredType::kF16, Tensor(values.data() + 400, {5, 1, 20, 2})},
      {"none", StoredType::kF32, Tensor(values.data(), {0, 4})},
      {"brain", StoredType::kBF16, Tensor(values.data() + 368, {64})}};
  // All in one file; then in files of 1,000 bytes or one tensor.
  for (const int64_t limit : {int64_t{1} << 30, int64_t{1000}}) {
    const std::string at = directory.File(std::to_string(limit));
    OT_ASSERT_OK(CreateDirectories(at));
    OT_ASSERT_OK(WriteSafetensorsFiles(at, tensors, limit));
    EXPECT_EQ(PathExists(JoinPath(at, "model.safetensors")), limit != 1000);
    EXPECT_EQ(PathExists(JoinPath(at, "model-00003-of-00003.safetensors")), limit == 1000);
    const auto files = Safetensors::Open(at);
    OT_ASSERT_OK(files);
    ASSERT_EQ(files->tensors().size(), tensors.size());
    for (const TensorToStore& tensor : tensors) {
      const SafetensorsEntry* stored = files->Find(tensor.name);
      ASSERT_NE(stored, nullptr) << tensor.name;
      EXPECT_EQ(FormatShape(stored->shape), tensor.values.shape().ToString());
      std::vector<float> read(static_cast<size_t>(stored->elements));
      files->ReadF32(*stored, 0, stored->elements, read.data());
      for (size_t i = 0; i < read.size(); ++i) {
        // Whole numbers up to 600, in bfloat16 up to 32: exact in every type.
        ASSERT_EQ(read[i], tensor.values.data<float>()[i]) << tensor.name << " " << i;
      }
    }
  }
}

TEST(SafetensorsWriter, AFailedWriteLeavesTheOldFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("w.safetensors");
  OT_ASSERT_OK(WriteFileAtomically(path, "old"));
  std::vector<float> values(4);
  for (const char* operation : {"open", "write", "fsync", "rename"}) {
    SetFileFaultHook([&](absl::string_view what, absl::string_view) {
      return what == operation ? absl::UnavailableError("broken") : absl::OkStatus();
    });
    const absl::Status status =
        WriteSafetensors(path, {{"a", StoredType::kF32, Tensor(values.data(), {4})}});
    SetFileFaultHook(nullptr);
    OT_EXPECT_ERROR(status, "broken");
    const auto old = ReadFile(path);
    OT_ASSERT_OK(old);
    EXPECT_EQ(*old, "old") << operation;
    EXPECT_FALSE(PathExists(path + ".tmp")) << operation;
  }
}

}  // namespace
}  // namespace overtok
