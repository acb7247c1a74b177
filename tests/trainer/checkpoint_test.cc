// Checkpoints survive what happens to them: kills and full disks at every write point, damage
// afterwards, and configurations they were not made with.
#include "trainer/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

// Hundreds of saves: in memory where that can be had, because fsync waits for a disk.
const bool kInMemory = IsDirectory("/dev/shm") && setenv("TMPDIR", "/dev/shm", 0) == 0;

// A model of two parameters with one tensor of optimizer state each.
struct Model {
  explicit Model(float value = 0, int64_t rows = 3)
      : memory(Memory::Mode::kReal), parameters(&memory, DType::kF32, false) {
    for (const char* name : {"embed.weight", "layers.0.attn.q.weight"}) {
      Parameter& parameter = parameters.Add(
          {name, {rows, 4}, Placement::kReplicated, OptimizerGroup::kAdam, Initializer::kOnes, 1.0},
          false);
      Fill(parameter.value, value);
      state.push_back({absl::StrCat("adam.m/", name),
                       memory.Take(Purpose::kOptimizer, name, DType::kF32, {rows, 4})});
      Fill(state.back().tensor, -value);
      value += 100;
    }
  }
  static void Fill(const Tensor& tensor, float first) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.data<float>()[i] = first + static_cast<float>(i);
    }
  }
  Memory memory;
  ParameterSet parameters;
  std::vector<NamedState> state;
};

bool Equal(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

TrainingState StateOf(int64_t step) {
  TrainingState state;
  state.step = step;
  state.sequences = 8 * step;
  state.tokens = 128 * step;
  state.ids_hash = 0xfedcba9876543210u + static_cast<uint64_t>(step);
  state.metrics_bytes = 1000 + step;
  state.evaluated_step = step - 1;
  state.best = BestValue{"eval/held_out/macro_loss", 0.1 + 1.0 / 3.0, step - 1};
  state.threads = 2;
  state.data.tokenizer_name = "bytes";
  state.data.vocab_size = 258;
  state.data.eos = 257;
  state.data.form.space_before_eos = true;
  state.identity = {{"model.hidden_size", "32"}, {"data.order.seed", "42"}};
  return state;
}

class CheckpointTest : public ::testing::Test {
 protected:
  ~CheckpointTest() override { SetFileFaultHook(nullptr); }
  absl::Status Save(int64_t step, int64_t keep = 2) {
    const Model model(static_cast<float>(step));
    return CheckpointStore(path_, keep).Save(StateOf(step), model.parameters, model.state);
  }
  // Whether the checkpoint of `step` loads and holds what Save(step) put into it.
  absl::Status Load(int64_t step) {
    const CheckpointStore store(path_, 2);
    Model model(-1), saved(static_cast<float>(step));
    OT_ASSIGN_OR_RETURN(const TrainingState state, store.ReadState(step));
    OT_RETURN_IF_ERROR(store.LoadModel(step, &model.parameters));
    OT_RETURN_IF_ERROR(store.LoadOptimizer(step, model.state));
    for (size_t i = 0; i < 2; ++i) {
      if (!Equal(model.parameters.all()[i].value, saved.parameters.all()[i].value) ||
          !Equal(model.state[i].tensor, saved.state[i].tensor)) {
        return absl::InternalError("other values");
      }
    }
    const TrainingState expected = StateOf(step);
    if (state.sequences != expected.sequences || state.tokens != expected.tokens ||
        state.ids_hash != expected.ids_hash || state.metrics_bytes != expected.metrics_bytes ||
        state.evaluated_step != expected.evaluated_step || state.best != expected.best ||
        state.threads != expected.threads || state.data.eos != expected.data.eos ||
        state.data.bos != expected.data.bos || state.data.form != expected.data.form ||
        state.data.tokenizer_name != expected.data.tokenizer_name ||
        state.identity != expected.identity) {
      return absl::InternalError("other state");
    }
    return absl::OkStatus();
  }
  std::vector<int64_t> Marked() { return CheckpointStore(path_, 2).Marked().value(); }

  TemporaryDirectory directory_;  // below kInMemory's directory
  const std::string path_ = directory_.File("checkpoints");
};

TEST_F(CheckpointTest, RestoresEveryBitAndKeepsTheNewest) {
  EXPECT_TRUE(kInMemory || !IsDirectory("/dev/shm"));
  EXPECT_THAT(Marked(), IsEmpty());
  for (const int64_t step : {1, 2, 12345678, 123456789}) OT_ASSERT_OK(Save(step));
  EXPECT_THAT(Marked(), ElementsAre(12345678, 123456789));
  OT_EXPECT_ERROR(Load(1), "finished ones are of the steps: 12345678, 123456789");
  OT_EXPECT_ERROR(Load(2), "step-00000002");
  OT_ASSERT_OK(Load(12345678));
  OT_ASSERT_OK(Load(123456789));
}

TEST_F(CheckpointTest, SavingAStepTwiceKeepsTheFirst) {
  OT_ASSERT_OK(Save(5));
  const Model other(999);
  OT_ASSERT_OK(CheckpointStore(path_, 2).Save(StateOf(5), other.parameters, other.state));
  OT_ASSERT_OK(Load(5));
}

// cases.md 57: kill -9 at every write point; the next start loads the previous step, or the new one
// where its mark was already there.
TEST_F(CheckpointTest, KillAtEveryWritePointLeavesAnOldOrANewCheckpoint) {
  int points = 0;
  SetFileFaultHook([&](absl::string_view, absl::string_view) {
    ++points;
    return absl::OkStatus();
  });
  OT_ASSERT_OK(Save(1, 1));
  OT_ASSERT_OK(Save(2, 1));
  SetFileFaultHook(nullptr);
  ASSERT_GT(points, 30);
  int old_ones = 0, new_ones = 0;
  for (int kill_at = 1; kill_at <= points; ++kill_at) {
    OT_ASSERT_OK(RemoveTree(path_));
    OT_ASSERT_OK(Save(1, 1));
    const pid_t child = fork();
    if (child == 0) {
      int left = kill_at;
      SetFileFaultHook([&](absl::string_view, absl::string_view) {
        if (--left == 0) kill(getpid(), SIGKILL);
        return absl::OkStatus();
      });
      _exit(Save(2, 1).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) break;  // past the last point of one save
    const std::vector<int64_t> marked = Marked();
    ASSERT_FALSE(marked.empty()) << "killed at write point " << kill_at;
    OT_ASSERT_OK(Load(marked.back()));
    ++(marked.back() == 1 ? old_ones : new_ones);
    // The run goes on from there, and leftovers go.
    OT_ASSERT_OK(Save(3, 1));
    EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000003")) << kill_at;
    OT_ASSERT_OK(Load(3));
  }
  EXPECT_GT(old_ones, 10);
  EXPECT_GT(new_ones, 0);
}

// cases.md 59: the old checkpoint goes only after the new one is safe.
TEST_F(CheckpointTest, FailureAtEveryWritePointKeepsTheOldCheckpoint) {
  for (int fail_at = 1;; ++fail_at) {
    OT_ASSERT_OK(RemoveTree(path_));
    OT_ASSERT_OK(Save(1, 1));
    int left = fail_at;
    bool failed = false;
    SetFileFaultHook([&](absl::string_view operation, absl::string_view path) -> absl::Status {
      if (--left != 0) return absl::OkStatus();
      failed = true;
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot ", operation, " ", path, ": No space left on device"));
    });
    const absl::Status status = Save(2, 1);
    SetFileFaultHook(nullptr);
    if (!failed) {
      OT_ASSERT_OK(status);
      break;
    }
    ASSERT_FALSE(status.ok()) << "failed at write point " << fail_at;
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("step-00000002"));
    const std::vector<int64_t> marked = Marked();
    ASSERT_FALSE(marked.empty());
    OT_ASSERT_OK(Load(marked.back()));
    OT_ASSERT_OK(Save(2, 1));
    EXPECT_THAT(Marked(), ElementsAre(2));
    OT_ASSERT_OK(Load(2));
  }
}

TEST_F(CheckpointTest, IgnoresWhatHasNoMark) {
  OT_ASSERT_OK(Save(1));
  OT_ASSERT_OK(Save(2));
  OT_ASSERT_OK(RemoveTree(path_ + "/step-00000002/complete"));
  OT_ASSERT_OK(CreateDirectories(path_ + "/.saving-00000009-1"));
  OT_ASSERT_OK(CreateDirectories(path_ + "/step-abc"));
  EXPECT_THAT(Marked(), ElementsAre(1));
  OT_EXPECT_ERROR(Load(2), "no finished checkpoint");
}

TEST_F(CheckpointTest, NamesTheDamagedTensor) {
  OT_ASSERT_OK(Save(7));
  const std::string file = path_ + "/step-00000007/model.h5";
  std::string bytes = ReadFile(file).value();
  // The embedding's first values: 7, 8.
  const float values[2] = {7, 8};
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Load(7), "embed.weight do not match their checksum");
  bytes.resize(bytes.size() - 8);
  std::ofstream(file, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Load(7), "do not match its completion mark");
}

TEST_F(CheckpointTest, NamesAChangedState) {
  OT_ASSERT_OK(Save(7));
  const std::string file = path_ + "/step-00000007/state.json";
  std::string text = ReadFile(file).value();
  text.replace(text.find("\"tokens\": 896"), 13, "\"tokens\": 897");
  std::ofstream(file) << text;
  OT_EXPECT_ERROR(Load(7), "completion mark");
}

TEST_F(CheckpointTest, RefusesAnotherModel) {
  OT_ASSERT_OK(Save(7));
  const CheckpointStore store(path_, 2);
  Model wider(0, 5);
  OT_EXPECT_ERROR(store.LoadModel(7, &wider.parameters),
                  "embed.weight is f32 [3, 4], this configuration needs f32 [5, 4]");
  Model more;
  more.parameters.Add({"lm_head.weight",
                       {2, 2},
                       Placement::kReplicated,
                       OptimizerGroup::kAdamH,
                       Initializer::kOnes,
                       1.0},
                      false);
  OT_EXPECT_ERROR(store.LoadModel(7, &more.parameters), "no tensor lm_head.weight");
  Model fewer;
  fewer.state.pop_back();
  OT_EXPECT_ERROR(store.LoadOptimizer(7, fewer.state), "has 2 tensors, this configuration has 1");
}

TEST_F(CheckpointTest, NamesTheKeyThatDiffers) {
  const Identity found = {{"model.hidden_size", "32"}, {"data.order.seed", "42"}};
  OT_ASSERT_OK(CheckIdentity("c", found, found));
  OT_ASSERT_OK(CheckIdentity("c", found, {{"data.order.seed", "42"}}));
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.hidden_size", "64"}}),
                  "model.hidden_size is 32 there and 64 here");
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"tokenizer", "ab"}}),
                  "tokenizer is no value there and ab here");
  // An option that came after the checkpoint was written and is off; one that is on; one turned
  // off.
  OT_ASSERT_OK(CheckIdentity("c", found, {{"model.ngram_embedding.rows", "null"}}));
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.ngram_embedding.rows", "7"}}),
                  "model.ngram_embedding.rows is no value there and 7 here");
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.hidden_size", "null"}}),
                  "model.hidden_size is 32 there and null here");
}

TEST_F(CheckpointTest, SizeOnDiskIsWithinTheEstimate) {
  OT_ASSERT_OK(Save(7));
  const Model model;
  int64_t bytes = 0;
  for (const char* file : {"model.h5", "optimizer.h5", "state.json", "complete"}) {
    bytes += FileSize(path_ + "/step-00000007/" + file).value();
  }
  EXPECT_LE(bytes, CheckpointStore::Bytes(model.parameters, model.state));
}

}  // namespace
}  // namespace overtok
