// The training loss: the section `loss` of a configuration.
#pragma once

namespace overtok {

struct LossConfig {
  // Weight of the mean of (log sum exp of the logits)^2, added to the cross-entropy; 0: off. It is
  // reported apart from the cross-entropy.
  double z_loss = 0;
};

}  // namespace overtok
