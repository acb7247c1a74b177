#include "tests/support/thread_ranks.h"

#include <omp.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace overtok::testing {
namespace {

// One lock for everything: a handful of ranks and small messages.
struct Job {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> gone;  // by rank of the world
};

// What was sent: a copy of the elements as they were.
struct Letter {
  DType dtype = DType::kF32;
  int64_t count = 0;
  std::vector<char> bytes;
};

struct Group {
  Job* job = nullptr;
  std::vector<int> world_ranks;
  // Letters from -> to, in the order of sending.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<const Letter>>> letters;
  // Barrier and Divide are counted: the k-th call of every rank belongs together.
  int arrived = 0;
  int64_t round = 0;
  std::vector<int> colors;
  std::map<int, std::shared_ptr<Group>> parts;  // by color, of the latest Divide
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~ThreadRank() override {
    OT_CHECK(pending_.empty()) << "a group ends with collectives in flight";
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->world_ranks.size()); }
  void Barrier() override { Meet(0); }
  std::unique_ptr<Communicator> Divide(int color) override;
  void Abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }

 protected:
  int64_t Start(std::span<const Message> sends, std::span<const Message> receives) override;
  void Finish(int64_t ticket) override;

 private:
  struct Sent {
    Message message;
    std::shared_ptr<const Letter> letter;
  };
  struct Received {
    Message message;
    int64_t number = 0;  // among all messages from that rank
  };
  struct Pending {
    std::vector<Sent> sends;
    std::vector<Received> receives;
  };

  // Waits until ready() is true, while none of `needed` (ranks of the group) has left.
  template <class Ready>
  void WaitUntil(std::unique_lock<std::mutex>& lock, const std::vector<int>& needed,
                 const Ready& ready);
  // All ranks call it; returns with the part of this rank's color when all have.
  std::shared_ptr<Group> Meet(int color);

  std::shared_ptr<Group> group_;
  int rank_;
  int64_t next_ticket_ = 0;
  std::map<int64_t, Pending> pending_;
  std::map<int, int64_t> expected_;  // messages asked for, by peer
  std::map<int, int64_t> taken_;     // letters taken out, by peer
  std::map<int, std::map<int64_t, std::shared_ptr<const Letter>>> early_;  // taken, not yet read
};

template <class Ready>
void ThreadRank::WaitUntil(std::unique_lock<std::mutex>& lock, const std::vector<int>& needed,
                           const Ready& ready) {
  // The system clock, whose wait every thread sanitizer knows.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  while (!ready()) {
    for (const int r : needed) {
      OT_CHECK(!group_->job->gone[static_cast<size_t>(group_->world_ranks[static_cast<size_t>(r)])])
          << "rank " << rank_ << " waits for rank " << r << ", which has left";
    }
    const bool timed_out =
        group_->job->changed.wait_until(lock, deadline) == std::cv_status::timeout;
    OT_CHECK(!timed_out || ready()) << "rank " << rank_ << " has waited for 60 s";
  }
}

int64_t ThreadRank::Start(std::span<const Message> sends, std::span<const Message> receives) {
  Pending pending;
  for (const Message& receive : receives) {
    std::memset(receive.elements.raw(), 0xff, static_cast<size_t>(receive.elements.bytes()));
    pending.receives.push_back({receive, expected_[receive.peer]++});
  }
  for (const Message& send : sends) {
    auto letter = std::make_shared<Letter>();
    const auto* bytes = static_cast<const char*>(send.elements.raw());
    letter->dtype = send.elements.dtype();
    letter->count = send.elements.elements();
    letter->bytes.assign(bytes, bytes + send.elements.bytes());
    pending.sends.push_back({send, letter});
  }
  {
    const std::lock_guard<std::mutex> lock(group_->job->mutex);
    for (const Sent& sent : pending.sends) {
      group_->letters[{rank_, sent.message.peer}].push_back(sent.letter);
    }
  }
  group_->job->changed.notify_all();
  pending_[next_ticket_] = std::move(pending);
  return next_ticket_++;
}

void ThreadRank::Finish(int64_t ticket) {
  const auto found = pending_.find(ticket);
  OT_CHECK(found != pending_.end()) << "no collective of ticket " << ticket;
  for (const Received& received : found->second.receives) {
    const int peer = received.message.peer;
    // Requests may be waited for in any order: letters before this one are kept.
    auto& early = early_[peer];
    if (!early.contains(received.number)) {
      std::unique_lock<std::mutex> lock(group_->job->mutex);
      auto& letters = group_->letters[{peer, rank_}];
      int64_t& taken = taken_[peer];
      while (taken <= received.number) {
        WaitUntil(lock, {peer}, [&] { return !letters.empty(); });
        early[taken++] = letters.front();
        letters.pop_front();
      }
    }
    const std::shared_ptr<const Letter> letter = early.at(received.number);
    early.erase(received.number);
    const Tensor& elements = received.message.elements;
    OT_CHECK(letter->dtype == elements.dtype() && letter->count == elements.elements())
        << "message " << received.number << " from rank " << peer << " to rank " << rank_ << " has "
        << letter->count << " " << NameOf(letter->dtype) << ", expected " << elements.elements()
        << " " << NameOf(elements.dtype());
    std::memcpy(elements.raw(), letter->bytes.data(), letter->bytes.size());
  }
  for (const Sent& sent : found->second.sends) {
    OT_CHECK(std::memcmp(sent.message.elements.raw(), sent.letter->bytes.data(),
                         sent.letter->bytes.size()) == 0)
        << "what rank " << rank_ << " sent to rank " << sent.message.peer
        << " changed before it was waited for";
  }
  pending_.erase(found);
}

std::shared_ptr<Group> ThreadRank::Meet(int color) {
  Group& group = *group_;
  std::unique_lock<std::mutex> lock(group.job->mutex);
  const int64_t round = group.round;
  group.colors.resize(group.world_ranks.size());
  group.colors[static_cast<size_t>(rank_)] = color;
  if (++group.arrived == size()) {
    group.arrived = 0;
    ++group.round;
    group.parts.clear();
    for (size_t r = 0; r < group.world_ranks.size(); ++r) {
      std::shared_ptr<Group>& part = group.parts[group.colors[r]];
      if (part == nullptr) part = std::make_shared<Group>();
      part->job = group.job;
      part->world_ranks.push_back(group.world_ranks[r]);
    }
    group.job->changed.notify_all();
  } else {
    std::vector<int> others;
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) others.push_back(r);
    }
    WaitUntil(lock, others, [&] { return group.round != round; });
  }
  return group.parts.at(color);
}

std::unique_ptr<Communicator> ThreadRank::Divide(int color) {
  std::shared_ptr<Group> part = Meet(color);
  const int mine = group_->world_ranks[static_cast<size_t>(rank_)];
  int rank = 0;
  while (part->world_ranks[static_cast<size_t>(rank)] != mine) ++rank;
  // Nobody may start the next Divide before all have read this one's parts.
  Meet(0);
  return std::make_unique<ThreadRank>(std::move(part), rank);
}

}  // namespace

void RunOnRanks(int n, const std::function<void(Communicator& world)>& body) {
  Job job;
  job.gone.resize(static_cast<size_t>(n), false);
  auto group = std::make_shared<Group>();
  group->job = &job;
  for (int r = 0; r < n; ++r) group->world_ranks.push_back(r);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&job, &body, group, r] {
      omp_set_num_threads(1);
      {
        ThreadRank world(group, r);
        body(world);
      }
      const std::lock_guard<std::mutex> lock(job.mutex);
      job.gone[static_cast<size_t>(r)] = true;
      job.changed.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [pair, letters] : group->letters) {
    OT_CHECK(letters.empty()) << letters.size() << " messages from rank " << pair.first
                              << " to rank " << pair.second << " were never received";
  }
}

}  // namespace overtok::testing
