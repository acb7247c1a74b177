// The one way overtok writes files that must survive a crash: to a temporary name, fsync, rename,
// fsync of the directory. Every step passes a fault hook, so that tests can fail or kill the
// process at each write point.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// Called as hook(operation, path) with operation "open", "write", "fsync", "rename" or "remove"
// before it is carried out; a non-OK status makes the operation fail with it. Tests set it; null
// (the default) costs one branch.
using FileFaultHook =
    std::function<absl::Status(absl::string_view operation, absl::string_view path)>;
void SetFileFaultHook(FileFaultHook hook);
absl::Status RunFileFaultHook(absl::string_view operation, absl::string_view path);

// The whole file; errors name the path and the reason. `limit` guards against reading a corpus by
// mistake.
absl::StatusOr<std::string> ReadFile(absl::string_view path, int64_t limit = int64_t{1} << 32);

// Replaces `path` by `contents` atomically (temporary name beside it, fsync, rename, fsync of the
// directory).
absl::Status WriteFileAtomically(absl::string_view path, absl::string_view contents);

absl::Status FsyncFile(absl::string_view path);
absl::Status FsyncDirectory(absl::string_view path);
absl::Status RenamePath(absl::string_view from,
                        absl::string_view to);  // and fsync of the parent directory
absl::Status CreateDirectories(absl::string_view path);
absl::Status RemoveTree(absl::string_view path);  // OK when it does not exist

bool PathExists(absl::string_view path);
bool IsDirectory(absl::string_view path);
absl::StatusOr<int64_t> FileSize(absl::string_view path);
std::string JoinPath(absl::string_view directory, absl::string_view name);

// Entries of a directory (names, not paths) in natural order: shard_2 before shard_10.
absl::StatusOr<std::vector<std::string>> ListDirectory(absl::string_view path);
bool NaturalLess(absl::string_view a, absl::string_view b);
// Paths that match a glob pattern (*, ?, [..]), natural order. A pattern that matches nothing is a
// NotFound error.
absl::StatusOr<std::vector<std::string>> Glob(absl::string_view pattern);

// Errors with the number of free and needed bytes when the file system that holds `path` has less
// than `needed` free.
absl::Status CheckFreeSpace(absl::string_view path, int64_t needed);

}  // namespace overtok
