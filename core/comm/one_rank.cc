// The communicator of a run of one process: every collective is the identity.
#include <cstdio>
#include <cstdlib>

#include "core/comm/communicator.h"

namespace overtok {
namespace {

class OneRankCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Barrier() override {}
  std::unique_ptr<Communicator> Divide(int /*color*/) override { return OneRank(); }
  void Abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }

 protected:
  int64_t Start(std::span<const Message> sends, std::span<const Message> receives) override {
    OT_CHECK(sends.empty() && receives.empty()) << "one rank has no peers";
    return 0;
  }
  void Finish(int64_t /*ticket*/) override {}
};

}  // namespace

std::unique_ptr<Communicator> OneRank() { return std::make_unique<OneRankCommunicator>(); }

}  // namespace overtok
