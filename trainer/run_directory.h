// The directory of a run (checkpoint.directory): config.yaml (resolved), manifest.json,
// metrics.jsonl, checkpoints/ and a lock that one process holds while it trains there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// What manifest.json says about one start of the run, beside time, host, process and versions.
struct RunFacts {
  int64_t from_step = 0;
  std::string config_sha256;  // of the resolved config.yaml
  std::string precision, device;
  int threads = 0;                       // of a rank
  std::string launcher = "none";         // none, mpirun, srun
  int data_ranks = 1, tensor_ranks = 1;  // the mesh
  std::string initial_values;  // hash of all initial values; empty: not known at this start
  // Hashes and sizes of corpus and evaluation sets, by name.
  std::vector<std::pair<std::string, std::string>> data, evaluation;
};

class RunDirectory {
 public:
  // Creates the directory where needed and takes its lock; another process that holds it is an
  // error naming its id. `fresh`: a directory that holds any part of a run is refused.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Open(absl::string_view path, bool fresh);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory();  // gives the lock back, as the end of the process does

  const std::string& path() const { return path_; }
  static std::string ConfigOf(absl::string_view run);
  static std::string ManifestOf(absl::string_view run);
  static std::string MetricsOf(absl::string_view run);
  static std::string CheckpointsOf(absl::string_view run);

  // Replaces config.yaml.
  absl::Status WriteConfig(absl::string_view resolved_yaml) const;
  // Appends a start to manifest.json. What is known from the first start stays known.
  absl::Status RecordStart(const RunFacts& facts) const;

 private:
  RunDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;  // file descriptor
};

}  // namespace overtok
