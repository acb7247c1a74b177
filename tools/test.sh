#!/usr/bin/env bash
# Everything the tests need, on a bare machine: dependencies, format check, build, ctest.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/test.sh [--preset NAME] [--no-install] [CTEST_ARGUMENT...]
  --preset NAME  a preset of CMakePresets.json: release (default), debug, clang, asan, tsan
  --no-install   do not look for missing packages
Results: build/NAME/test_results.xml (JUnit).
USAGE
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
install=1
while [[ $# -gt 0 ]]; do
  case "$1" in
    --preset)
      [[ $# -ge 2 ]] || { echo "test.sh: --preset needs a name" >&2; exit 2; }
      preset="$2"; shift 2 ;;
    --no-install) install=0; shift ;;
    -h | --help) usage; exit 0 ;;
    *) break ;;
  esac
done

step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

if [[ $install -eq 1 ]]; then
  step "dependencies"
  case "$preset" in
    clang | tsan) tools/install_dependencies.sh --lint ;;
    *) tools/install_dependencies.sh --tests ;;
  esac
fi

step "format"
# One version of clang-format decides; others differ in details.
formatter=""
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then formatter="$name"; break; fi
done
if [[ -z "$formatter" ]]; then
  echo "clang-format 14 was not found: the format check is left out (run tools/install_dependencies.sh --tests)"
elif [[ "$(git rev-parse --is-inside-work-tree 2>/dev/null)" == true ]]; then
  git ls-files -z -- '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 -r "$formatter" --dry-run -Werror
  echo "clean"
else
  echo "not a git checkout: the format check is left out"
fi

step "configure and build ($preset)"
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset "$preset" -DOVERTOK_TESTS=ON "${launcher[@]}"
cmake --build "build/$preset"

step "test ($preset)"
results="$PWD/build/$preset/test_results.xml"
rm -f "$results"
# Several test programs share the cores: waiting threads must sleep, not spin.
export OMP_WAIT_POLICY=passive
# Open MPI refuses root without these; containers and CI machines have no other user.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# System libraries are not instrumented; without this the thread sanitizer reports their locks as races.
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 ${TSAN_OPTIONS:-}"
CUDA_VISIBLE_DEVICES= ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$(nproc)" \
  --output-junit "$results" "$@"
step "done: all tests of $preset passed"
