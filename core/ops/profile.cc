#include "core/ops/profile.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace overtok {
namespace {

const Kernels* inner = nullptr;
Kernels timed, counted;
std::map<std::string, OpTime> times;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Args>
std::string Label(const char* name, const Args& /*args*/) {
  return name;
}
std::string Label(const char* name, const MatmulArgs& args) {
  return std::string(name) + " " + ShapeOf(args);
}

template <class Args>
void Record(const char* name, const Args& args, double seconds) {
  const Work work = WorkOf(args);
  const auto [at, fresh] = times.try_emplace(Label(name, args));
  OpTime& time = at->second;
  ++time.calls;
  time.seconds += seconds;
  if (fresh) {
    time.work = work;
  } else {
    time.work += work;
  }
}

template <auto kMember>
struct Op {
  static inline const char* name = nullptr;

  template <class Args>
  static void Time(const Context& context, const Args& args) {
    const bool behind = context.device().own_memory();
    if (behind) context.Wait();
    const double start = Now();
    (inner->*kMember)(context, args);
    if (behind) context.Wait();
    Record(name, args, Now() - start);
  }
  template <class Args>
  static void Count(const Context& /*context*/, const Args& args) {
    Record(name, args, 0);
  }
  template <class Args>
  static void Install(Kernel<Args> Kernels::*member) {
    timed.*member = inner == nullptr || inner->*member == nullptr ? nullptr : &Time<Args>;
    counted.*member = &Count<Args>;
  }
};

template <auto kMember>
void Install(const char* name) {
  Op<kMember>::name = name;
  Op<kMember>::Install(kMember);
}

void InstallAll() {
  times.clear();
#define OT_INSTALL(entry, args, member) Install<&Kernels::member>(#member);
  OT_FOR_EACH_OP(OT_INSTALL)
#undef OT_INSTALL
}

}  // namespace

const Kernels& StartProfile(const Kernels& kernels) {
  inner = &kernels;
  InstallAll();
  return timed;
}

const Kernels& StartCount() {
  InstallAll();
  return counted;
}

void ResetProfile() { times.clear(); }

std::vector<OpTime> ReadProfile() {
  std::vector<OpTime> out;
  for (const auto& [label, time] : times) {
    out.push_back(time);
    out.back().name = label;
  }
  std::stable_sort(out.begin(), out.end(), [](const OpTime& a, const OpTime& b) {
    return a.seconds != b.seconds ? a.seconds > b.seconds : a.work.all_bytes() > b.work.all_bytes();
  });
  return out;
}

}  // namespace overtok
