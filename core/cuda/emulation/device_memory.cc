#include "core/cuda/emulation/device_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "core/check.h"
#include "core/cuda/emulation/known_memory.h"

namespace overtok::emulation {
namespace {

constexpr int64_t kAlignment = 256, kGuard = 256, kPage = 4096;
constexpr unsigned char kGuardByte = 0xA5;
// Address space of the device; only touched pages exist.
constexpr int64_t kSpace = int64_t{1} << 38;

// Blocks lie one behind the other in one range of addresses, so that one call opens or closes all
// of them. What is freed is given back to the system; addresses are used once.
class Region {
 public:
  static Region& Instance() {
    static Region region;
    return region;
  }

  void* Allocate(int64_t bytes, absl::string_view name) {
    if (bytes == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t begin = (used_ + kGuard + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t end = begin + bytes + kGuard;
    OT_CHECK_LE(end, kSpace) << "the emulated device is out of addresses for " << std::string(name);
    Protect(PROT_READ | PROT_WRITE, end);
    std::memset(base_ + used_, kGuardByte, static_cast<size_t>(begin - used_));
    std::memset(base_ + begin + bytes, kGuardByte, kGuard);
    used_ = end;
    blocks_[begin] = {bytes, std::string(name)};
    AddMemory(base_ + begin, bytes, name);
    if (open_ == 0) Protect(PROT_NONE, used_);
    in_use_ += bytes;
    return base_ + begin;
  }

  void Free(void* data, int64_t bytes) {
    if (data == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t begin = static_cast<char*>(data) - base_;
    const auto block = blocks_.find(begin);
    OT_CHECK(block != blocks_.end() && block->second.bytes == bytes) << "no block of the device";
    Protect(PROT_READ | PROT_WRITE, used_);
    const auto* before = reinterpret_cast<const unsigned char*>(base_ + begin - kGuard);
    const auto* after = reinterpret_cast<const unsigned char*>(base_ + begin + bytes);
    for (int64_t i = 0; i < kGuard; ++i) {
      OT_CHECK(before[i] == kGuardByte && after[i] == kGuardByte)
          << "a kernel wrote outside " << block->second.name;
    }
    const int64_t first = (begin + kPage - 1) / kPage * kPage,
                  last = (begin + bytes) / kPage * kPage;
    if (last > first) madvise(base_ + first, static_cast<size_t>(last - first), MADV_DONTNEED);
    if (open_ == 0) Protect(PROT_NONE, used_);
    in_use_ -= bytes;
    RemoveMemory(data);
    blocks_.erase(block);
    // Nothing is left: opening and closing need not go over what was.
    if (blocks_.empty() && open_ == 0) low_ = used_ = (used_ + kPage - 1) / kPage * kPage;
  }

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE, used_);
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE, used_);
  }
  int64_t in_use() const { return in_use_; }
  bool Contains(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(base_);
    return at >= base && at - base < static_cast<uintptr_t>(kSpace);
  }

 private:
  Region() {
    void* base = mmap(nullptr, static_cast<size_t>(kSpace), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    OT_CHECK(base != MAP_FAILED) << "no address space for the emulated device";
    base_ = static_cast<char*>(base);
  }
  void Protect(int protection, int64_t end) {
    const int64_t bytes = (end + kPage - 1) / kPage * kPage - low_;
    if (bytes > 0) OT_CHECK_EQ(mprotect(base_ + low_, static_cast<size_t>(bytes), protection), 0);
  }

  struct Block {
    int64_t bytes = 0;
    std::string name;
  };
  std::mutex mutex_;
  char* base_ = nullptr;
  int64_t low_ = 0;  // begin of a page; no block lies before it
  int64_t used_ = 0, in_use_ = 0;
  int open_ = 0;
  std::map<int64_t, Block> blocks_;  // by offset
};

}  // namespace

void* AllocateDevice(int64_t bytes, absl::string_view name) {
  return Region::Instance().Allocate(bytes, name);
}
void FreeDevice(void* data, int64_t bytes) { Region::Instance().Free(data, bytes); }
bool IsDevice(const void* address) { return Region::Instance().Contains(address); }
int64_t DeviceBytesUsed() { return Region::Instance().in_use(); }
DeviceAccess::DeviceAccess() { Region::Instance().Open(); }
DeviceAccess::~DeviceAccess() { Region::Instance().Close(); }

}  // namespace overtok::emulation
