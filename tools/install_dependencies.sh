#!/usr/bin/env bash
# Installs what overtok is built from, with apt (Debian 12, Ubuntu 22.04 and 24.04), as root or through sudo.
# Asks apt only for what is missing, so a second run needs neither network nor privileges.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/install_dependencies.sh [--quickstart | --tests | --lint]
  (nothing)     what the program and its tests are built from
  --quickstart  what the program alone is built from
  --tests       also what tools/test.sh runs (format check)
  --lint        also clang, clang-tidy and clang's OpenMP: the clang and tsan presets and tools/lint.sh
USAGE
}

# The names of cmake/dependencies.cmake's messages, and the tools that build with them.
program=(g++ cmake ninja-build git ca-certificates pkg-config python3
         libabsl-dev libboost-context-dev libcli11-dev libeigen3-dev libhdf5-dev libhwy-dev libopenmpi-dev libpcre2-dev
         librandom123-dev libsimdjson-dev libssl-dev libutf8proc-dev libxxhash-dev libyaml-cpp-dev libzstd-dev nlohmann-json3-dev
         zlib1g-dev)
tests=(libbenchmark-dev libgmock-dev libgtest-dev openmpi-bin)
lint=(clang clang-tidy libomp-dev)
# Used where the distribution has them: oneDNN (Eigen multiplies otherwise), the compiler cache, and the one version of
# clang-format and clang-tidy that decides.
optional=(libdnnl-dev ccache)

wanted=("${program[@]}")
case "${1:-}" in
  "") wanted+=("${tests[@]}") ;;
  --quickstart) ;;
  --tests) wanted+=("${tests[@]}"); optional+=(clang-format-14) ;;
  --lint) wanted+=("${tests[@]}" "${lint[@]}"); optional+=(clang-format-14 clang-tidy-14) ;;
  -h | --help) usage; exit 0 ;;
  *) echo "install_dependencies.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
esac
if [[ $# -gt 1 ]]; then
  echo "install_dependencies.sh: one argument at most, got $#" >&2
  exit 2
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install_dependencies.sh: apt-get was not found; on this system install the equivalents of:" >&2
  echo "  ${wanted[*]} ${optional[*]}" >&2
  exit 1
fi

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

missing=()
for package in "${wanted[@]}"; do
  installed "$package" || missing+=("$package")
done
missing_optional=()
for package in "${optional[@]}"; do
  installed "$package" || missing_optional+=("$package")
done
if [[ ${#missing[@]} -eq 0 && ${#missing_optional[@]} -eq 0 ]]; then
  echo "dependencies: all ${#wanted[@]} packages are installed"
  exit 0
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  if command -v sudo >/dev/null; then
    as_root=(sudo)
  elif [[ ${#missing[@]} -eq 0 ]]; then
    echo "dependencies: optional ${missing_optional[*]} left out (neither root nor sudo)"
    exit 0
  else
    echo "install_dependencies.sh: not root, and sudo was not found; have an administrator install:" >&2
    echo "  ${missing[*]}" >&2
    exit 1
  fi
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@"; }

echo "dependencies: installing ${missing[*]} ${missing_optional[*]}"
if ! apt update >/dev/null; then
  echo "dependencies: 'apt-get update' failed; trying with the package lists that are here" >&2
fi
available=()
for package in "${missing_optional[@]}"; do
  if apt-cache show "$package" >/dev/null 2>&1; then
    available+=("$package")
  else
    echo "dependencies: optional $package is not in this distribution; going on without it"
  fi
done
if [[ ${#missing[@]} -gt 0 || ${#available[@]} -gt 0 ]]; then
  log="$(mktemp)"
  if ! apt install -y --no-install-recommends "${missing[@]}" "${available[@]}" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "install_dependencies.sh: apt-get install failed; its whole output is in $log" >&2
    exit 1
  fi
  rm -f "$log"
fi
echo "dependencies: installed"
