# Sourced by tests that call the program as a person does: a folder of their own that goes at the
# end, and checks of exit codes and messages. Expects $1 to be the program; sets program, work,
# failures, and changes to the folder.
set -u
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}
# succeeds WHAT COMMAND...: exit code 0; output in ./log
succeeds() {
  local what=$1
  shift
  "$@" > log 2>&1 || fail "$what: exit code $?: $(cat log)"
}
# refuses WHAT PART COMMAND...: non-zero exit code and PART in the output
refuses() {
  local what=$1 part=$2
  shift 2
  if "$@" > log 2>&1; then fail "$what: exit code 0"; fi
  grep -qF -- "$part" log || fail "$what: \"$part\" is not in: $(cat log)"
}
says() {
  grep -qF -- "$1" log || fail "\"$1\" is not in: $(cat log)"
}
