#include "data/loader.h"

#include <gtest/gtest.h>

#include "core/io/files.h"
#include "tests/data/fixtures.h"

namespace overtok {
namespace {

class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // 10 windows of 8 ids and a tail of 3, in shards of two documents.
    std::vector<std::vector<uint32_t>> documents;
    for (const int64_t n : {5, 11, 20, 1, 30, 16})
      documents.push_back(testing::CountingDocument(n));
    OT_ASSERT_OK(testing::WriteShards(directory_.path(), testing::ByteIdentity(), documents, 25));
    auto corpus = Corpus::Open({directory_.path()});
    OT_ASSERT_OK(corpus);
    corpus_ = *corpus;
    options_.batch_sequences = 3;
    options_.sequence_length = 8;
    options_.end_step = 12;
    auto order = Order::Create(OrderOptions(), CountWindows(*corpus_, 8), 0);
    OT_ASSERT_OK(order);
    order_ = std::make_unique<Order>(*order);
  }
  std::vector<std::vector<uint32_t>> Drain(int64_t first, int64_t end) {
    LoaderOptions options = options_;
    options.first_step = first;
    options.end_step = end;
    const auto loader = Loader::Start(corpus_, *order_, options);
    std::vector<std::vector<uint32_t>> batches;
    for (int64_t step = first; step < end; ++step) {
      const auto batch = loader->Next();
      EXPECT_TRUE(batch.ok());
      if (!batch.ok()) break;
      EXPECT_EQ((*batch)->first_sequence, step * 3);
      batches.push_back((*batch)->tokens);
    }
    return batches;
  }
  testing::TemporaryDirectory directory_;
  std::shared_ptr<const Corpus> corpus_;
  std::unique_ptr<Order> order_;
  LoaderOptions options_;
};

TEST_F(LoaderTest, TailIsDropped) {
  EXPECT_EQ(corpus_->tokens(), 83);
  EXPECT_EQ(CountWindows(*corpus_, 8), 10);
  EXPECT_EQ(CountWindows(*corpus_, 84), 0);
}

TEST_F(LoaderTest, BatchesHoldTheWindowsOfTheOrder) {
  std::vector<uint32_t> all(83);
  OT_ASSERT_OK(corpus_->Read(0, 83, all.data()));
  Batch batch;
  for (int64_t step = 0; step < 12; ++step) {
    OT_ASSERT_OK(FillBatch(*corpus_, *order_, options_, step, &batch));
    EXPECT_EQ(batch.pass, step * 3 / order_->length());
    EXPECT_EQ(batch.begins_pass, step > 0 && batch.pass != (step - 1) * 3 / order_->length());
    EXPECT_EQ(batch.weight_sum, 21.0);
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t window = order_->Window(step * 3 + row);
      EXPECT_EQ(batch.windows[static_cast<size_t>(row)], window);
      EXPECT_TRUE(std::equal(all.begin() + window * 8, all.begin() + window * 8 + 8,
                             batch.tokens.begin() + row * 8));
    }
  }
}

// Case 63: stopping anywhere, in any pass, and twice over changes nothing of what is read.
TEST_F(LoaderTest, ResumedRunsReadTheSame) {
  const auto straight = Drain(0, 12);
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{4, 9}, {1, 2}, {11, 12}}) {
    auto resumed = Drain(0, first);
    for (const auto& batch : Drain(first, second)) resumed.push_back(batch);
    for (const auto& batch : Drain(second, 12)) resumed.push_back(batch);
    EXPECT_EQ(resumed, straight);
  }
}

TEST_F(LoaderTest, BatchStaysValidUntilTheNextCall) {
  const auto straight = Drain(0, 12);
  const auto loader = Loader::Start(corpus_, *order_, options_);
  for (size_t step = 0; step < 12; ++step) {
    const auto batch = loader->Next();
    OT_ASSERT_OK(batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the thread runs ahead meanwhile
    EXPECT_EQ((*batch)->tokens, straight[step]);
  }
  OT_EXPECT_ERROR(loader->Next(), "the loader ends before step 12");
  EXPECT_GE(loader->seconds_waited(), 0.0);
}

TEST_F(LoaderTest, MayBeDestroyedAtAnyTime) {
  for (int taken = 0; taken < 4; ++taken) {
    const auto loader = Loader::Start(corpus_, *order_, options_);
    for (int i = 0; i < taken; ++i) OT_ASSERT_OK(loader->Next());
  }
}

// Case 5: a damaged id reaches the caller of Next() with step, row, shard and position; batches
// before it are delivered, and the error stays.
TEST_F(LoaderTest, ErrorsOfTheThreadAreDelivered) {
  const std::string path = directory_.File("shard_00002.h5");
  std::string bytes = *ReadFile(path);
  const size_t at = bytes.find(std::string("\x07\0\x08\0\x09\0", 6));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 3] = 2;  // 8 becomes 520
  OT_ASSERT_OK(WriteFileAtomically(path, bytes));
  auto corpus = Corpus::Open({directory_.path()});
  OT_ASSERT_OK(corpus);
  OrderOptions sequential;
  sequential.type = OrderOptions::Type::kSequential;
  const auto order = Order::Create(sequential, 10, 0);
  OT_ASSERT_OK(order);
  const auto loader = Loader::Start(*corpus, *order, options_);
  OT_ASSERT_OK(loader->Next());
  for (int i = 0; i < 2; ++i) {
    const auto batch = loader->Next();
    OT_EXPECT_ERROR(batch, "step 1, row 2 (window 5)");
    OT_EXPECT_ERROR(batch, "shard_00002.h5: id 520 at position 8 is not below");
  }
}

}  // namespace
}  // namespace overtok
