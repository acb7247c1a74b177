#!/usr/bin/env bash
# From a fresh clone to report.html: dependencies, build, a small corpus of Debian texts, a tokenizer, a training run of
# the baseline, the same run with n-gram tables, a second head and sampled softmax, and a report that compares the two.
# Takes minutes on two cores. Run it again after an interruption: finished steps are skipped.
# usage: tools/quickstart.sh [key.path=value...]    (overrides for both training runs, as `overtok train` takes them)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  sed -n '2,5s/^# //p' tools/quickstart.sh
  exit 0
fi

step_start=0
begin() { printf '\n== %s\n' "$1" >&2; step_start=$SECONDS; }
finish() { printf '   %s, %d s\n' "${1:-done}" "$((SECONDS - step_start))" >&2; }

overtok=build/release/overtok
corpus=corpus/mini

begin "1/8 dependencies"
tools/install_dependencies.sh --quickstart
finish

begin "2/8 build ($overtok)"
settings=()
if [[ ! -f build/release/CMakeCache.txt ]]; then
  settings+=(-DOVERTOK_TESTS=OFF)  # the tests' libraries are not needed here
  if ! { command -v nvidia-smi && nvidia-smi -L; } >/dev/null 2>&1; then settings+=(-DOVERTOK_CUDA=OFF); fi
  if command -v ccache >/dev/null; then
    settings+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
fi
cmake --preset release "${settings[@]}" >/dev/null
cmake --build build/release --target overtok
finish

begin "3/8 corpus ($corpus)"
if [[ -f $corpus/manifest.json ]]; then
  finish "there already"
else
  python3 tools/build_corpus.py mini --out "$corpus"
  finish
fi

begin "4/8 tokenizer ($corpus/tokenizer.json)"
if [[ $corpus/tokenizer.json -nt $corpus/manifest.json ]]; then
  finish "there already"
else
  "$overtok" tokenizer train --vocab-size 16384 --out "$corpus/tokenizer.json" "$corpus"/train/*.jsonl.gz
  finish
fi

begin "5/8 tokens ($corpus/tokens)"
if [[ -d $corpus/tokens && $corpus/tokens -nt $corpus/tokenizer.json ]]; then
  finish "there already"
else
  # Under another name until all files are there.
  rm -rf "$corpus/tokens.partial"
  "$overtok" tokenize --tokenizer "$corpus/tokenizer.json" --out "$corpus/tokens.partial" "$corpus"/train/*.jsonl.gz
  rm -rf "$corpus/tokens"
  mv "$corpus/tokens.partial" "$corpus/tokens"
  touch "$corpus/tokens"
  finish
fi

begin "6/8 training and evaluation of the baseline (runs/quickstart)"
"$overtok" train configs/quickstart.yaml "$@"
finish

begin "7/8 the same with the methods (runs/quickstart_ot_h_ss)"
"$overtok" train configs/quickstart_ot_h_ss.yaml "$@"
finish

begin "8/8 report"
"$overtok" report runs/quickstart runs/quickstart_ot_h_ss --out report.html
finish "$PWD/report.html"

printf '\nquickstart finished in %d s: open %s\n' "$SECONDS" "$PWD/report.html" >&2
