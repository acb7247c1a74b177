#!/usr/bin/env bash
# Two hosts on one machine: network namespaces with names, shared memory and an Ethernet link of their own, and one MPI
# job over both. What the ranks of different hosts tell each other goes through TCP over that link; its bytes are
# printed at the end. Files are shared, as on a cluster's file system. Nothing is left behind: every process, interface
# and mount lives in namespaces that end with this script.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/two_hosts.sh [-n RANKS] [-b] COMMAND [ARGUMENT...]
  -n RANKS  ranks on each host (1)
  -b        bind each rank to a core, as mpirun does by itself; without, OMP_NUM_THREADS says how many threads one has
mpirun takes more options as OMPI_MCA_name=value. Exit code: the job's; 77 where namespaces are not permitted or a
program is missing.
USAGE
}

arguments=("$@")
ranks=1
binding=(--bind-to none)
while getopts "+n:bh" option; do
  case "$option" in
    n) ranks="$OPTARG" ;;
    b) binding=() ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 && "$ranks" =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
skip() { echo "two_hosts.sh: skipped: $*" >&2; exit 77; }

for program in ip mpirun nsenter unshare; do
  command -v "$program" >/dev/null || skip "$program was not found (packages iproute2, openmpi-bin, util-linux)"
done

# The whole script runs again inside namespaces of its own; the process namespace makes sure that all end together.
if [[ "${OVERTOK_TWO_HOSTS:-}" != inside ]]; then
  outer=(unshare --net --mount --uts --pid --fork --kill-child --mount-proc)
  if [[ $EUID -ne 0 ]]; then outer+=(--user --map-root-user); fi
  if ! reason="$("${outer[@]}" ip link add name link-a type veth peer name link-b 2>&1)"; then
    skip "this machine does not permit network namespaces with a virtual Ethernet link: $reason"
  fi
  work="$(mktemp -d)"
  status=0
  OVERTOK_TWO_HOSTS=inside OVERTOK_TWO_HOSTS_WORK="$work" "${outer[@]}" bash "$0" "${arguments[@]}" &
  child=$!
  # With unshare ends everything inside.
  trap 'kill "$child" 2>/dev/null || true; wait "$child" || true; rm -rf "$work"' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  wait "$child" || status=$?
  exit "$status"
fi

work="$OVERTOK_TWO_HOSTS_WORK"
unset OVERTOK_TWO_HOSTS OVERTOK_TWO_HOSTS_WORK
hosts=(host-a host-b)
network=10.77.0
printf '127.0.0.1 localhost\n%s.1 host-a\n%s.2 host-b\n' "$network" "$network" >"$work/hosts"

# What ssh would do: runs a command on one of the hosts.
cat >"$work/on" <<'ON'
#!/bin/sh
host="$1"
shift
work="$(dirname "$0")"
export TMPDIR="$work/$host.tmp"
exec nsenter --target "$(cat "$work/$host.pid")" --net --uts --ipc --mount --wd="$PWD" sh -c "$*"
ON
chmod +x "$work/on"

for host in "${hosts[@]}"; do
  mkdir "$work/$host.tmp"
  # A process that only holds the host's namespaces open.
  unshare --net --uts --ipc --mount sh -c "hostname $host
    mount -t tmpfs tmpfs /dev/shm
    mount --bind '$work/hosts' /etc/hosts
    ip link set lo up
    echo \$\$ >'$work/$host.pid.new'
    mv '$work/$host.pid.new' '$work/$host.pid'
    exec sleep infinity" &
done
for host in "${hosts[@]}"; do
  for ((i = 0; i < 100; ++i)); do
    [[ ! -f "$work/$host.pid" ]] || break
    sleep 0.05
  done
  [[ -f "$work/$host.pid" ]] || { echo "two_hosts.sh: $host was not set up within 5 s" >&2; exit 1; }
done

ip link add name link-a type veth peer name link-b
for i in 0 1; do
  link="link-${hosts[i]#host-}"
  ip link set "$link" netns "$(cat "$work/${hosts[i]}.pid")"
  "$work/on" "${hosts[i]}" "ip addr add $network.$((i + 1))/24 dev $link && ip link set $link up"
done

# Bytes that left a host over the link so far.
sent() { "$work/on" "$1" "awk '/link-/ {print \$10}' /proc/net/dev"; }
before=("$(sent host-a)" "$(sent host-b)")

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
printf -v quoted '%q ' mpirun --host "host-a:$ranks,host-b:$ranks" -n "$((2 * ranks))" "${binding[@]}" \
  --mca plm rsh --mca plm_rsh_agent "$work/on" --mca pml ob1 --mca btl self,vader,tcp \
  --mca btl_tcp_if_include "$network.0/24" --mca oob_tcp_if_include "$network.0/24" "$@"
"$work/on" host-a "exec $quoted" || status=$?
echo "two_hosts.sh: code $status; over the link: $(($(sent host-a) - before[0])) bytes from host-a," \
  "$(($(sent host-b) - before[1])) from host-b" >&2
exit "$status"
