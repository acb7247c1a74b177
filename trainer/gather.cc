#include "trainer/gather.h"

#include <algorithm>
#include <cstdint>

namespace overtok {
namespace {

// What a region is apart from its logical shape, as integers that travel.
constexpr int64_t kWords = 6;

void Append(const Region& region, std::vector<int64_t>* words) {
  const Sharding& s = region.sharding;
  for (const int64_t word :
       {static_cast<int64_t>(s.split), s.parts, s.part, s.unit, region.begin, region.count}) {
    words->push_back(word);
  }
}

Region ReadRegion(const Shape& logical, const int64_t* words) {
  Region region;
  region.logical = logical;
  region.sharding = {static_cast<Split>(words[0]), words[1], words[2], words[3]};
  region.begin = words[4];
  region.count = words[5];
  return region;
}

void Place(const Region& region, const float* values, const Tensor& logical) {
  auto* out = logical.data<float>();
  ForEachRun(region, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(values + from, count, out + to);
  });
}

}  // namespace

void GatherTensor(Communicator& world, const std::vector<ShardedTensor>& mine,
                  const Tensor& logical) {
  const bool root = world.rank() == 0;
  std::vector<int64_t> words;
  for (const ShardedTensor& entry : mine) Append(entry.region, &words);
  auto size = static_cast<int64_t>(words.size());
  std::vector<int64_t> sizes(static_cast<size_t>(world.size()));
  world.AllGather(Tensor(&size, {1}), Tensor(sizes.data(), {world.size()}), Traffic::kFiles);

  std::vector<Communicator::Message> sends, receives;
  std::vector<std::vector<int64_t>> regions(sizes.size());
  if (root) {
    for (size_t r = 0; r < sizes.size(); ++r) {
      regions[r].resize(static_cast<size_t>(sizes[r]));
      receives.push_back({static_cast<int>(r), Tensor(regions[r].data(), {sizes[r]})});
    }
  }
  sends.push_back({0, Tensor(words.data(), {size})});
  world.Exchange(sends, receives, Traffic::kFiles);

  sends.clear();
  receives.clear();
  std::vector<std::vector<float>> values;
  for (const ShardedTensor& entry : mine) sends.push_back({0, entry.tensor});
  for (size_t r = 0; root && r < regions.size(); ++r) {
    for (size_t i = 0; i < regions[r].size(); i += kWords) {
      const int64_t count = regions[r][i + kWords - 1];
      values.emplace_back(static_cast<size_t>(count));
      receives.push_back({static_cast<int>(r), Tensor(values.back().data(), {count})});
    }
  }
  world.Exchange(sends, receives, Traffic::kFiles);
  if (!root) return;
  size_t next = 0;
  for (const std::vector<int64_t>& of_rank : regions) {
    for (size_t i = 0; i < of_rank.size(); i += kWords) {
      const Region region = ReadRegion(logical.shape(), &of_rank[i]);
      Place(region, values[next++].data(), logical);
    }
  }
}

}  // namespace overtok
