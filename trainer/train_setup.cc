// How a training run is set up (trainer/train_run.h): its data, weights, device and directory, and
// what it continues from.
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/comm/agreement.h"
#include "core/console.h"
#include "core/cpu/parallel.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "trainer/checkpoint_hash.h"
#include "trainer/host_tensors.h"
#include "trainer/layout.h"
#include "trainer/machine.h"
#include "trainer/open_device.h"
#include "trainer/plan.h"
#include "trainer/run_identity.h"
#include "trainer/run_stage.h"
#include "trainer/train_run.h"

namespace overtok {
namespace {

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

// One hash of all values, the same under every layout and on every rank. `owned`: of all ranks
// together every element once. Collective.
uint64_t HashOfValues(const std::vector<ShardedTensor>& owned, Communicator& world) {
  uint64_t sum = 0;
  for (const ShardedTensor& entry : owned) {
    const uint64_t name = Xxh3(entry.name.data(), static_cast<int64_t>(entry.name.size()));
    sum += (name | 1) * PositionHash(entry.region, entry.tensor);
  }
  // In halves, so that sums over ranks stay in range.
  std::vector<int64_t> halves = {static_cast<int64_t>(sum & 0xffffffffU),
                                 static_cast<int64_t>(sum >> 32)};
  world.AllReduceSum(std::span<int64_t>(halves), Traffic::kControl);
  return static_cast<uint64_t>(halves[0]) + (static_cast<uint64_t>(halves[1]) << 32);
}

}  // namespace

absl::Status TrainRun::Preflight() {
  OT_RETURN_IF_ERROR(Agree(*world_, CheckLayout(loaded_, world_->size())));
  OT_RETURN_IF_ERROR(Agree(*world_, OpenData()));
  OT_RETURN_IF_ERROR(OpenWeights());
  OT_RETURN_IF_ERROR(CheckRanks());
  OT_ASSIGN_OR_RETURN(device_, OpenDevice(config(), *world_));
  OT_ASSIGN_OR_RETURN(device_world_, OnDevice(*world_, device_));
  mesh_ = std::make_unique<Mesh>(device_world_.get(), static_cast<int>(config().parallel.tensor),
                                 config().parallel.vocabulary_map);
  for (const std::string& warning : loaded_.warnings) LogWarning(warning);
  const std::string layout = LayoutWarning(config(), world_->size());
  if (!layout.empty()) LogWarning(layout);
  PlaceTablesOfTraining(device_->total_bytes(), mesh_->layout(), &loaded_.config);
  MemoryPlan plan = PlanMemory(config(), data_.windows, mesh_->layout());
  if (evaluation_ != nullptr) plan.host += evaluation_->bytes();
  checkpoint_bytes_ = plan.checkpoint;
  memory_ = std::make_unique<Memory>(Memory::Mode::kReal, device_);
  return Agree(*world_, CheckMemoryFits(plan, options_.launch.local_size, device_));
}

absl::Status TrainRun::OpenData() {
  if (config().checkpoint.directory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        loaded_.Where("checkpoint.directory"),
        ": missing; name the run directory, for example checkpoint.directory=runs/first"));
  }
  OT_ASSIGN_OR_RETURN(data_, OpenTrainingData(&loaded_));
  pass_starts_ = PassStarts(config(), data_.windows);
  pass_evaluations_ = PassEvaluations(config(), pass_starts_);
  if (config().loss.sampled_softmax.has_value()) {
    OT_ASSIGN_OR_RETURN(labels_, SampleLabels(config(), *data_.corpus, data_.order));
    for (const std::string& warning : CandidateWarnings(config(), labels_)) LogWarning(warning);
  }
  const int64_t vocabulary = data_.corpus->identity().vocab_size;
  if (vocabulary < config().model.vocab_size) {
    LogWarning(absl::StrCat("model.vocab_size is ", config().model.vocab_size,
                            ", the shards' tokenizer has ", vocabulary,
                            " ids: the rest is trained as never occurring"));
  }
  if (config().eval.enabled()) {
    OT_ASSIGN_OR_RETURN(evaluation_, EvaluationData::Open(config(), data_.corpus->identity()));
  }
  return absl::OkStatus();
}

absl::Status TrainRun::OpenWeights() {
  if (!config().train.initial_weights.has_value()) return absl::OkStatus();
  const CheckpointStore checkpoints(RunDirectory::CheckpointsOf(config().checkpoint.directory),
                                    config().checkpoint.keep, world_);
  OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, checkpoints.Marked());
  if (!marked.empty()) return absl::OkStatus();
  absl::StatusOr<InitialWeights> weights = InitialWeights::Open(
      *config().train.initial_weights, config().model, config().train.new_parameters);
  OT_RETURN_IF_ERROR(Agree(*world_, weights.status()));
  weights_ = *std::move(weights);
  return absl::OkStatus();
}

absl::Status TrainRun::CheckRanks() {
  OT_RETURN_IF_ERROR(CheckSameConfig(*world_, config()));
  OT_RETURN_IF_ERROR(
      CheckSame(*world_, "the hash of the corpus", Hex(data_.corpus->content_hash())));
  const absl::StatusOr<std::string> program = ReadFile("/proc/self/exe");
  OT_RETURN_IF_ERROR(Agree(*world_, program.status()));
  return CheckSame(*world_, "the hash of the program",
                   Hex(Xxh3(program->data(), static_cast<int64_t>(program->size()))));
}

absl::Status TrainRun::Resume() {
  absl::Status opened = absl::OkStatus();
  if (root()) {
    absl::StatusOr<std::unique_ptr<RunDirectory>> directory =
        RunDirectory::Open(config().checkpoint.directory, options_.fresh);
    opened = directory.status();
    if (directory.ok()) directory_ = std::move(*directory);
  }
  OT_RETURN_IF_ERROR(Agree(*world_, opened));
  checkpoints_ = std::make_unique<CheckpointStore>(
      RunDirectory::CheckpointsOf(config().checkpoint.directory), config().checkpoint.keep, world_);
  OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, checkpoints_->Marked());
  const Identity identity = TrainingIdentity(config(), *data_.corpus, data_.order);
  const int threads = cpu::Threads();
  if (!marked.empty()) {
    const std::string path = checkpoints_->PathOf(marked.back());
    OT_ASSIGN_OR_RETURN(state_, checkpoints_->ReadState(marked.back()));
    OT_RETURN_IF_ERROR(Agree(*world_, CheckIdentity(path, state_.identity, identity)));
    if (state_.step > config().train.steps) {
      return Agree(*world_,
                   absl::FailedPreconditionError(absl::StrCat(
                       path, " is of step ", state_.step, ", beyond the horizon of ",
                       config().train.steps, " steps; raise ", loaded_.Where("train.steps"),
                       ", or choose another checkpoint.directory")));
    }
    if (state_.threads != threads) {
      LogWarning(absl::StrCat(path, " was computed by ", state_.threads, " threads, this run has ",
                              threads, ": the same bits are promised at equal numbers only"));
    }
    saved_step_ = state_.step;
  }
  state_.identity = identity;
  state_.data = data_.corpus->identity();
  state_.threads = threads;
  state_.data_ranks = mesh_->layout().data;
  state_.tensor_ranks = mesh_->layout().tensor;
  std::vector<int64_t> bytes = {checkpoint_bytes_};
  world_->AllReduceSum(std::span<int64_t>(bytes), Traffic::kControl);
  OT_RETURN_IF_ERROR(
      Agree(*world_, root() ? CheckFreeSpace(directory_->path(), bytes[0]) : absl::OkStatus()));
  OT_RETURN_IF_ERROR(Build());
  return Agree(*world_, root() ? Record() : absl::OkStatus());
}

absl::Status TrainRun::Build() {
  train_ = std::make_unique<TrainStep>(config(), mesh_.get(), memory_.get());
  if (evaluation_ != nullptr) {
    evaluator_ = std::make_unique<Evaluator>(config(), train_->model(), &train_->parameters(),
                                             mesh_.get(), memory_.get());
  }
  Optimizer& optimizer = train_->optimizer();
  saver_ = std::make_unique<CheckpointSaver>(checkpoints_.get(), optimizer.owned_values(),
                                             optimizer.state(), config().checkpoint.background,
                                             &train_->context(), memory_.get());
  train_->Commit();
  std::vector<ShardedTensor> held = train_->parameters().values();
  for (ShardedTensor& master : optimizer.masters()) held.push_back(std::move(master));
  if (saved_step_ < 0) {
    train_->Initialize();
    if (weights_.has_value()) OT_RETURN_IF_ERROR(FillWeights(held));
    HostTensors values(train_->context(), optimizer.owned_values());
    values.Read();
    initial_values_ = Hex(HashOfValues(values.tensors(), *world_));
    return absl::OkStatus();
  }
  {
    HostTensors values(train_->context(), std::move(held));
    OT_RETURN_IF_ERROR(checkpoints_->LoadModel(state_.step, values.tensors()));
    values.Write();
  }
  const HostTensors state(train_->context(), optimizer.state());
  OT_RETURN_IF_ERROR(checkpoints_->LoadOptimizer(state_.step, state.tensors()));
  state.Write();
  return absl::OkStatus();
}

absl::Status TrainRun::FillWeights(const std::vector<ShardedTensor>& held) {
  HostTensors values(train_->context(), held);
  values.Read();  // what the files do not have stays as it was drawn
  const absl::StatusOr<FilledWeights> filled = weights_->Fill(values.tensors());
  OT_RETURN_IF_ERROR(Agree(*world_, filled.status()));
  values.Write();
  LogInfo(absl::StrFormat(
      "%s: %d tensors, %s of %s read by this rank in %s (%s of it waiting)%s%s",
      *config().train.initial_weights, filled->tensors, FormatBytes(filled->bytes_read),
      FormatBytes(filled->file_bytes), FormatDuration(filled->seconds),
      FormatDuration(filled->waited),
      filled->drawn.empty() ? "" : "; drawn from the seed: ", absl::StrJoin(filled->drawn, ", ")));
  return absl::OkStatus();
}

absl::Status TrainRun::Record() {
  const std::string yaml = ResolvedYaml(config());
  OT_RETURN_IF_ERROR(directory_->WriteConfig(yaml));
  const Corpus& corpus = *data_.corpus;
  RunFacts facts;
  facts.from_step = state_.step;
  facts.config_sha256 = Sha256Hex(yaml);
  facts.precision = NameOf(config().train.precision);
  facts.device = NameOf(train_->context().kind());
  facts.threads = state_.threads;
  facts.launcher = options_.launch.launcher;
  facts.data_ranks = state_.data_ranks;
  facts.tensor_ranks = state_.tensor_ranks;
  facts.initial_values = initial_values_;
  facts.data = {{"content_xxh3", Hex(corpus.content_hash())},
                {"shards", absl::StrCat(corpus.shards().size())},
                {"tokens", absl::StrCat(corpus.tokens())},
                {"documents", absl::StrCat(corpus.documents())},
                {"windows", absl::StrCat(data_.windows)},
                {"tokenizer", corpus.identity().tokenizer_name},
                {"tokenizer_hash", corpus.identity().tokenizer_hash}};
  if (evaluation_ != nullptr) facts.evaluation = evaluation_->hashes();
  OT_RETURN_IF_ERROR(directory_->RecordStart(facts));
  OT_ASSIGN_OR_RETURN(metrics_, MetricsFile::Open(RunDirectory::MetricsOf(directory_->path()),
                                                  state_.metrics_bytes));
  return absl::OkStatus();
}

}  // namespace overtok
