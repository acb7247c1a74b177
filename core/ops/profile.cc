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
  Install<&Kernels::fill>("fill");
  Install<&Kernels::cast>("cast");
  Install<&Kernels::add>("add");
  Install<&Kernels::matmul>("matmul");
  Install<&Kernels::rms_norm_forward>("rms_norm_forward");
  Install<&Kernels::rms_norm_backward>("rms_norm_backward");
  Install<&Kernels::qk_norm_rope_forward>("qk_norm_rope_forward");
  Install<&Kernels::qk_norm_rope_backward>("qk_norm_rope_backward");
  Install<&Kernels::attention_forward>("attention_forward");
  Install<&Kernels::attention_backward>("attention_backward");
  Install<&Kernels::swiglu_forward>("swiglu_forward");
  Install<&Kernels::swiglu_backward>("swiglu_backward");
  Install<&Kernels::embedding_forward>("embedding_forward");
  Install<&Kernels::embedding_backward>("embedding_backward");
  Install<&Kernels::softmax_xent>("softmax_xent");
  Install<&Kernels::softmax_shard_stats>("softmax_shard_stats");
  Install<&Kernels::softmax_xent_shard>("softmax_xent_shard");
  Install<&Kernels::weighted_sum>("weighted_sum");
  Install<&Kernels::ordered_sum>("ordered_sum");
  Install<&Kernels::copy_region>("copy_region");
  Install<&Kernels::row_tree_sum>("row_tree_sum");
  Install<&Kernels::sum_squares>("sum_squares");
  Install<&Kernels::muon_momentum>("muon_momentum");
  Install<&Kernels::newton_schulz_polynomial>("newton_schulz_polynomial");
  Install<&Kernels::scale_by_norm>("scale_by_norm");
  Install<&Kernels::hyperball_update>("hyperball_update");
  Install<&Kernels::adamh_moments>("adamh_moments");
  Install<&Kernels::adamh_move>("adamh_move");
  Install<&Kernels::adam_update>("adam_update");
  Install<&Kernels::table_replay_rows>("table_replay_rows");
  Install<&Kernels::table_lookup>("table_lookup");
  Install<&Kernels::table_update>("table_update");
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
