#include "core/io/hdf5.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

template <class T>
Tensor View(std::vector<T>& values, Shape shape) {
  return Tensor(values.data(), shape);
}

class Hdf5Test : public ::testing::Test {
 protected:
  ~Hdf5Test() override { SetFileFaultHook(nullptr); }
  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_.File("f.h5");
};

TEST_F(Hdf5Test, EveryDtypeRoundTrips) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  std::vector<uint64_t> bits = {0x3f803fc0bf003e80u, 0x1122334455667788u, 0, 0x4000c0003f003e99u};
  const DType dtypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kU32,
                          DType::kU16, DType::kU8,  DType::kI64,  DType::kU64};
  for (const DType dtype : dtypes) {
    const Tensor tensor(bits.data(), dtype, {2, 32 / SizeOf(dtype) / 2});
    OT_ASSERT_OK(file->Write(std::string("/types/") + NameOf(dtype), tensor));
  }
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  for (const DType dtype : dtypes) {
    const std::string name = std::string("/types/") + NameOf(dtype);
    std::vector<uint64_t> read(4);
    OT_ASSERT_OK(back->Read(name, Tensor(read.data(), dtype, {32 / SizeOf(dtype)})));
    EXPECT_EQ(read, bits) << name;
    EXPECT_EQ(back->Info(name)->dtype, dtype);
    EXPECT_EQ(back->Info(name)->shape, (std::vector<int64_t>{2, 32 / SizeOf(dtype) / 2}));
  }
  EXPECT_EQ(back->List("/types")->size(), 9u);
}

// The bytes at the reported offset are the data, and large data starts on a page.
TEST_F(Hdf5Test, ContiguousDataCanBeMapped) {
  std::vector<uint32_t> ids(5000);
  std::iota(ids.begin(), ids.end(), 7u);
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->Write("/tokens", View(ids, {5000})));
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  const auto info = back->Info("/tokens");
  OT_ASSERT_OK(info);
  ASSERT_TRUE(info->contiguous);
  EXPECT_EQ(info->offset % 4096, 0);
  const std::string bytes = *ReadFile(path_);
  EXPECT_EQ(std::memcmp(bytes.data() + info->offset, ids.data(), 20000), 0);
}

TEST_F(Hdf5Test, RangesOfFlattenedDatasetsRoundTrip) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->CreateDataset("/a/x", DType::kI32, {3, 4, 5}));
  std::vector<int32_t> values(60);
  std::iota(values.begin(), values.end(), 0);
  for (int64_t begin = 0; begin < 60; begin += 7) {
    const int64_t count = std::min<int64_t>(7, 60 - begin);
    OT_ASSERT_OK(file->WriteRange("/a/x", begin, Tensor(values.data() + begin, {count})));
  }
  OT_EXPECT_ERROR(file->WriteRange("/a/x", 55, Tensor(values.data(), {6})), "60 elements");
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  std::vector<int32_t> all(60), part(33);
  OT_ASSERT_OK(back->Read("/a/x", View(all, {60})));
  EXPECT_EQ(all, values);
  OT_ASSERT_OK(back->ReadRange("/a/x", 13, View(part, {33})));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 13));
}

TEST_F(Hdf5Test, EmptyDatasets) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->Write("/none", Tensor(static_cast<uint32_t*>(nullptr), {0})));
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  EXPECT_EQ(back->Info("/none")->shape, std::vector<int64_t>{0});
  EXPECT_FALSE(back->Info("/none")->contiguous);
  OT_ASSERT_OK(back->Read("/none", Tensor(static_cast<uint32_t*>(nullptr), {0})));
}

TEST_F(Hdf5Test, AttributesRoundTripAndMissingOnesAreNamed) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  const std::string text(100'000, 'y');  // more than an object header holds
  OT_ASSERT_OK(file->CreateGroup("/g/h"));
  OT_ASSERT_OK(file->SetAttribute("/", "config", text));
  OT_ASSERT_OK(file->SetAttribute("/", "empty", ""));
  OT_ASSERT_OK(file->SetAttribute("/g/h", "count", int64_t{-5}));
  OT_ASSERT_OK(file->SetAttribute("/g/h", "count", int64_t{-6}));  // replaces
  OT_ASSERT_OK(file->SetAttribute("/g", "hash", uint64_t{0xffffffffffffffff}));
  OT_ASSERT_OK(file->SetAttribute("/g", "loss", 0.1));
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  EXPECT_EQ(*back->GetText("/", "config"), text);
  EXPECT_EQ(*back->GetText("/", "empty"), "");
  EXPECT_EQ(*back->GetInt("/g/h", "count"), -6);
  EXPECT_EQ(*back->GetUint("/g", "hash"), 0xffffffffffffffff);
  EXPECT_EQ(*back->GetDouble("/g", "loss"), 0.1);
  EXPECT_TRUE(back->HasAttribute("/g", "loss"));
  EXPECT_FALSE(back->HasAttribute("/g", "lost"));
  OT_EXPECT_ERROR(back->GetInt("/g", "lost"), "/g has no attribute lost");
  OT_EXPECT_ERROR(back->GetText("/g", "loss"), "is not text");
  OT_EXPECT_ERROR(back->GetInt("/absent", "x"), "no object /absent");
}

TEST_F(Hdf5Test, MismatchesNameBothSides) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  std::vector<float> values(6);
  OT_ASSERT_OK(file->Write("/w", View(values, {2, 3})));
  OT_EXPECT_ERROR(file->Write("/w", View(values, {2, 3})), "create the dataset /w");
  OT_ASSERT_OK(file->Close());
  auto back = Hdf5File::OpenRead(path_);
  OT_ASSERT_OK(back);
  std::vector<double> wrong(6);
  OT_EXPECT_ERROR(back->Read("/w", View(wrong, {6})), "is f32 [2, 3], expected f64 [6]");
  OT_EXPECT_ERROR(back->Read("/w", View(values, {5})), "is f32 [2, 3], expected f32 [5]");
  OT_EXPECT_ERROR(back->Read("/v/w", View(values, {6})), "has no dataset /v/w");
  EXPECT_FALSE(back->Exists("/v/w"));
  EXPECT_TRUE(back->Exists("/w"));
}

TEST_F(Hdf5Test, BadFilesAreNamed) {
  OT_EXPECT_ERROR(Hdf5File::OpenRead(directory_.File("absent.h5")), "there is no file");
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("text.h5"), "not HDF5 at all"));
  OT_EXPECT_ERROR(Hdf5File::OpenRead(directory_.File("text.h5")), "is not an HDF5 file");
  OT_EXPECT_ERROR(Hdf5File::Create(directory_.File("no/such/dir.h5")), "no/such/dir.h5");
  std::vector<float> values(10000);
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->Write("/w", View(values, {10000})));
  OT_ASSERT_OK(file->Close());
  const std::string bytes = *ReadFile(path_);
  OT_ASSERT_OK(WriteFileAtomically(path_, bytes.substr(0, bytes.size() / 2)));
  OT_EXPECT_ERROR(Hdf5File::OpenRead(path_), "damaged or cut off");
}

TEST_F(Hdf5Test, FaultsReachTheCaller) {
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  std::vector<float> values(4);
  SetFileFaultHook([](absl::string_view operation, absl::string_view path) {
    return operation == "write" ? absl::ResourceExhaustedError(absl::StrCat("no space for ", path))
                                : absl::OkStatus();
  });
  OT_EXPECT_ERROR(file->Write("/w", View(values, {4})), "no space for");
  OT_EXPECT_ERROR(file->Close(), "no space for");
}

// Built with the address sanitizer, whose leak check would report that the HDF5 library itself
// loses a kilobyte when it cannot write a file's metadata on closing.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kLeaksAreChecked = true;
#elif defined(__has_feature)
constexpr bool kLeaksAreChecked = __has_feature(address_sanitizer);
#else
constexpr bool kLeaksAreChecked = false;
#endif

// A full device: /dev/full answers every write with "no space".
TEST_F(Hdf5Test, FullDeviceIsAnError) {
  if (kLeaksAreChecked) GTEST_SKIP() << "the HDF5 library leaks here";
  auto file = Hdf5File::Create("/dev/full");
  if (!file.ok()) return;  // refusing the device at once is an error as well
  std::vector<float> values(1 << 16);
  const absl::Status written = file->Write("/w", View(values, {1 << 16}));
  const absl::Status closed = file->Close();
  EXPECT_FALSE(written.ok() && closed.ok());
}

// Case 75: handles of several threads at once.
TEST_F(Hdf5Test, ThreadsReadKnownValues) {
  std::vector<uint32_t> ids(4096);
  std::iota(ids.begin(), ids.end(), 0u);
  auto file = Hdf5File::Create(path_);
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->Write("/tokens", View(ids, {4096})));
  OT_ASSERT_OK(file->Close());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto mine = Hdf5File::OpenRead(path_);
      for (int64_t i = 0; i < 2500; ++i) {
        uint32_t value = 0;
        const int64_t at = (i * 997 + static_cast<int64_t>(t)) % 4096;
        if (!mine.ok() || !mine->ReadRange("/tokens", at, Tensor(&value, {1})).ok() ||
            value != at) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace overtok
