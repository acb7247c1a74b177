#include "trainer/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/comm/agreement.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "trainer/checkpoint_file.h"
#include "trainer/checkpoint_load.h"

namespace overtok {
namespace {

constexpr char kMark[] = "complete", kState[] = "state.json", kTensors[] = "tensors.json";
constexpr absl::string_view kPrefix = "step-", kTemporary = ".saving-";
constexpr int kDigits = 8;
constexpr int64_t kTextBytes = int64_t{1} << 20;  // state and mark, rounded up

std::string HashOf(absl::string_view text) {
  return absl::StrFormat("%016x", Xxh3(text.data(), static_cast<int64_t>(text.size())));
}

// The step of "step-00000012", -1 for any other name.
int64_t StepOf(absl::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  const absl::string_view digits = name.substr(kPrefix.size());
  int64_t step = -1;
  if (digits.size() < kDigits || !absl::SimpleAtoi(digits, &step)) return -1;
  return step;
}

// `make`: () -> StatusOr<string>, called on rank 0; its result or its error on all ranks.
template <class Make>
absl::StatusOr<std::string> FromRootRank(Communicator& world, const Make& make) {
  absl::StatusOr<std::string> text = std::string();
  if (world.rank() == 0) text = make();
  OT_RETURN_IF_ERROR(Agree(world, text.status()));
  return world.BroadcastText(*text, 0);
}

// The text of every rank, on rank 0; nothing on the others.
std::vector<std::string> GatherTexts(Communicator& world, std::string mine) {
  const auto ranks = static_cast<size_t>(world.size());
  int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(ranks);
  world.AllGather(Tensor(&length, {1}), Tensor(lengths.data(), {world.size()}), Traffic::kFiles);
  const auto view = [](std::string& text) {
    return Tensor(reinterpret_cast<uint8_t*>(text.data()), {static_cast<int64_t>(text.size())});
  };
  if (world.rank() != 0) {
    const Communicator::Message send{0, view(mine)};
    world.Exchange({&send, 1}, {}, Traffic::kFiles);
    return {};
  }
  std::vector<std::string> texts(ranks);
  texts[0] = std::move(mine);
  std::vector<Communicator::Message> receives;
  for (size_t rank = 1; rank < ranks; ++rank) {
    texts[rank].resize(static_cast<size_t>(lengths[rank]));
    receives.push_back({static_cast<int>(rank), view(texts[rank])});
  }
  world.Exchange({}, receives, Traffic::kFiles);
  return texts;
}

// The mark of the checkpoint in `directory`: what must not have changed since. tensors.json has the
// sizes of all data files.
absl::StatusOr<std::string> MarkOf(const std::string& directory) {
  OT_ASSIGN_OR_RETURN(const std::string state, ReadFile(JoinPath(directory, kState)));
  OT_ASSIGN_OR_RETURN(const std::string tensors, ReadFile(JoinPath(directory, kTensors)));
  const nlohmann::ordered_json json = {{"format", "overtok checkpoint mark"},
                                       {"version", kCheckpointVersion},
                                       {"state_xxh3", HashOf(state)},
                                       {"tensors_xxh3", HashOf(tensors)}};
  return json.dump(1) + "\n";
}

// The version that a mark names; this program's where it names none.
int64_t VersionOf(const std::string& mark) {
  const auto json = nlohmann::ordered_json::parse(mark, nullptr, false);
  if (!json.is_object() || !json.contains("version") || !json["version"].is_number_integer()) {
    return kCheckpointVersion;
  }
  return json["version"].get<int64_t>();
}

// Whether all data files are there in the sizes that they were written with.
absl::Status CheckSizes(const std::string& directory, const CheckpointLayout& layout) {
  constexpr absl::string_view kRemedy =
      "; remove the directory to go on from the checkpoint before";
  for (const StoredFile& file : layout.files) {
    const std::string path = JoinPath(directory, file.name);
    if (!PathExists(path)) {
      return absl::DataLossError(absl::StrCat(path, " is missing, one of ", layout.files.size(),
                                              " data files of this checkpoint", kRemedy));
    }
    OT_ASSIGN_OR_RETURN(const int64_t bytes, FileSize(path));
    if (bytes != file.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", bytes, " bytes, it was saved with ", file.bytes,
                       ": it was changed or cut off after the save", kRemedy));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointStore::PathOf(int64_t step) const {
  return JoinPath(directory_, absl::StrFormat("step-%08d", step));
}

int64_t CheckpointStore::Bytes(const std::vector<ShardedTensor>& model,
                               const std::vector<ShardedTensor>& optimizer) {
  return RankFileBytes(model, optimizer) + kTextBytes;
}

absl::StatusOr<std::vector<int64_t>> CheckpointStore::ListMarked() const {
  std::vector<int64_t> steps;
  if (!PathExists(directory_)) return steps;
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    const int64_t step = StepOf(name);
    if (step >= 0 && PathExists(JoinPath(JoinPath(directory_, name), kMark))) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::vector<int64_t>> CheckpointStore::Marked() const {
  OT_ASSIGN_OR_RETURN(const std::string text,
                      FromRootRank(*world_, [&]() -> absl::StatusOr<std::string> {
                        OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, ListMarked());
                        return absl::StrJoin(marked, " ");
                      }));
  std::vector<int64_t> steps;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    steps.emplace_back();
    OT_CHECK(absl::SimpleAtoi(word, &steps.back()));
  }
  return steps;
}

absl::StatusOr<std::string> CheckpointStore::MakeTemporary(int64_t step, int64_t bytes) const {
  if (PathExists(JoinPath(PathOf(step), kMark))) {
    OT_RETURN_IF_ERROR(RemoveLeftovers(step));  // which may have been interrupted
    return std::string();
  }
  OT_RETURN_IF_ERROR(CreateDirectories(directory_));
  OT_RETURN_IF_ERROR(CheckFreeSpace(directory_, bytes));
  const std::string temporary =
      JoinPath(directory_, absl::StrCat(kTemporary, absl::StrFormat("%08d", step), "-", getpid()));
  // A process of the same number may have left one.
  if (PathExists(temporary)) OT_RETURN_IF_ERROR(RemoveTree(temporary));
  OT_RETURN_IF_ERROR(CreateDirectories(temporary));
  return temporary;
}

absl::StatusOr<std::string> CheckpointStore::Begin(int64_t step, int64_t bytes) const {
  world_->AllReduceSum(std::span<int64_t>(&bytes, 1), Traffic::kFiles);
  return FromRootRank(*world_, [&]() -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> temporary = MakeTemporary(step, bytes);
    if (temporary.ok()) return temporary;
    return Annotate(temporary.status(), absl::StrCat("saving ", PathOf(step)));
  });
}

absl::StatusOr<StoredFile> CheckpointStore::Write(
    const std::string& temporary, int64_t step, const std::vector<ShardedTensor>& model,
    const std::vector<ShardedTensor>& optimizer) const {
  return WriteRankFile(temporary, world_->rank(), step, model, optimizer);
}

absl::Status CheckpointStore::Publish(TrainingState state, const std::string& temporary,
                                      const std::vector<std::string>& files) const {
  const std::string target = PathOf(state.step), mark = JoinPath(target, kMark);
  const std::string tensors = LayoutText(state.step, files);
  OT_ASSIGN_OR_RETURN(const CheckpointLayout layout,
                      ParseLayout(JoinPath(temporary, kTensors), tensors));
  state.model_hash = layout.Hash(CheckpointKind::kModel);
  state.optimizer_hash = layout.Hash(CheckpointKind::kOptimizer);
  OT_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(temporary, kTensors), tensors));
  OT_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(temporary, kState), ToText(state)));
  OT_RETURN_IF_ERROR(FsyncDirectory(temporary));
  // An unmarked directory of this step is what an earlier save left behind.
  OT_RETURN_IF_ERROR(RemoveTree(target));
  OT_RETURN_IF_ERROR(RenamePath(temporary, target));
  OT_ASSIGN_OR_RETURN(const std::string text, MarkOf(target));
  return WriteFileAtomically(mark, text);
}

absl::Status CheckpointStore::Commit(const TrainingState& state, const std::string& temporary,
                                     const absl::StatusOr<StoredFile>& mine) const {
  const std::string target = PathOf(state.step);
  const std::string context = absl::StrCat("saving ", target);
  const bool root = world_->rank() == 0;
  absl::Status status = Agree(*world_, Annotate(mine.status(), context));
  if (status.ok()) {
    const std::vector<std::string> files = GatherTexts(*world_, ToText(*mine));
    if (root) {
      status = Publish(state, temporary, files);
      if (status.ok()) status = RemoveLeftovers(state.step);
    }
    status = Agree(*world_, Annotate(status, context));
  }
  // The message of the failure matters more than that of the cleaning up.
  if (root && !status.ok() && !PathExists(JoinPath(target, kMark))) {
    RemoveTree(temporary).IgnoreError();
    RemoveTree(target).IgnoreError();
  }
  return status;
}

absl::Status CheckpointStore::Save(const TrainingState& state,
                                   const std::vector<ShardedTensor>& model,
                                   const std::vector<ShardedTensor>& optimizer) const {
  OT_ASSIGN_OR_RETURN(const std::string temporary, Begin(state.step, Bytes(model, optimizer)));
  if (temporary.empty()) return absl::OkStatus();
  return Commit(state, temporary, Write(temporary, state.step, model, optimizer));
}

absl::Status CheckpointStore::RemoveLeftovers(int64_t newest) const {
  OT_ASSIGN_OR_RETURN(std::vector<int64_t> marked, ListMarked());
  while (static_cast<int64_t>(marked.size()) > std::max<int64_t>(keep_, 1)) {
    const std::string path = PathOf(marked.front());
    // The mark goes first: a removal that is interrupted must not leave half a checkpoint marked.
    OT_RETURN_IF_ERROR(RemoveTree(JoinPath(path, kMark)));
    OT_RETURN_IF_ERROR(RemoveTree(path));
    marked.erase(marked.begin());
  }
  OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    const int64_t step = StepOf(name);
    const bool unmarked =
        step >= 0 && step <= newest && !PathExists(JoinPath(JoinPath(directory_, name), kMark));
    if (unmarked || name.compare(0, kTemporary.size(), std::string(kTemporary)) == 0) {
      OT_RETURN_IF_ERROR(RemoveTree(JoinPath(directory_, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::CheckMark(int64_t step) const {
  const std::string directory = PathOf(step), path = JoinPath(directory, kMark);
  if (!PathExists(path)) {
    OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, ListMarked());
    return absl::NotFoundError(absl::StrCat("there is no finished checkpoint ", directory,
                                            "; finished ones are of the steps: ",
                                            marked.empty() ? "none" : absl::StrJoin(marked, ", ")));
  }
  OT_ASSIGN_OR_RETURN(const std::string mark, ReadFile(path));
  if (VersionOf(mark) != kCheckpointVersion) return OtherVersion(directory, VersionOf(mark));
  OT_ASSIGN_OR_RETURN(const std::string expected, MarkOf(directory));
  if (mark != expected) {
    return absl::DataLossError(absl::StrCat(
        directory, ": ", kState, " or ", kTensors,
        " does not match the completion mark: it was changed or cut off after the save; remove the "
        "directory to go on from the checkpoint before"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStore::ReadLayout(int64_t step) const {
  const std::string path = JoinPath(PathOf(step), kTensors);
  OT_RETURN_IF_ERROR(CheckMark(step));
  OT_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  OT_ASSIGN_OR_RETURN(const CheckpointLayout layout, ParseLayout(path, text));
  OT_RETURN_IF_ERROR(CheckSizes(PathOf(step), layout));
  return text;
}

// Rank 0 reads and checks what the others then get as text.
absl::StatusOr<TrainingState> CheckpointStore::ReadState(int64_t step) const {
  const std::string path = JoinPath(PathOf(step), kState);
  OT_ASSIGN_OR_RETURN(
      const std::string text, FromRootRank(*world_, [&]() -> absl::StatusOr<std::string> {
        OT_RETURN_IF_ERROR(ReadLayout(step).status());
        OT_ASSIGN_OR_RETURN(std::string file, ReadFile(path));
        OT_ASSIGN_OR_RETURN(const TrainingState state, ParseState(path, file));
        if (state.step == step) return file;
        return absl::InvalidArgumentError(
            absl::StrCat(path, " is of step ", state.step, ": it was put there by hand"));
      }));
  return ParseState(path, text);
}

absl::Status CheckpointStore::Load(int64_t step, CheckpointKind kind,
                                   const std::vector<ShardedTensor>& wanted, bool all) const {
  OT_ASSIGN_OR_RETURN(const std::string text,
                      FromRootRank(*world_, [&] { return ReadLayout(step); }));
  const std::string directory = PathOf(step);
  OT_ASSIGN_OR_RETURN(const CheckpointLayout layout,
                      ParseLayout(JoinPath(directory, kTensors), text));
  return LoadTensors(*world_, directory, layout, kind, wanted, all);
}

absl::Status CheckpointStore::LoadModel(int64_t step,
                                        const std::vector<ShardedTensor>& wanted) const {
  return Load(step, CheckpointKind::kModel, wanted, true);
}

absl::Status CheckpointStore::LoadOptimizer(int64_t step,
                                            const std::vector<ShardedTensor>& wanted) const {
  return Load(step, CheckpointKind::kOptimizer, wanted, true);
}

absl::Status CheckpointStore::LoadTables(int64_t step,
                                         const std::vector<ShardedTensor>& tables) const {
  return Load(step, CheckpointKind::kOptimizer, tables, false);
}

}  // namespace overtok
