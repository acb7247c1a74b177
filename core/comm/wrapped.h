// What a communicator beside a device leaves to the one beneath it, which knows host memory only:
// flags, norms, ids, texts, barriers. Their bytes are counted as the one beneath counts them.
#pragma once

#include <memory>
#include <utility>

#include "core/comm/communicator.h"

namespace overtok {

class WrappedCommunicator : public Communicator {
 public:
  explicit WrappedCommunicator(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void AllReduceSum(std::span<double> values, Traffic kind) override;
  void AllReduceSum(std::span<int64_t> values, Traffic kind) override;
  void AllReduceMax(std::span<double> values, Traffic kind) override;
  void Barrier() override { host_->Barrier(); }
  void Abort(int code) override { host_->Abort(code); }

 protected:
  Communicator& host() const { return *host_; }
  // A broadcast of host memory.
  void BroadcastOnHost(const Tensor& elements, int root, Traffic kind);

 private:
  // Runs call(), which uses host(), and counts what it sent as this communicator's.
  template <class Call>
  void Counted(const Call& call);

  std::unique_ptr<Communicator> host_;
};

}  // namespace overtok
