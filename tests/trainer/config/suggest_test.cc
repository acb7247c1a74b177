#include "trainer/config/suggest.h"

#include <gtest/gtest.h>

#include "trainer/config/schema.h"

namespace overtok {
namespace {

TEST(Suggest, EditDistance) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", "abc"), 0);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("lr", "rl"), 1);  // neighbours swapped
}

TEST(Suggest, NearestNeedsToBeNear) {
  EXPECT_EQ(Nearest("hiden_size", {"hidden_size", "head_dim"}), "hidden_size");
  EXPECT_EQ(Nearest("optim", {"model", "optimizer"}), "optimizer");
  EXPECT_EQ(Nearest("zzz", {"hidden_size", "head_dim"}), "");
  EXPECT_EQ(Nearest("lr", {"eps"}), "");
}

TEST(Suggest, EveryKeyIsFoundWithALetterLeftOut) {
  for (const std::string& key : ConfigKeyNames()) {
    // What is left of these says too little: nothing, or as much beta1 as beta2.
    if (key == "data.order.a" || key == "data.order.b" || key == "optimizer.beta2") continue;
    const std::string text = SuggestKey(key.substr(0, key.size() - 1), ConfigKeyNames());
    EXPECT_NE(text.find(key), std::string::npos) << key << ": " << text;
  }
}

TEST(Suggest, NamesOfOtherFrameworksLeadToKeysThatExist) {
  for (const char* name :
       {"hidden_dim", "n_embd", "d_model", "num_layers", "n_kv_heads", "rotary_base",
        "learning_rate", "seq_len", "micro_batch_size", "epochs"}) {
    const std::string text = SuggestKey(name, ConfigKeyNames());
    bool names_a_key = false;
    for (const std::string& key : ConfigKeyNames()) {
      names_a_key = names_a_key || text == "it is called " + key + " here";
    }
    EXPECT_TRUE(names_a_key) << name << ": " << text;
  }
}

}  // namespace
}  // namespace overtok
