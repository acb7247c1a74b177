#!/bin/bash
# --arm as a person gives it: files over the configuration, overrides over both, in any place of the
# command line. Usage: arms_command_line_test.sh PROGRAM SOURCE_DIRECTORY
set -u
program=$1
cd "$2/configs" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
failures=0

# prints PART COMMAND...: exit code 0 and PART in the output
prints() {
  local part=$1
  shift
  if ! "$program" "$@" > "$log" 2>&1 || ! grep -qF -- "$part" "$log"; then
    echo "FAILED: \"$part\" expected of: $* $(head -c 2000 "$log")"
    failures=$((failures + 1))
  fi
}
# refuses PART COMMAND...: non-zero exit code and PART in the output
refuses() {
  local part=$1
  shift
  if "$program" "$@" > "$log" 2>&1 || ! grep -qF -- "$part" "$log"; then
    echo "FAILED: \"$part\" expected as an error of: $* $(head -c 2000 "$log")"
    failures=$((failures + 1))
  fi
}

prints "ngram_embedding: null" config show recipes/130m.yaml
prints "rows: 12800000" config show recipes/130m.yaml --arm arms/oe.yaml
prints "rows: 77" config show recipes/130m.yaml --arm arms/oe.yaml model.ngram_embedding.rows=77
prints "rows: 77" config show --arm arms/oe.yaml recipes/130m.yaml model.ngram_embedding.rows=77
prints "rows: 1280000" config show recipes/130m.yaml --arm arms/ot_h_ss.yaml --arm=arms/small_tables.yaml
prints "candidates: 24576" config show recipes/130m.yaml --arm arms/ot_h_ss.yaml --arm=arms/small_tables.yaml
prints "the methods add" plan quickstart.yaml train.batch_sequences=2 --arm arms/head2_only.yaml
refuses "24576 candidates are more than the 16384 classes" plan quickstart.yaml --arm arms/ss.yaml
refuses "arms/none.yaml" train quickstart.yaml --arm arms/none.yaml
exit $((failures > 0))
