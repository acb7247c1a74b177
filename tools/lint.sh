#!/usr/bin/env bash
# clang-tidy (checks of .clang-tidy, any finding is an error) over the project's sources.
# usage: tools/lint.sh [FILE.cc...]; without arguments every tracked source that the build compiles.
set -euo pipefail

start="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tidy=""
for name in clang-tidy-14 clang-tidy; do
  if command -v "$name" >/dev/null; then tidy="$name"; break; fi
done
if [[ -z "$tidy" ]]; then
  echo "lint.sh: clang-tidy was not found; run tools/install_dependencies.sh --lint" >&2
  exit 1
fi
# Configuring is enough for the list of commands; clang's own flags suit clang-tidy better than gcc's.
cmake --preset clang -DOVERTOK_TESTS=ON >/dev/null
database=build/clang/compile_commands.json

files=()
if [[ $# -gt 0 ]]; then
  for file in "$@"; do files+=("$(realpath --relative-to=. "$(cd "$start" && realpath "$file")")"); done
else
  mapfile -t files < <(git ls-files -- '*.cc')
fi
compiled=()
for file in "${files[@]}"; do
  if grep -qF "\"file\": \"$PWD/$file\"" "$database"; then
    compiled+=("$file")
  elif [[ $# -gt 0 ]]; then
    echo "lint.sh: $file is not compiled by the clang preset" >&2
    exit 1
  fi
done
echo "lint: ${#compiled[@]} files with $tidy"
printf '%s\0' "${compiled[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tidy" -p build/clang --quiet
echo "lint: clean"
