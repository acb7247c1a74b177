// Libraries that are opened at run time: found in a Python's nvidia folders and where
// OVERTOK_LIBRARY_PATH says, kept, and missed with a message that says where was looked.
#include "core/cuda/libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// A shared library with one function, overtok_test_answer (answer.cc).
const char kAnswer[] = OVERTOK_ANSWER_LIBRARY;

// Sets a variable of the environment for a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_.empty()) {
      unsetenv(name_);
    } else {
      setenv(name_, before_.c_str(), 1);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
};

// Puts the library where `folder` says, under a name that is nowhere else.
std::string Place(const std::string& folder, const std::string& name) {
  std::filesystem::create_directories(folder);
  const std::string file = folder + "/" + name;
  std::filesystem::copy_file(kAnswer, file);
  return file;
}

void ExpectAnswer(void* library) {
  int (*answer)() = nullptr;
  ASSERT_TRUE(cuda::Resolve(library, "overtok_test_answer", &answer).ok());
  EXPECT_EQ(answer(), 42);
}

TEST(Libraries, FoundInThePackagesOfAPython) {
  const testing::TemporaryDirectory directory;
  const std::string folder =
      directory.path() + "/venv/lib/python3.11/site-packages/nvidia/answers/lib";
  const std::string file = Place(folder, "libovertok_packaged.so.2");
  const Variable environment("VIRTUAL_ENV", directory.path() + "/venv");
  EXPECT_THAT(cuda::LibraryFolders(), Contains(folder));
  const auto library =
      cuda::OpenLibrary({.what = "answers",
                         .files = {"libovertok_packaged.so.3", "libovertok_packaged.so.2"},
                         .package = "answers"});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(cuda::LibraryFile(*library), file);
  ExpectAnswer(*library);
}

TEST(Libraries, TheNamedFolderComesFirstAndTheHandleIsKept) {
  const testing::TemporaryDirectory directory;
  Place(directory.path() + "/venv/lib/python3.11/site-packages/nvidia/answers/lib",
        "libovertok_twice.so");
  const std::string file = Place(directory.path() + "/named", "libovertok_twice.so");
  const cuda::LibraryRequest request = {
      .what = "answers", .files = {"libovertok_twice.so"}, .package = "answers"};
  void* library = nullptr;
  {
    const Variable packages("VIRTUAL_ENV", directory.path() + "/venv");
    const Variable named("OVERTOK_LIBRARY_PATH", "/nowhere:" + directory.path() + "/named");
    const auto opened = cuda::OpenLibrary(request);
    ASSERT_TRUE(opened.ok()) << opened.status();
    library = *opened;
    EXPECT_EQ(cuda::LibraryFile(library), file);
  }
  const auto again = cuda::OpenLibrary(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, library);
}

TEST(Libraries, AMissingOneSaysWhereWasLooked) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.path() + "/venv/lib/python3.9/site-packages/nvidia/x/lib";
  std::filesystem::create_directories(folder);
  const Variable packages("VIRTUAL_ENV", directory.path() + "/venv");
  const Variable named("OVERTOK_LIBRARY_PATH", "/a/named/folder");
  const auto library = cuda::OpenLibrary({.what = "the answer library",
                                          .files = {"libovertok_missing.so.7"},
                                          .package = "libanswers7"});
  ASSERT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  const std::string message(library.status().message());
  for (const std::string& part :
       {std::string("the answer library was not found"), std::string("libovertok_missing.so.7"),
        std::string("OVERTOK_LIBRARY_PATH (/a/named/folder)"), folder,
        std::string("Install libanswers7")})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(Libraries, OneThatCannotBeOpenedIsNamedWithItsReason) {
  const testing::TemporaryDirectory directory;
  const std::string file = directory.path() + "/libovertok_broken.so";
  std::filesystem::create_directories(directory.path());
  std::filesystem::copy_file("/proc/self/cmdline", file);
  const Variable named("OVERTOK_LIBRARY_PATH", directory.path());
  const auto library = cuda::OpenLibrary(
      {.what = "answers", .files = {"libovertok_broken.so"}, .package = "answers"});
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(std::string(library.status().message()), HasSubstr(file + ": "));
}

TEST(Libraries, AMissingSymbolNamesItsFile) {
  const testing::TemporaryDirectory directory;
  const std::string file = Place(directory.path(), "libovertok_symbols.so");
  const Variable named("OVERTOK_LIBRARY_PATH", directory.path());
  const auto library = cuda::OpenLibrary(
      {.what = "answers", .files = {"libovertok_symbols.so"}, .package = "answers"});
  ASSERT_TRUE(library.ok()) << library.status();
  int (*function)() = nullptr;
  const absl::Status status = cuda::Resolve(*library, "overtok_no_such_function", &function);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("overtok_no_such_function"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  EXPECT_EQ(function, nullptr);
}

}  // namespace
}  // namespace overtok
