// Segments and loss weights of windows: the one place where document borders and padding get their
// meaning, for training and evaluation alike.
#include "data/batch.h"

#include "core/check.h"

namespace overtok {

void Batch::Resize(int64_t b, int64_t s) {
  sequences = b;
  length = s;
  const size_t n = static_cast<size_t>(b * s);
  tokens.resize(n);
  segments.resize(n);
  loss_weight.resize(n);
  windows.resize(static_cast<size_t>(b));
}

void FillSegmentsAndWeights(const ShardIdentity& identity, const uint32_t* tokens, int64_t length,
                            int32_t* segments, float* loss_weight) {
  OT_CHECK_GE(length, 1);
  int32_t segment = 0;
  if (!identity.pad.has_value()) {
    // An absent EOS compares unequal to every u32.
    const int64_t eos = identity.eos.has_value() ? int64_t{*identity.eos} : -1;
    for (int64_t t = 0; t < length; ++t) {
      segments[t] = segment;
      loss_weight[t] = 1.0f;
      segment += static_cast<int64_t>(tokens[t]) == eos ? 1 : 0;
    }
    loss_weight[length - 1] = 0.0f;
    return;
  }
  const uint32_t pad = *identity.pad;
  for (int64_t t = 0; t < length; ++t) {
    // Padding starts a segment and ends it, so nothing else can share it.
    if (t > 0 && (tokens[t] == pad || tokens[t - 1] == pad || tokens[t - 1] == identity.eos)) {
      ++segment;
    }
    segments[t] = segment;
    const bool scored = t + 1 < length && tokens[t] != pad && tokens[t + 1] != pad;
    loss_weight[t] = scored ? 1.0f : 0.0f;
  }
}

}  // namespace overtok
