#include "trainer/train_loop.h"

#include <chrono>
#include <cmath>

#include "absl/strings/str_format.h"
#include "core/comm/agreement.h"
#include "core/console.h"
#include "core/io/hash.h"
#include "trainer/machine.h"
#include "trainer/progress_line.h"
#include "trainer/run_stage.h"
#include "trainer/train_run.h"

namespace overtok {
namespace {

// A model that knows nothing gives ln of the number of classes; further away than this in nats,
// something is wrong with the initial values or the data.
constexpr double kStepZeroTolerance = 1.0;
constexpr double kSecondsBetweenLines = 5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::Status TrainRun::WriteLine(const MetricsLine& line) {
  return root() ? metrics_->Write(line) : absl::OkStatus();
}

absl::StatusOr<int> TrainRun::Go() {
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

absl::StatusOr<bool> TrainRun::Steps() {
  LoaderOptions options = data_.loader;
  options.first_step = next_step_ = state_.step;
  ids_hash_ = state_.ids_hash;
  std::unique_ptr<Loader> loader;
  if (state_.step < options.end_step) {
    loader = Loader::Start(data_.corpus, data_.order, options);
  }
  bool stop = StopAsked();
  // What was due after the last completed step and did not happen before the run stopped.
  if (!stop && EvaluationIsDue(state_.step)) OT_RETURN_IF_ERROR(Evaluate(&stop));
  step_began_ = Now();
  while (!stop && state_.step < config().train.steps) {
    if (train_->open() == 0) OT_RETURN_IF_ERROR(Ask(*loader));
    // An error of the next batch waits until the step before it is written down.
    const absl::Status ahead = MayAskAhead() ? Ask(*loader) : absl::OkStatus();
    OT_RETURN_IF_ERROR(Collect());
    OT_RETURN_IF_ERROR(ahead);
    stop = StopAsked();
    const bool save = SaveIsDue();
    if (train_->open() > 0 && (stop || save)) OT_RETURN_IF_ERROR(Collect());
    OT_RETURN_IF_ERROR(saver_->Poll());
    if (train_->open() == 0) {
      const double paused = Now();
      if (!stop && EvaluationIsDue(state_.step)) OT_RETURN_IF_ERROR(Evaluate(&stop));
      if (save && !stop) OT_RETURN_IF_ERROR(Save());
      step_began_ += Now() - paused;
    }
    if (options_.after_step) options_.after_step(state_.step);
    if (!stop) stop = StopAsked();
    if (stop && train_->open() > 0) OT_RETURN_IF_ERROR(Collect());
  }
  OT_RETURN_IF_ERROR(Save());
  OT_RETURN_IF_ERROR(saver_->Finish());
  return !stop;
}

bool TrainRun::StopAsked() { return world_->Any(signals_.received() != 0); }

absl::Status TrainRun::Ask(Loader& loader) {
  const double waited_before = loader.seconds_waited();
  const absl::StatusOr<const Batch*> next = loader.Next();
  OT_RETURN_IF_ERROR(Agree(*world_, next.status()));
  const Batch& batch = **next;
  OT_RETURN_IF_ERROR(train_->Start(batch, next_step_));
  AskedStep& asked = asked_[static_cast<size_t>(next_step_) % asked_.size()];
  asked.waited = loader.seconds_waited() - waited_before;
  asked.windows.assign(batch.windows.begin(), batch.windows.end());
  asked.sequences = batch.sequences;
  asked.tokens = batch.sequences * batch.length;
  asked.pass = batch.pass;
  ids_hash_ = Xxh3(batch.tokens.data(),
                   static_cast<int64_t>(batch.tokens.size() * sizeof(batch.tokens[0])), ids_hash_);
  asked.ids_hash = ids_hash_;
  ++next_step_;
  return absl::OkStatus();
}

bool TrainRun::MayAskAhead() const {
  const int64_t step = state_.step + 1;
  return train_->works_behind() && train_->open() == 1 && step < config().train.steps &&
         !EvaluationIsDue(step) && !SaveIsDueBySteps(step);
}

absl::Status TrainRun::Collect() {
  OT_RETURN_IF_ERROR(MarkBorders());
  OT_ASSIGN_OR_RETURN(const StepResult result, train_->Finish());
  const AskedStep& asked = asked_[static_cast<size_t>(state_.step) % asked_.size()];
  const double now = Now();
  StepTimes times;
  times.waited = asked.waited;
  times.seconds = now - step_began_;
  step_began_ = now;
  times.peak_bytes = PeakMemory();
  timer_.Add(times.seconds);
  waited_ += times.waited;

  ++state_.step;
  state_.sequences += asked.sequences;
  state_.tokens += asked.tokens;
  state_.ids_hash = asked.ids_hash;
  for (const int64_t window : asked.windows) samples_->Add(window);
  DataFacts data;
  data.epoch = Epoch();
  data.pass = asked.pass;
  data.distinct_samples = samples_->distinct();
  data.max_repeats = samples_->max_repeats();
  OT_RETURN_IF_ERROR(WriteLine(TrainLine(*constants_, state_, result, data, times)));
  if (result.step == 0 && !weights_.has_value()) CheckStepZero(result);
  ShowProgress(result, data.epoch);
  return absl::OkStatus();
}

absl::Status TrainRun::MarkBorders() {
  const int64_t step = state_.step, candidates = CandidatesOfStep(config(), step);
  const bool stages = config().loss.sampled_softmax.has_value();
  if (stages && (step == 0 || candidates != CandidatesOfStep(config(), step - 1))) {
    OT_RETURN_IF_ERROR(WriteLine(StageEvent(*constants_, state_, candidates)));
  }
  const auto pass = pass_starts_.find(step);
  if (pass == pass_starts_.end()) return absl::OkStatus();
  return WriteLine(PassEvent(*constants_, state_, pass->second));
}

double TrainRun::Epoch() const {
  return static_cast<double>(state_.sequences) / static_cast<double>(data_.order.length());
}

void TrainRun::CheckStepZero(const StepResult& result) {
  for (const HeadResult& head : result.heads) {
    const double expected = LossOfIgnorance(config(), head);
    if (std::abs(head.loss - expected) <= kStepZeroTolerance) continue;
    LogWarning(absl::StrFormat(
        "%s of the first batch is %.3f; initial values that know nothing give ln %.0f = %.3f. "
        "Look at the data with `overtok data show --step 0`, and at the configuration's model.",
        LossTag(*constants_, head), head.loss, std::exp(expected), expected));
  }
}

void TrainRun::ShowProgress(const StepResult& result, double epoch) {
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

bool TrainRun::EvaluationIsDue(int64_t step) const {
  if (evaluator_ == nullptr || state_.evaluated_step == step) return false;
  const int64_t every = config().eval.every_steps;
  if (step == 0) return config().eval.at_start;
  return step == config().train.steps || (every > 0 && step % every == 0) ||
         pass_evaluations_.count(step) > 0;
}

EvaluationMoment TrainRun::Moment() {
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

absl::Status TrainRun::Evaluate(bool* stopped) {
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

bool TrainRun::SaveIsDueBySteps(int64_t step) const {
  const int64_t every = config().checkpoint.every_steps;
  return every > 0 && step % every == 0;
}

bool TrainRun::SaveIsDue() {
  const CheckpointConfig& checkpoint = config().checkpoint;
  if (SaveIsDueBySteps(state_.step)) return true;
  const bool late =
      checkpoint.every_minutes > 0 && Now() - last_save_ >= 60 * checkpoint.every_minutes;
  return world_->Any(late);
}

absl::Status TrainRun::Save() {
  if (saved_step_ == state_.step) return absl::OkStatus();
  if (root()) {
    OT_RETURN_IF_ERROR(metrics_->Sync());
    state_.metrics_bytes = metrics_->bytes();
  }
  train_->parameters().Settle(train_->context());
  OT_RETURN_IF_ERROR(saver_->Save(state_));
  saved_step_ = state_.step;
  last_save_ = Now();
  return absl::OkStatus();
}

absl::StatusOr<int> Train(LoadedConfig loaded, const TrainOptions& options, Communicator* world) {
  TrainRun run(std::move(loaded), options, world);
  return run.Go();
}

}  // namespace overtok
