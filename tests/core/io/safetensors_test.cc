#include "core/io/safetensors.h"

#include <vector>

#include "core/io/files.h"
#include "tests/core/io/hand_made_safetensors.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Entry;
using ::overtok::testing::Object;
using ::overtok::testing::SafetensorsBytes;
using ::overtok::testing::TemporaryDirectory;

// Little-endian f32 of the numbers from `first` on.
std::string Floats(int first, int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(first + i));
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

absl::Status Write(const std::string& path, const std::string& bytes) {
  return WriteFileAtomically(path, bytes);
}

TEST(Safetensors, ReadsStretchesAndCountsThem) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("model.safetensors");
  // A header of odd length, so that nothing is aligned; half of the bytes of data are of `b`.
  std::string header =
      Object(Entry("a", "F32", "[2,3]", 0, 24) + "," + Entry("b", "F32", "[6]", 24, 48));
  if (header.size() % 2 == 0) header += " ";
  OT_ASSERT_OK(Write(path, SafetensorsBytes(header, Floats(0, 12))));
  for (const std::string& name : {path, directory.path()}) {
    const auto files = Safetensors::Open(name);
    OT_ASSERT_OK(files);
    EXPECT_EQ(files->path(), path);
    EXPECT_EQ(files->directory(), directory.path());
    const SafetensorsEntry* b = files->Find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(files->Find("c"), nullptr);
    EXPECT_EQ(files->Find("aa"), nullptr);
    EXPECT_EQ(files->total_bytes(), 48);
    float values[3] = {};
    files->WillNeed(*b, 1, 3);
    files->ReadF32(*b, 1, 3, values);
    files->Done(*b, 1, 3);
    EXPECT_EQ(values[0], 7);
    EXPECT_EQ(values[2], 9);
    EXPECT_EQ(files->bytes_read(), 12);
    files->ReadF32(*b, 6, 0, values);
    EXPECT_EQ(files->bytes_read(), 12);
    files->ReadF32(*b, 5, 1, values);
    EXPECT_EQ(values[0], 11) << "pages that were given back come in again";
  }
}

TEST(Safetensors, ReadsSeveralFilesByTheIndex) {
  const TemporaryDirectory directory;
  OT_ASSERT_OK(Write(directory.File("m-1.safetensors"),
                     SafetensorsBytes(Object(Entry("z", "F32", "[2]", 0, 8)), Floats(5, 2))));
  OT_ASSERT_OK(Write(directory.File("m-2.safetensors"),
                     SafetensorsBytes(Object(Entry("a", "F32", "[1]", 0, 4)), Floats(9, 1))));
  const std::string index = directory.File("model.safetensors.index.json");
  OT_ASSERT_OK(Write(index,
                     R"({"metadata": {"total_size": 12},
                         "weight_map": {"z": "m-1.safetensors", "a": "m-2.safetensors"}})"));
  const auto files = Safetensors::Open(directory.path());
  OT_ASSERT_OK(files);
  ASSERT_EQ(files->tensors().size(), 2u);
  EXPECT_EQ(files->tensors()[0].name, "a");
  float value = 0;
  files->ReadF32(*files->Find("z"), 1, 1, &value);
  EXPECT_EQ(value, 6);
  files->ReadF32(*files->Find("a"), 0, 1, &value);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(files->PathOf(*files->Find("a")), directory.File("m-2.safetensors"));
}

TEST(Safetensors, ListsAllThatAnIndexGetsWrong) {
  const TemporaryDirectory directory;
  OT_ASSERT_OK(Write(directory.File("m-1.safetensors"),
                     SafetensorsBytes(Object(Entry("a", "F32", "[1]", 0, 4) + "," +
                                             Entry("b", "F32", "[1]", 4, 8)),
                                      Floats(0, 2))));
  OT_ASSERT_OK(Write(directory.File("m-2.safetensors"),
                     SafetensorsBytes(Object(Entry("b", "F32", "[1]", 0, 4)), Floats(0, 1))));
  const std::string index = directory.File("x.index.json");
  OT_ASSERT_OK(Write(index, R"({"weight_map": {"b": "m-2.safetensors", "c": "m-1.safetensors"}})"));
  const auto files = Safetensors::Open(index);
  OT_EXPECT_ERROR(files, "a: in " + directory.File("m-1.safetensors") + ", not in the index");
  OT_EXPECT_ERROR(
      files, "b: in " + directory.File("m-1.safetensors") + ", the index says m-2.safetensors");
  OT_EXPECT_ERROR(files, "c: not in m-1.safetensors, where the index places it");
}

TEST(Safetensors, RefusesIndexes) {
  const TemporaryDirectory directory;
  const std::string index = directory.File("x.index.json");
  const auto open = [&](const std::string& text) {
    const absl::Status written = Write(index, text);
    return written.ok() ? Safetensors::Open(index).status() : written;
  };
  OT_EXPECT_ERROR(open("{"), "x.index.json: not valid JSON");
  OT_EXPECT_ERROR(open("[]"), "has no weight_map");
  OT_EXPECT_ERROR(open(R"({"weight_map": {"a": 3}})"), "a: expected the name of a file");
  OT_EXPECT_ERROR(open(R"({"weight_map": {"a": "../w"}})"), "../w names a directory");
  OT_EXPECT_ERROR(open(R"({"weight_map": {"a": "w", "a": "v"}})"), "two entries named a");
  OT_EXPECT_ERROR(open(R"({"weight_map": {"a": "absent.safetensors"}})"), "absent.safetensors");
}

TEST(Safetensors, SaysWhatADirectoryLacks) {
  const TemporaryDirectory directory;
  OT_EXPECT_ERROR(Safetensors::Open(directory.path()), "holds neither model.safetensors nor");
  OT_EXPECT_ERROR(Safetensors::Open(directory.File("w.safetensors")),
                  "w.safetensors: No such file");
  OT_ASSERT_OK(Write(directory.File("model.safetensors"), SafetensorsBytes("{}", "")));
  OT_ASSERT_OK(Write(directory.File("model.safetensors.index.json"), "{}"));
  OT_EXPECT_ERROR(Safetensors::Open(directory.path()), "holds both");
  OT_ASSERT_OK(Write(directory.File("empty.safetensors"), ""));
  OT_EXPECT_ERROR(Safetensors::Open(directory.File("empty.safetensors")), "has 0 bytes");
}

}  // namespace
}  // namespace overtok
