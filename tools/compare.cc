// `overtok compare`: two traces of the same configuration (docs/formats/trace.md) held against each
// other, as those of two devices. Data and candidate sets must be equal, initial values too;
// losses, gradients and updates may differ by a share that the caller gives. One tensor of each
// file is in memory at a time, and the values before an update.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/io/hdf5.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::string reference, other;
  double loss = 1e-3, gradient = 0.03, update = 0.1;
  bool json = false;
};

// The largest difference of one kind, and where.
struct Worst {
  double allowed = 0, difference = 0;
  std::string where = "nothing";
  int64_t compared = 0, failed = 0;

  void Add(double value, const std::string& at) {
    ++compared;
    if (!(value <= allowed)) ++failed;  // also NaN
    if (compared > 1 && !(value > difference) && !std::isnan(value)) return;
    difference = std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
    where = at;
  }
};

class Comparison {
 public:
  Comparison(const Arguments& arguments, Hdf5File reference, Hdf5File other)
      : reference_(std::move(reference)), other_(std::move(other)) {
    loss_.allowed = arguments.loss;
    gradient_.allowed = arguments.gradient;
    update_.allowed = arguments.update;
  }

  absl::Status Run() {
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> steps, SameNames("/"));
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> parameters, SameNames("/init"));
    for (const std::string& name : parameters) OT_RETURN_IF_ERROR(Equal("/init/" + name));
    std::string before = "/init/";
    for (const std::string& step : steps) {
      if (step == "init") continue;
      const std::string group = "/" + step;
      for (const char* name : {"loss", "loss_main", "loss_head2", "loss_gram2", "loss_gram3"})
        OT_RETURN_IF_ERROR(Loss(group, name));
      for (const char* name : {"tokens", "segments", "loss_weight", "block"})
        OT_RETURN_IF_ERROR(Equal(absl::StrCat(group, "/", name)));
      OT_RETURN_IF_ERROR(Candidates(group + "/candidates"));
      for (const std::string& name : parameters) {
        OT_RETURN_IF_ERROR(Gradient(absl::StrCat(group, "/grads/", name)));
        OT_RETURN_IF_ERROR(Update(before + name, absl::StrCat(group, "/params/", name)));
      }
      before = group + "/params/";
    }
    if (gradient_.compared == 0)
      return absl::InvalidArgumentError(reference_.path() + " holds no step: it is no trace");
    return absl::OkStatus();
  }

  bool passed() const {
    return different_.empty() && loss_.failed + gradient_.failed + update_.failed == 0;
  }

  void Print(bool json) const {
    const struct {
      const char* name;
      const Worst& worst;
    } kinds[] = {{"loss", loss_}, {"gradient", gradient_}, {"update", update_}};
    if (json) {
      nlohmann::ordered_json all;
      all["passed"] = passed();
      all["unequal"] = different_;
      for (const auto& [name, worst] : kinds) {
        all[name] = {{"largest", worst.difference},
                     {"allowed", worst.allowed},
                     {"where", worst.where},
                     {"compared", worst.compared},
                     {"failed", worst.failed}};
      }
      std::printf("%s\n", all.dump().c_str());
      return;
    }
    for (const std::string& name : different_) std::printf("not equal: %s\n", name.c_str());
    for (const auto& [name, worst] : kinds) {
      std::printf("%-9s largest difference %.3e of %.1e allowed, %s (%lld compared, %lld failed)\n",
                  name, worst.difference, worst.allowed, worst.where.c_str(),
                  static_cast<long long>(worst.compared), static_cast<long long>(worst.failed));
    }
    std::printf("%s\n", passed() ? "passed" : "FAILED");
  }

 private:
  absl::StatusOr<std::vector<std::string>> SameNames(const std::string& group) const {
    OT_ASSIGN_OR_RETURN(std::vector<std::string> names, reference_.List(group));
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> others, other_.List(group));
    if (names != others) {
      return absl::InvalidArgumentError(
          absl::StrCat(group, " holds ", names.size(), " objects in ", reference_.path(), " and ",
                       others.size(), " in ", other_.path(),
                       ", or others: traces of one configuration and as many steps are compared"));
    }
    return names;
  }

  // The bytes of a dataset.
  static absl::StatusOr<std::vector<char>> Bytes(const Hdf5File& file, const std::string& name) {
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file.Info(name));
    int64_t elements = 1;
    for (const int64_t dim : info.shape) elements *= dim;
    std::vector<char> bytes(static_cast<size_t>(elements * SizeOf(info.dtype)));
    if (elements > 0)
      OT_RETURN_IF_ERROR(file.Read(name, Tensor(bytes.data(), info.dtype, Shape{elements})));
    return bytes;
  }
  static absl::StatusOr<std::vector<float>> Floats(const Hdf5File& file, const std::string& name) {
    OT_ASSIGN_OR_RETURN(const Hdf5DatasetInfo info, file.Info(name));
    int64_t elements = 1;
    for (const int64_t dim : info.shape) elements *= dim;
    std::vector<float> values(static_cast<size_t>(elements));
    OT_RETURN_IF_ERROR(file.Read(name, Tensor(values.data(), Shape{elements})));
    return values;
  }

  absl::Status Equal(const std::string& name) {
    OT_ASSIGN_OR_RETURN(const std::vector<char> a, Bytes(reference_, name));
    OT_ASSIGN_OR_RETURN(const std::vector<char> b, Bytes(other_, name));
    if (a != b) different_.push_back(name);
    return absl::OkStatus();
  }

  absl::Status Candidates(const std::string& group) {
    if (!reference_.Exists(group) && !other_.Exists(group)) return absl::OkStatus();
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> heads, SameNames(group));
    for (const std::string& head : heads) {
      const std::string sets = absl::StrCat(group, "/", head);
      OT_ASSIGN_OR_RETURN(const std::vector<std::string> blocks, SameNames(sets));
      for (const std::string& block : blocks)
        OT_RETURN_IF_ERROR(Equal(absl::StrCat(sets, "/", block)));
    }
    return absl::OkStatus();
  }

  absl::Status Loss(const std::string& group, const char* name) {
    if (!reference_.HasAttribute(group, name)) return absl::OkStatus();
    OT_ASSIGN_OR_RETURN(const double a, reference_.GetDouble(group, name));
    OT_ASSIGN_OR_RETURN(const double b, other_.GetDouble(group, name));
    loss_.Add(std::abs(a - b) / std::abs(a), absl::StrCat(group, " ", name));
    return absl::OkStatus();
  }

  // |a - b| / |scale|; 0 where a and b are the same, infinite where only scale is 0.
  static double Share(const std::vector<float>& a, const std::vector<float>& b,
                      const std::vector<float>& from) {
    double apart = 0, scale = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double difference = double{a[i]} - double{b[i]};
      const double length = double{a[i]} - (from.empty() ? 0.0 : double{from[i]});
      apart += difference * difference;
      scale += length * length;
    }
    return apart == 0 ? 0 : std::sqrt(apart / scale);
  }

  absl::Status Gradient(const std::string& name) {
    OT_ASSIGN_OR_RETURN(const std::vector<float> a, Floats(reference_, name));
    OT_ASSIGN_OR_RETURN(const std::vector<float> b, Floats(other_, name));
    if (a.size() != b.size()) return absl::InvalidArgumentError(name + " differs in size");
    gradient_.Add(Share(a, b, {}), name);
    return absl::OkStatus();
  }

  // The way that the parameter went: each file from its own values before.
  absl::Status Update(const std::string& before, const std::string& after) {
    OT_ASSIGN_OR_RETURN(const std::vector<float> from, Floats(reference_, before));
    OT_ASSIGN_OR_RETURN(const std::vector<float> to, Floats(reference_, after));
    OT_ASSIGN_OR_RETURN(std::vector<float> other, Floats(other_, after));
    OT_ASSIGN_OR_RETURN(const std::vector<float> other_from, Floats(other_, before));
    if (to.size() != other.size()) return absl::InvalidArgumentError(after + " differs in size");
    for (size_t i = 0; i < other.size(); ++i) other[i] = from[i] + (other[i] - other_from[i]);
    update_.Add(Share(to, other, from), after);
    return absl::OkStatus();
  }

  Hdf5File reference_, other_;
  Worst loss_, gradient_, update_;
  std::vector<std::string> different_;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(Hdf5File reference, Hdf5File::OpenRead(arguments.reference));
  OT_ASSIGN_OR_RETURN(Hdf5File other, Hdf5File::OpenRead(arguments.other));
  Comparison comparison(arguments, std::move(reference), std::move(other));
  OT_RETURN_IF_ERROR(comparison.Run());
  comparison.Print(arguments.json);
  return comparison.passed() ? 0 : 1;
}

}  // namespace

void AddCompare(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.Add(
      "compare", "Hold one trace against another, as of two devices; 1 when they differ",
      [arguments] { return Run(*arguments); });
  command->add_option("reference", arguments->reference, "Trace that counts as right")->required();
  command->add_option("other", arguments->other, "Trace of the same configuration")->required();
  command->add_option("--loss", arguments->loss, "Relative difference of losses allowed")
      ->capture_default_str();
  command
      ->add_option("--gradient", arguments->gradient,
                   "Length of a gradient's difference allowed, over the gradient's")
      ->capture_default_str();
  command
      ->add_option("--update", arguments->update,
                   "Length of an update's difference allowed, over the update's")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object");
}

}  // namespace overtok
