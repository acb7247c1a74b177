// A rank that only has a place and a size: components of any layout can be constructed in a dry
// Memory, and what would communicate aborts.
#include <cstdlib>

#include "core/comm/communicator.h"

namespace overtok {
namespace {

class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(int rank, int size) : rank_(rank), size_(size) {
    OT_CHECK(rank >= 0 && rank < size) << "rank " << rank << " of " << size;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void AllReduceSum(std::span<double> /*values*/, Traffic /*kind*/) override { Refuse(); }
  void AllReduceSum(std::span<int64_t> /*values*/, Traffic /*kind*/) override { Refuse(); }
  void AllReduceMax(std::span<double> /*values*/, Traffic /*kind*/) override { Refuse(); }
  void Broadcast(const Tensor& /*elements*/, int /*root*/, Traffic /*kind*/) override { Refuse(); }
  void Barrier() override { Refuse(); }
  std::unique_ptr<Communicator> Divide(int /*color*/) override { Refuse(); }
  void Abort(int /*code*/) override { Refuse(); }

 protected:
  int64_t Start(std::span<const Message> /*sends*/,
                std::span<const Message> /*receives*/) override {
    Refuse();
  }
  void Finish(int64_t /*ticket*/) override { Refuse(); }

 private:
  [[noreturn]] void Refuse() const {
    OT_CHECK(size_ < 0) << "planned rank " << rank_ << " of " << size_ << " cannot communicate";
    std::abort();
  }

  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> PlannedRank(int rank, int size) {
  if (size == 1) return OneRank();
  return std::make_unique<PlannedCommunicator>(rank, size);
}

}  // namespace overtok
