// What all communicators share: views are checked and their bytes counted, messages to oneself are
// copied at once, and the collectives that only exchange are built on Start and Finish. Nothing of
// a message is copied here but the ones to oneself.
#include "core/comm/communicator.h"

#include <algorithm>
#include <cstring>

namespace overtok {

const char* NameOf(Traffic kind) {
  switch (kind) {
    case Traffic::kGradients:
      return "gradients";
    case Traffic::kWeights:
      return "weights";
    case Traffic::kActivations:
      return "activations";
    case Traffic::kLoss:
      return "loss";
    case Traffic::kTables:
      return "tables";
    case Traffic::kControl:
      return "control";
    case Traffic::kFiles:
      return "files";
  }
  return "unknown";
}

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  OT_CHECK(ticket_ < 0) << "a collective was replaced before it was waited for";
  communicator_ = other.communicator_;
  ticket_ = other.ticket_;
  other.communicator_ = nullptr;
  other.ticket_ = -1;
  return *this;
}

Request::~Request() { OT_CHECK(ticket_ < 0) << "a collective was started and not waited for"; }

void Request::Wait() {
  if (ticket_ < 0) return;
  const int64_t ticket = ticket_;
  ticket_ = -1;
  communicator_->Finish(ticket);
}

Request Communicator::StartExchange(std::span<const Message> sends,
                                    std::span<const Message> receives, Traffic kind) {
  sends_.clear();
  receives_.clear();
  const auto usable = [this](const Message& message) {
    OT_CHECK(message.peer >= 0 && message.peer < size())
        << "rank " << message.peer << " of " << size();
    if (message.elements.elements() == 0) return false;
    OT_CHECK(message.elements.raw() != nullptr);
    return true;
  };
  // The k-th message to oneself meets the k-th from oneself.
  size_t own = 0;
  const auto next_own = [&]() -> const Message* {
    for (; own < receives.size(); ++own) {
      if (receives[own].peer == rank() && usable(receives[own])) return &receives[own++];
    }
    return nullptr;
  };
  for (const Message& send : sends) {
    if (!usable(send)) continue;
    if (send.peer != rank()) {
      sends_.push_back(send);
      CountSent(send.elements.bytes(), kind);
      continue;
    }
    const Message* receive = next_own();
    OT_CHECK(receive != nullptr) << "a message to oneself is not received";
    OT_CHECK(send.elements.dtype() == receive->elements.dtype());
    OT_CHECK_EQ(send.elements.elements(), receive->elements.elements());
    if (send.elements.raw() != receive->elements.raw()) CopyOwn(send.elements, receive->elements);
  }
  OT_CHECK(next_own() == nullptr) << "a message from oneself was not sent";
  for (const Message& receive : receives) {
    if (receive.peer != rank() && usable(receive)) receives_.push_back(receive);
  }
  if (sends_.empty() && receives_.empty()) return Request();
  return Request(this, Start(sends_, receives_));
}

Request Communicator::StartAllGather(const Tensor& mine, const Tensor& all, Traffic kind) {
  OT_CHECK(mine.dtype() == all.dtype());
  OT_CHECK_EQ(mine.elements() * size(), all.elements());
  if (mine.elements() == 0) return Request();
  CountSent(mine.bytes() * (size() - 1), kind);
  return StartGather(mine, all);
}

Request Communicator::StartGather(const Tensor& mine, const Tensor& all) {
  const auto place = [&](int of) { return static_cast<char*>(all.raw()) + of * mine.bytes(); };
  if (place(rank()) != mine.raw()) {
    CopyOwn(mine, Tensor(place(rank()), mine.dtype(), {mine.elements()}));
  }
  sends_.clear();
  receives_.clear();
  // Every rank begins with its right neighbour, so that not all send to rank 0 first.
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() - i + size()) % size();
    sends_.push_back({to, mine});
    receives_.push_back({from, Tensor(place(from), mine.dtype(), {mine.elements()})});
  }
  if (sends_.empty()) return Request();
  return Request(this, Start(sends_, receives_));
}

void Communicator::CopyOwn(const Tensor& from, const Tensor& to) {
  std::memmove(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

void Communicator::GatherNow(const Tensor& mine, const Tensor& all) {
  StartGather(mine, all).Wait();
}

template <class T, class Fold>
void Communicator::GatherAndFold(std::span<T> values, std::vector<T>& all, Traffic kind,
                                 const Fold& fold) {
  const size_t count = values.size();
  if (size() == 1 || count == 0) return;
  all.resize(std::max(all.size(), count * static_cast<size_t>(size())));
  const Tensor mine(values.data(), {static_cast<int64_t>(count)});
  CountSent(mine.bytes() * (size() - 1), kind);
  GatherNow(mine, Tensor(all.data(), {size(), static_cast<int64_t>(count)}));
  for (size_t i = 0; i < count; ++i) {
    T value = all[i];
    for (size_t r = 1; r < static_cast<size_t>(size()); ++r) {
      value = fold(value, all[r * count + i]);
    }
    values[i] = value;
  }
}

void Communicator::AllReduceSum(std::span<double> values, Traffic kind) {
  GatherAndFold(values, doubles_, kind, [](double a, double b) { return a + b; });
}

void Communicator::AllReduceSum(std::span<int64_t> values, Traffic kind) {
  GatherAndFold(values, integers_, kind, [](int64_t a, int64_t b) { return a + b; });
}

void Communicator::AllReduceMax(std::span<double> values, Traffic kind) {
  // NaN of any rank wins, so that a bad value is not lost on the way.
  GatherAndFold(values, doubles_, kind, [](double a, double b) { return b > a || b != b ? b : a; });
}

bool Communicator::Any(bool flag) {
  double value = flag ? 1 : 0;
  AllReduceMax(std::span<double>(&value, 1), Traffic::kControl);
  return value != 0;
}

void Communicator::Broadcast(const Tensor& elements, int root, Traffic kind) {
  OT_CHECK(root >= 0 && root < size());
  if (rank() != root) {
    const Message receive{root, elements};
    Exchange({}, {&receive, 1}, kind);
    return;
  }
  std::vector<Message> sends;
  for (int i = 1; i < size(); ++i) sends.push_back({(root + i) % size(), elements});
  Exchange(sends, {}, kind);
}

std::string Communicator::BroadcastText(absl::string_view text, int root) {
  std::string result(rank() == root ? text : absl::string_view());
  if (size() == 1) return result;
  auto length = static_cast<int64_t>(result.size());
  Broadcast(Tensor(&length, {1}), root, Traffic::kControl);
  result.resize(static_cast<size_t>(length));
  if (length > 0) {
    Broadcast(Tensor(reinterpret_cast<uint8_t*>(result.data()), {length}), root, Traffic::kControl);
  }
  return result;
}

}  // namespace overtok
