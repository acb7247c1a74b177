// BatchView: the ids of one optimizer step, or of one evaluation pass, on the host; and what every
// head is asked at each position. Nothing here is owned.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace overtok {

// B windows of S ids in batch order.
struct BatchView {
  int64_t sequences = 0, length = 0;   // B, S
  const uint32_t* tokens = nullptr;    // [B, S] below V
  const int32_t* segments = nullptr;   // [B, S] document index inside the window; never falls
  const float* loss_weight = nullptr;  // [B, S] weight of predicting t + 1 from t
  int64_t step = 0;                    // of the run, from 0: seeds candidates and dropout
  int64_t pass = 0;                    // over the data: names the hash of re-hashed tables

  int64_t positions() const { return sequences * length; }
};

// The heads a model can have, in the order of their losses everywhere.
enum class HeadKind : uint8_t { kMain, kSecondToken, kGram2, kGram3 };
inline constexpr int kHeadKinds = 4;
const char* NameOf(HeadKind kind);  // "main", "head2", "gram2", "gram3": of traces and metrics
template <class T>
using PerHead = std::array<T, kHeadKinds>;

// The heads of `model`, kMain first.
std::vector<HeadKind> HeadsOf(const ModelConfig& model);
// Whether the head's classes are hashed n-grams (rows of a table) and not the vocabulary.
inline bool IsHashed(HeadKind kind) { return kind == HeadKind::kGram2 || kind == HeadKind::kGram3; }
// How far ahead the furthest token that a head's class depends on lies: 1, 2, 2, 3.
int64_t ReachOf(HeadKind kind);
// V, or the modulus of a hashed n-gram head.
int64_t ClassesOf(const ModelConfig& model, HeadKind kind);
// Weight of the head's mean loss in the sum that is differentiated; 1 for kMain.
double LossWeightOf(const ModelConfig& model, HeadKind kind);

// Class of every position, [B, S]: x_{t+1}, x_{t+2}, or the hashed n-gram of x_{t+1} ...
// x_{t+reach}. Reads past the window's end wrap to its start; such positions weigh nothing, but
// their classes count as labels of a candidate set.
void FillTargets(const ModelConfig& model, HeadKind kind, const BatchView& batch, uint32_t* out);

// Weight of every position, [B, S], and their sum. kMain: loss_weight. Others: the product of the
// weights of t .. t + reach - 1, and 0 where t + reach is past the window's end or the positions t
// .. t + reach lie in more than one document.
double FillTargetWeights(HeadKind kind, const BatchView& batch, float* out);

}  // namespace overtok
