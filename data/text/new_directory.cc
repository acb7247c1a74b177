#include "data/text/new_directory.h"

#include <vector>

#include "core/io/files.h"

namespace overtok {

absl::Status FillNewDirectory(std::string out,
                              const std::function<absl::Status(const std::string&)>& fill) {
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  if (PathExists(out)) {
    const absl::StatusOr<std::vector<std::string>> names = ListDirectory(out);
    if (!names.ok() || !names->empty()) {
      return absl::AlreadyExistsError(absl::StrCat(
          out, " exists already and is not an empty directory; choose another, or remove it"));
    }
  }
  const std::string partial = out + ".partial";
  OT_RETURN_IF_ERROR(RemoveTree(partial));  // of a run that was killed
  absl::Status status = fill(partial);
  if (status.ok()) status = RenamePath(partial, out);
  // The first error is the one to report; what is left has a name that says so.
  if (!status.ok()) RemoveTree(partial).IgnoreError();
  return status;
}

}  // namespace overtok
