#include "core/comm/wrapped.h"

namespace overtok {

template <class Call>
void WrappedCommunicator::Counted(const Call& call) {
  const auto before = host_->bytes_sent();
  call();
  for (size_t kind = 0; kind < before.size(); ++kind) {
    CountSent(host_->bytes_sent()[kind] - before[kind], static_cast<Traffic>(kind));
  }
}

void WrappedCommunicator::AllReduceSum(std::span<double> values, Traffic kind) {
  Counted([&] { host_->AllReduceSum(values, kind); });
}

void WrappedCommunicator::AllReduceSum(std::span<int64_t> values, Traffic kind) {
  Counted([&] { host_->AllReduceSum(values, kind); });
}

void WrappedCommunicator::AllReduceMax(std::span<double> values, Traffic kind) {
  Counted([&] { host_->AllReduceMax(values, kind); });
}

void WrappedCommunicator::BroadcastOnHost(const Tensor& elements, int root, Traffic kind) {
  Counted([&] { host_->Broadcast(elements, root, kind); });
}

}  // namespace overtok
