#!/usr/bin/env bash
# A Slurm cluster of this one machine, to try batch scripts on: munge, slurmctld and slurmd from Debian's packages, all of
# their state in one directory, nothing in /etc, no systemd, no control groups, no accounting database.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/slurm/one_node.sh install | start [DIRECTORY] | env [DIRECTORY] | stop [DIRECTORY]
  install  the packages, with apt (as root): munge, slurmctld, slurmd, slurm-client
  start    the three daemons; ends when sinfo shows the node idle
  env      prints the line to eval so that srun, sbatch, squeue ... talk to it
  stop     cancels every job and ends the daemons
DIRECTORY holds configuration, key, logs and state; default /tmp/overtok-slurm. Jobs run as the user who started it.
USAGE
}

command="${1:-}"
dir="${2:-/tmp/overtok-slurm}"
case "$command" in
  install | start | env | stop) [[ $# -le 2 ]] || { usage >&2; exit 2; } ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
fail() { echo "one_node.sh: $*" >&2; exit 1; }

if [[ "$command" == install ]]; then
  # The packages' own services would wait for a configuration in /etc/slurm, which is not what runs here.
  DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
    munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins
  exit 0
fi

export PATH="$PATH:/usr/sbin" SLURM_CONF="$dir/slurm.conf"
if [[ "$command" == env ]]; then
  echo "export SLURM_CONF='$SLURM_CONF'"
  exit 0
fi

# Ends the daemon whose number stands in a file, and waits for it.
end() {
  local pid
  pid="$(cat "$1" 2>/dev/null)" || return 0
  kill "$pid" 2>/dev/null || return 0
  for ((i = 0; i < 100; ++i)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
}

if [[ "$command" == stop ]]; then
  if [[ -f "$SLURM_CONF" ]]; then
    timeout 10 scancel --signal=KILL --full --user="$(id -un)" 2>/dev/null || true
    timeout 10 scancel --user="$(id -un)" 2>/dev/null || true
    for ((i = 0; i < 20; ++i)); do
      [[ -n "$(timeout 10 squeue -h 2>/dev/null)" ]] || break
      sleep 0.5
    done
  fi
  for daemon in slurmd slurmctld munged; do end "$dir/$daemon.pid"; done
  exit 0
fi

for program in munged slurmctld slurmd sinfo; do
  command -v "$program" >/dev/null || fail "$program was not found; run '$0 install' as root"
done
for daemon in slurmd slurmctld munged; do
  if kill -0 "$(cat "$dir/$daemon.pid" 2>/dev/null)" 2>/dev/null; then
    fail "$daemon runs already in $dir; run '$0 stop $dir' first"
  fi
done

mkdir -p "$dir"/{munge,ctld,slurmd,log}
chmod 755 "$dir" "$dir/munge"
if [[ ! -f "$dir/munge/key" ]]; then
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
fi
rm -f "$dir/munge/socket"
# --force: only this user needs to reach the socket, so folders above it may be closed to others.
munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munged.pid" \
  --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" --num-threads=2

node="$(hostname -s)"
cores="$(nproc)"
memory="$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)"
user="$(id -un)"
cat >"$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# cred_expire is also what a requeued job waits before it starts again (the default is 120 s).
AuthInfo=socket=$dir/munge/socket,cred_expire=5
StateSaveLocation=$dir/ctld
SlurmdSpoolDir=$dir/slurmd
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
# Neither control groups nor a database.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
# Cores as the machine has them, whatever slurmd finds out about sockets and threads.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=30
InactiveLimit=0
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cores Boards=1 Sockets=1 CoresPerSocket=$cores ThreadsPerCore=1 RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF

slurmctld -c
slurmd -c
for ((i = 0; i < 60; ++i)); do
  state="$(timeout 10 sinfo -h -o %T 2>/dev/null || true)"
  if [[ "$state" == idle ]]; then
    sinfo
    srun --mpi=list 2>&1
    echo "one_node.sh: ready; use it with: eval \"\$($0 env $dir)\""
    exit 0
  fi
  sleep 0.5
done
tail -n 15 "$dir"/log/*.log >&2
fail "the node is '${state:-not known}' after 30 s, not idle; the logs are in $dir/log"
