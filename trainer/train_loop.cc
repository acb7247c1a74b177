#include "trainer/train_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/comm/agreement.h"
#include "core/comm/mesh.h"
#include "core/console.h"
#include "core/cpu/parallel.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "data/loader.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_hash.h"
#include "trainer/checkpoint_saver.h"
#include "trainer/config/derived.h"
#include "trainer/evaluation_data.h"
#include "trainer/evaluator.h"
#include "trainer/host_tensors.h"
#include "trainer/inclusion.h"
#include "trainer/initial_weights.h"
#include "trainer/layout.h"
#include "trainer/machine.h"
#include "trainer/metrics.h"
#include "trainer/open_device.h"
#include "trainer/plan.h"
#include "trainer/progress_line.h"
#include "trainer/run_directory.h"
#include "trainer/run_identity.h"
#include "trainer/run_stage.h"
#include "trainer/sample_counter.h"
#include "trainer/signals.h"
#include "trainer/step_metrics.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// A model that knows nothing gives ln of the number of classes; further away than this in nats,
// something is wrong with the initial values or the data.
constexpr double kStepZeroTolerance = 1.0;
constexpr double kSecondsBetweenLines = 5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

class Run {
 public:
  Run(LoadedConfig loaded, const TrainOptions& options, Communicator* world)
      : loaded_(std::move(loaded)), options_(options), world_(world) {}

  absl::StatusOr<int> Go();

 private:
  const Config& config() const { return loaded_.config; }

  bool root() const { return world_->rank() == 0; }

  // Everything that can go wrong without a byte of the model in memory.
  absl::Status Preflight();
  absl::Status OpenData();
  // Those of train.initial_weights, where the run does not continue from a checkpoint of its own.
  absl::Status OpenWeights();
  // That all ranks run one program on one corpus.
  absl::Status CheckRanks();
  // The run's own directory: newest checkpoint, metrics, manifest.
  absl::Status Resume();
  absl::Status Build();
  absl::Status FillWeights(const std::vector<ShardedTensor>& held);
  // Of rank 0.
  absl::Status Record();
  absl::Status WriteLine(const MetricsLine& line);
  // Steps to the horizon; true when all were taken, false when the run was asked to stop.
  absl::StatusOr<bool> Steps();
  absl::Status Step(Loader& loader);
  // Lines of a stage or a pass that begins with the next step.
  absl::Status MarkBorders();
  absl::Status Evaluate(bool* stopped);
  // What the evaluation of the present weights is told.
  EvaluationMoment Moment();
  double Epoch() const;
  absl::Status Save();
  bool EvaluationIsDue() const;
  bool SaveIsDue();
  void CheckStepZero(const StepResult& result);
  void ShowProgress(const StepResult& result, double epoch);
  bool StopAsked();

  LoadedConfig loaded_;
  const TrainOptions& options_;
  Communicator* world_;
  Device* device_ = nullptr;
  std::unique_ptr<Communicator> device_world_;  // for tensors on the device
  std::unique_ptr<Mesh> mesh_;
  StopSignals signals_;
  TrainingData data_;
  LabelSample labels_;                      // with a sampled softmax
  std::map<int64_t, int64_t> pass_starts_;  // first step, pass
  std::set<int64_t> pass_evaluations_;
  std::unique_ptr<EvaluationData> evaluation_;
  std::optional<InitialWeights> weights_;
  std::unique_ptr<RunDirectory> directory_;  // of rank 0
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<TrainStep> train_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::unique_ptr<MetricsFile> metrics_;  // of rank 0
  std::unique_ptr<RunConstants> constants_;
  std::unique_ptr<SampleCounter> samples_;
  TrainingState state_;
  std::string initial_values_;
  int64_t checkpoint_bytes_ = 0;
  StepTimer timer_;
  double started_ = 0, waited_ = 0, last_line_ = 0, last_save_ = 0;
  int64_t first_step_ = 0, saved_step_ = -1;
};

absl::Status Run::Preflight() {
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
  MemoryPlan plan = PlanMemory(config(), data_.windows, mesh_->layout());
  if (evaluation_ != nullptr) plan.host += evaluation_->bytes();
  checkpoint_bytes_ = plan.checkpoint;
  memory_ = std::make_unique<Memory>(Memory::Mode::kReal, device_);
  return Agree(*world_, CheckMemoryFits(plan, options_.launch.local_size, device_));
}

absl::Status Run::OpenData() {
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

absl::Status Run::OpenWeights() {
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

absl::Status Run::CheckRanks() {
  OT_RETURN_IF_ERROR(CheckSameConfig(*world_, config()));
  OT_RETURN_IF_ERROR(
      CheckSame(*world_, "the hash of the corpus", Hex(data_.corpus->content_hash())));
  const absl::StatusOr<std::string> program = ReadFile("/proc/self/exe");
  OT_RETURN_IF_ERROR(Agree(*world_, program.status()));
  return CheckSame(*world_, "the hash of the program",
                   Hex(Xxh3(program->data(), static_cast<int64_t>(program->size()))));
}

absl::Status Run::Resume() {
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

absl::Status Run::Build() {
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

absl::Status Run::FillWeights(const std::vector<ShardedTensor>& held) {
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

absl::Status Run::WriteLine(const MetricsLine& line) {
  return root() ? metrics_->Write(line) : absl::OkStatus();
}

absl::Status Run::Record() {
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

absl::StatusOr<int> Run::Go() {
  OT_RETURN_IF_ERROR(Preflight());
  OT_RETURN_IF_ERROR(Resume());
  constants_ = std::make_unique<RunConstants>(config());
  samples_ = std::make_unique<SampleCounter>(data_.windows);
  samples_->Replay(data_.order, state_.sequences);
  const std::string& directory = config().checkpoint.directory;
  const Layout& layout = mesh_->layout();
  LogInfo(absl::StrCat(
      directory, ": ", FormatCount(static_cast<double>(constants_->parameters)), " parameters, ",
      constants_->steps, " steps of ", constants_->tokens_per_step, " tokens, ",
      FormatBytes(memory_->total()), " of memory, ",
      layout.world() == 1
          ? ""
          : absl::StrCat(layout.data, " x ", layout.tensor, " ranks (data x tensor), each "),
      state_.threads, " threads, ",
      saved_step_ < 0 ? "from the start"
                      : absl::StrCat("from the checkpoint of step ", state_.step)));
  started_ = last_save_ = Now();
  first_step_ = state_.step;
  const absl::StatusOr<bool> finished = Steps();
  if (!finished.ok()) {
    // The reason goes to the metrics as well. Where they cannot be written, the first error counts.
    MetricsLine line(state_.step, "event");
    line.Add("event", "error").Add("message", finished.status().message());
    WriteLine(line).IgnoreError();
    return finished.status();
  }
  if (!*finished) {
    const int received = signals_.received();
    LogInfo(absl::StrCat(
        "stopped by ", received == 0 ? "another rank's signal" : absl::StrCat("signal ", received),
        " after step ", state_.step, ", saved; the same command continues"));
    return kExitInterrupted;
  }
  std::string best;
  if (state_.best.has_value()) {
    best = absl::StrFormat(", best %s %.4f at step %d", state_.best->metric, state_.best->value,
                           state_.best->step);
  }
  LogInfo(absl::StrCat(directory, ": finished ", state_.step, " steps, ",
                       FormatCount(static_cast<double>(state_.tokens)), " tokens", best));
  return 0;
}

absl::StatusOr<bool> Run::Steps() {
  LoaderOptions options = data_.loader;
  options.first_step = state_.step;
  std::unique_ptr<Loader> loader;
  if (state_.step < options.end_step) {
    loader = Loader::Start(data_.corpus, data_.order, options);
  }
  bool stop = StopAsked();
  // What was due after the last completed step and did not happen before the run stopped.
  if (!stop && EvaluationIsDue()) OT_RETURN_IF_ERROR(Evaluate(&stop));
  while (!stop && state_.step < config().train.steps) {
    OT_RETURN_IF_ERROR(Step(*loader));
    stop = StopAsked();
    if (!stop && EvaluationIsDue()) OT_RETURN_IF_ERROR(Evaluate(&stop));
    OT_RETURN_IF_ERROR(saver_->Poll());
    if (SaveIsDue() && !stop) OT_RETURN_IF_ERROR(Save());
    if (options_.after_step) options_.after_step(state_.step);
    if (!stop) stop = StopAsked();
  }
  OT_RETURN_IF_ERROR(Save());
  OT_RETURN_IF_ERROR(saver_->Finish());
  return !stop;
}

bool Run::StopAsked() { return world_->Any(signals_.received() != 0); }

absl::Status Run::Step(Loader& loader) {
  OT_RETURN_IF_ERROR(MarkBorders());
  const double begin = Now(), waited_before = loader.seconds_waited();
  const absl::StatusOr<const Batch*> next = loader.Next();
  OT_RETURN_IF_ERROR(Agree(*world_, next.status()));
  const Batch* batch = *next;
  OT_ASSIGN_OR_RETURN(const StepResult result, train_->Run(*batch, state_.step));
  StepTimes times;
  times.waited = loader.seconds_waited() - waited_before;
  times.seconds = Now() - begin;
  times.peak_bytes = PeakMemory();
  timer_.Add(times.seconds);
  waited_ += times.waited;

  ++state_.step;
  state_.sequences += batch->sequences;
  state_.tokens += batch->sequences * batch->length;
  state_.ids_hash =
      Xxh3(batch->tokens.data(),
           static_cast<int64_t>(batch->tokens.size() * sizeof(batch->tokens[0])), state_.ids_hash);
  for (const int64_t window : batch->windows) samples_->Add(window);
  DataFacts data;
  data.epoch = Epoch();
  data.pass = batch->pass;
  data.distinct_samples = samples_->distinct();
  data.max_repeats = samples_->max_repeats();
  OT_RETURN_IF_ERROR(WriteLine(TrainLine(*constants_, state_, result, data, times)));
  if (result.step == 0 && !weights_.has_value()) CheckStepZero(result);
  ShowProgress(result, data.epoch);
  return absl::OkStatus();
}

absl::Status Run::MarkBorders() {
  const int64_t step = state_.step, candidates = CandidatesOfStep(config(), step);
  const bool stages = config().loss.sampled_softmax.has_value();
  if (stages && (step == 0 || candidates != CandidatesOfStep(config(), step - 1))) {
    OT_RETURN_IF_ERROR(WriteLine(StageEvent(*constants_, state_, candidates)));
  }
  const auto pass = pass_starts_.find(step);
  if (pass == pass_starts_.end()) return absl::OkStatus();
  return WriteLine(PassEvent(*constants_, state_, pass->second));
}

double Run::Epoch() const {
  return static_cast<double>(state_.sequences) / static_cast<double>(data_.order.length());
}

void Run::CheckStepZero(const StepResult& result) {
  for (const HeadResult& head : result.heads) {
    const double expected = LossOfIgnorance(config(), head);
    if (std::abs(head.loss - expected) <= kStepZeroTolerance) continue;
    LogWarning(absl::StrFormat(
        "%s of the first batch is %.3f; initial values that know nothing give ln %.0f = %.3f. "
        "Look at the data with `overtok data show --step 0`, and at the configuration's model.",
        LossTag(*constants_, head), head.loss, std::exp(expected), expected));
  }
}

void Run::ShowProgress(const StepResult& result, double epoch) {
  const double now = Now();
  const bool last = state_.step == config().train.steps;
  if (state_.step != first_step_ + 1 && !last && now - last_line_ < kSecondsBetweenLines) return;
  last_line_ = now;
  ProgressFacts facts;
  facts.step = state_.step;
  facts.steps = config().train.steps;
  facts.loss = result.loss_main;
  if (result.heads[0].sampled) facts.loss_name = "sampled loss";
  facts.gradient_norm = result.total_norm;
  facts.lr = result.lr;
  facts.step_seconds = timer_.seconds();
  if (timer_.seconds() > 0) {
    facts.tokens_per_second = static_cast<double>(constants_->tokens_per_step) / timer_.seconds();
    facts.seconds_left = timer_.seconds() * static_cast<double>(facts.steps - facts.step);
  }
  facts.memory_bytes = PeakMemory();
  facts.waiting = now > started_ ? waited_ / (now - started_) : 0;
  facts.epoch = epoch;
  LogInfo(FormatProgress(facts));
}

bool Run::EvaluationIsDue() const {
  if (evaluator_ == nullptr || state_.evaluated_step == state_.step) return false;
  const int64_t every = config().eval.every_steps, step = state_.step;
  if (step == 0) return config().eval.at_start;
  return step == config().train.steps || (every > 0 && step % every == 0) ||
         pass_evaluations_.count(step) > 0;
}

EvaluationMoment Run::Moment() {
  EvaluationMoment moment;
  if (config().model.ngram_embedding.has_value()) {
    TableSchedule& schedule = train_->optimizer().tables();
    moment.model.tables = {schedule.rule(), schedule.At(state_.step)};
    if (state_.step > 0) {
      moment.model.pass = data_.order.StepPass((state_.step - 1) * config().train.batch_sequences);
    }
  }
  if (HasAdjustedCurve(config()) && BehindSampledStage(config(), state_.step)) {
    moment.log_inclusion = LogInclusion(labels_, CandidatesBehind(config(), state_.step));
  }
  return moment;
}

absl::Status Run::Evaluate(bool* stopped) {
  const double begin = Now();
  const absl::StatusOr<EvaluationScores> scores =
      evaluator_->Run(train_->context(), *evaluation_, Moment(), [this] { return StopAsked(); });
  if (absl::IsCancelled(scores.status())) {
    *stopped = true;
    return absl::OkStatus();
  }
  if (!scores.ok()) return scores.status();
  state_.evaluated_step = state_.step;
  const bool sampled = BehindSampledStage(config(), state_.step);
  if (const CollectionScore* primary = scores->primary()) {
    const double loss = primary->macro_loss();
    // Behind a sampled stage the full softmax is worse than the weights deserve, and no candidate
    // for the best. A loss that is not a number is never the best.
    if (!sampled && std::isfinite(loss) &&
        (!state_.best.has_value() || loss < state_.best->value)) {
      state_.best = BestValue{primary->macro_tag(), loss, state_.step};
    }
    LogInfo(absl::StrFormat("step %d: %s %.4f over %d sets, %s%s", state_.step,
                            primary->macro_tag(), loss, primary->subsets.size(),
                            FormatDuration(Now() - begin), sampled ? ", in a sampled stage" : ""));
  }
  return WriteLine(
      EvalLine(*constants_, state_, *scores, Epoch(), CandidatesBehind(config(), state_.step)));
}

bool Run::SaveIsDue() {
  const CheckpointConfig& checkpoint = config().checkpoint;
  if (checkpoint.every_steps > 0 && state_.step % checkpoint.every_steps == 0) return true;
  const bool late =
      checkpoint.every_minutes > 0 && Now() - last_save_ >= 60 * checkpoint.every_minutes;
  return world_->Any(late);
}

absl::Status Run::Save() {
  if (saved_step_ == state_.step) return absl::OkStatus();
  if (root()) {
    OT_RETURN_IF_ERROR(metrics_->Sync());
    state_.metrics_bytes = metrics_->bytes();
  }
  OT_RETURN_IF_ERROR(saver_->Save(state_));
  saved_step_ = state_.step;
  last_save_ = Now();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> Train(LoadedConfig loaded, const TrainOptions& options, Communicator* world) {
  Run run(std::move(loaded), options, world);
  return run.Go();
}

}  // namespace overtok
