// Tokens per second of the loader from pages in the cache: windows of 4,096 ids, batches of 32.
#include <benchmark/benchmark.h>

#include "data/loader.h"
#include "tests/data/fixtures.h"

namespace overtok {
namespace {

void BM_Loader(benchmark::State& state) {
  ShardIdentity identity = testing::ByteIdentity();
  identity.vocab_size = state.range(0);
  const testing::TemporaryDirectory directory;
  const std::vector<std::vector<uint32_t>> documents(16'000, testing::CountingDocument(1003));
  const absl::Status written =
      testing::WriteShards(directory.path(), identity, documents, int64_t{1} << 30);
  if (!written.ok()) return state.SkipWithError(written.ToString().c_str());
  const auto corpus = Corpus::Open({directory.path()});
  LoaderOptions options;
  options.batch_sequences = 32;
  options.sequence_length = 4096;
  options.end_step = int64_t{1} << 40;
  const auto order = Order::Create(OrderOptions(), CountWindows(**corpus, 4096), 0);
  const auto loader = Loader::Start(*corpus, *order, options);
  for (int i = 0; i < 130; ++i) benchmark::DoNotOptimize(*loader->Next());  // one pass: warm
  while (state.KeepRunning()) benchmark::DoNotOptimize(*loader->Next());
  state.SetItemsProcessed(state.iterations() * 32 * 4096);  // items are tokens
}
BENCHMARK(BM_Loader)->Arg(50'000)->Arg(128'256)->ArgName("vocabulary")->UseRealTime();

}  // namespace
}  // namespace overtok

BENCHMARK_MAIN();
