// What a checkpoint and the run that continues from it must agree on. Rates, stages of a sampled
// softmax, freezing, horizon, precision, evaluation and saving may change between two starts; the
// model, what tables keep beside their values, the weights it began with, the data and their order
// may not.
#pragma once

#include "data/order.h"
#include "data/shard.h"
#include "trainer/checkpoint.h"
#include "trainer/config/config.h"

namespace overtok {

// The keys of the model and of what its tables keep.
Identity ModelIdentity(const Config& config);
// The same and everything that decides which ids a step reads.
Identity TrainingIdentity(const Config& config, const Corpus& corpus, const Order& order);

}  // namespace overtok
