#!/usr/bin/env bash
# Makes build/bundle/overtok-VERSION-ARCH.tar.xz: the program and the op tests with every library they need, the C
# library and its loader among them, so that they start on any Linux of this architecture with glibc 2.28 or later, or
# without one. No library of CUDA is inside: the driver's libcuda, cuBLASLt, NCCL and cuDNN are the machine's own.
# A bundle runs as one process; jobs of several ranks want a build against their cluster's MPI.
# usage: tools/bundle.sh [--build DIRECTORY] [--no-build]     (build/release; --no-build: take what is there)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/release
make=1
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,7s/^# //p' tools/bundle.sh; exit 0 ;;
    --build) build="${2:?--build names no directory}"; shift 2 ;;
    --no-build) make=0; shift ;;
    *) echo "bundle.sh: unknown argument $1; see --help" >&2; exit 1 ;;
  esac
done
for tool in dpkg-query ldd readelf strip xz; do
  command -v "$tool" >/dev/null || { echo "bundle.sh: $tool was not found (Debian: dpkg, binutils, xz-utils)" >&2; exit 1; }
done

most_bytes=$((48 * 1024 * 1024))
version="$(sed -n 's/^project(overtok VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
name="overtok-$version-$(uname -m)"
mapfile -t tests < <(printf '%s\n' tests/core/cuda/device_{streams_,}test.cc tests/core/ops/*_test.cc | sed 's/.*\///; s/\.cc$//')

if [[ $make == 1 ]]; then
  [[ -f "$build/CMakeCache.txt" ]] || cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "$build" --target overtok "${tests[@]}"
fi
for program in overtok "${tests[@]/#/tests/}"; do
  [[ -x "$build/$program" ]] || { echo "bundle.sh: $build/$program is missing: build it, or leave out --no-build" >&2; exit 1; }
done

tree="build/bundle/$name"
rm -rf "$tree"
mkdir -p "$tree"/{bin,tests,lib,licences}
install -s "$build/overtok" "$tree/bin/overtok"
for program in "${tests[@]}"; do install -s "$build/tests/$program" "$tree/tests/$program"; done

# Libraries: what the loader takes here, by the names it asks for. All of the C library's parts go along, also those
# that only a driver's library asks for: parts of two C libraries do not work together.
declare -A libraries
while read -r soname path; do libraries["$soname"]="$path"; done < <(
  for program in "$tree/bin/overtok" "$tree"/tests/*; do ldd "$program"; done |
    sed -nE 's/^\s*(\S+) => (\/\S+) \(0x.*/\1 \2/p; s/^\s*(\/\S*\/(ld-linux\S*)) \(0x.*/\2 \1/p' | sort -u)
missing="$(for program in "$tree/bin/overtok" "$tree"/tests/*; do ldd "$program"; done | grep 'not found' || true)"
[[ -z "$missing" ]] || { echo "bundle.sh: libraries are missing here:" "$missing" >&2; exit 1; }
loader=""
for soname in "${!libraries[@]}"; do [[ "$soname" == ld-linux* ]] && loader="$soname"; done
[[ -n "$loader" ]] || { echo "bundle.sh: ldd names no loader" >&2; exit 1; }
c_library="$(dirname "$(realpath "${libraries[libc.so.6]}")")"
for part in libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libmvec.so.1 libutil.so.1 libresolv.so.2 libanl.so.1 \
  libnss_files.so.2 libnss_dns.so.2; do
  if [[ -e "$c_library/$part" ]]; then libraries["$part"]="$c_library/$part"; fi
done
for soname in "${!libraries[@]}"; do
  if [[ "$soname" =~ ^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvJitLink|nvidia) ]]; then
    echo "bundle.sh: a program is linked with $soname; CUDA's libraries are opened at run time" >&2
    exit 1
  fi
  cp -L "${libraries[$soname]}" "$tree/lib/$soname"
  chmod 755 "$tree/lib/$soname"
  if [[ "$soname" != "$loader" ]]; then strip --strip-unneeded "$tree/lib/$soname"; fi
done
# An RPATH would be searched before the bundle's own folder (a RUNPATH comes after it).
if readelf -d "$tree/bin/overtok" "$tree"/tests/* "$tree"/lib/* 2>/dev/null | grep -q '(RPATH)'; then
  echo "bundle.sh: a program or library has an RPATH; link with --enable-new-dtags" >&2
  exit 1
fi

# Licences: our own, and for each library the package it comes from and that package's copyright file.
cp LICENSE "$tree/"
{
  echo "Libraries of this bundle and the packages they come from; licences/PACKAGE holds each package's copyright file."
  for soname in $(printf '%s\n' "${!libraries[@]}" | sort); do
    path="$(realpath "${libraries[$soname]}")"
    package="$({ dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "${path#/usr}" 2>/dev/null ||
      dpkg-query -S "/usr$path" 2>/dev/null; } | head -n 1 | cut -d: -f1)"
    [[ -n "$package" ]] || { echo "bundle.sh: $path belongs to no Debian package: its licence is unknown" >&2; exit 1; }
    printf '%s\t%s\t%s\n' "$soname" "$package" "$(dpkg-query -W -f '${Version}' "$package" | head -n 1)"
    [[ -e "$tree/licences/$package" ]] || cp -L "/usr/share/doc/$package/copyright" "$tree/licences/$package"
  done
} >"$tree/licences/LIBRARIES"
if nm -C "$build/overtok" 2>/dev/null | grep -q ' cudaMalloc$'; then
  echo "The CUDA runtime is linked statically (NVIDIA's CUDA EULA, attachment A: libcudart_static may be distributed)." \
    >>"$tree/licences/LIBRARIES"
fi
# Headers of cuDNN's frontend become code of the program where it was built with them.
frontend="$(sed -n 's/^CUDNN_FRONTEND_INCLUDE:[A-Z]*=//p' "$build/CMakeCache.txt" 2>/dev/null || true)"
if nm -C "$build/overtok" 2>/dev/null | grep -q ' cudnn_frontend::'; then
  mkdir "$tree/licences/nvidia-cudnn-frontend"
  cp "${frontend%/include}"/nvidia_cudnn_frontend-*.dist-info/licenses/* "$tree/licences/nvidia-cudnn-frontend/" ||
    { echo "bundle.sh: no licences of cudnn_frontend.h beside $frontend: install nvidia-cudnn-frontend by pip" >&2; exit 1; }
  echo "cudnn_frontend.h (nvidia-cudnn-frontend) is compiled into the program: licences/nvidia-cudnn-frontend/." \
    >>"$tree/licences/LIBRARIES"
fi

mkdir -p "$tree/configs" "$tree/tools" "$tree/docs"
cp -r configs/. "$tree/configs/"
cp tools/device_check.sh tools/peer_torch.py "$tree/tools/"
cp docs/gpu.md "$tree/docs/"
sed "s/@LOADER@/$loader/" >"$tree/run" <<'WRAPPER'
#!/bin/sh
# Runs a program of this bundle with its own loader and libraries: ./run PROGRAM [ARGUMENT...]
# Libraries that are not inside (the GPU driver's, CUDA's) come from LD_LIBRARY_PATH, the system's cache, and the places
# where drivers are put in containers.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
[ $# -gt 0 ] || { echo "usage: run PROGRAM [ARGUMENT...]: bin/overtok, or one of tests/" >&2; exit 2; }
program=$1
shift
folders=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/wsl/lib:/usr/lib64
exec "$here/lib/@LOADER@" --library-path "$folders" --argv0 "${program##*/}" "$here/$program" "$@"
WRAPPER
cat >"$tree/overtok" <<'WRAPPER'
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
exec "$here/run" bin/overtok "$@"
WRAPPER
chmod 755 "$tree/run" "$tree/overtok"
{
  echo "version $version"
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ' and changes')"
  echo "glibc $(ldd --version | sed -n '1s/.* //p')"
  sed -n 's/^CUDAToolkit_VERSION[^=]*=/cuda /p; s/^OVERTOK_CUDA_ARCHITECTURES[^=]*=/architectures /p' "$build/CMakeCache.txt"
} >"$tree/MANIFEST"
(cd "$tree" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)

archive="build/bundle/$name.tar.xz"
tar -C build/bundle --owner=0 --group=0 --numeric-owner --sort=name -cf - "$name" |
  xz -T1 --lzma2=preset=4,dict=64MiB >"$archive"
bytes="$(stat -c %s "$archive")"
printf '%s: %.1f MiB (%.1f MiB unpacked), %d libraries, %d test programs\n' "$archive" \
  "$(awk "BEGIN { print $bytes / 1048576 }")" "$(du -sm "$tree" | cut -f1)" "${#libraries[@]}" "${#tests[@]}"
if ((bytes > most_bytes)); then
  echo "bundle.sh: the archive is larger than $((most_bytes / 1048576)) MiB" >&2
  exit 1
fi
