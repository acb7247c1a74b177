#!/usr/bin/env python3
"""tools/slurm/train.sbatch with the real program on a Slurm of this one machine (tools/slurm/one_node.sh): a job that is
warned twice requeues itself twice and ends as a run that was left alone; a job that loses a rank ends within 10 s, and
submitted again ends the same way. Exit code 77 where Slurm's daemons are not installed.

usage: slurm_job_test.py --program build/release/overtok [--ranks 2] [--launcher srun|mpirun|auto]
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from jobs import GONE_WITHIN, ROOT, equal_ends, expect, fail, make_corpus, metric_lines, ranks_of, wait_for

ONE_NODE = ROOT / "tools" / "slurm" / "one_node.sh"
SCRIPT = ROOT / "tools" / "slurm" / "train.sbatch"


class Cluster:
    """The one-node Slurm and the jobs of this test, in one folder."""

    def __init__(self, folder, program, ranks, launcher):
        self.folder, self.ranks = folder, ranks
        self.slurm = folder / "slurm"
        # Open MPI refuses root without these; containers and CI machines have no other user.
        self.environment = os.environ | dict(
            OVERTOK=str(program), OVERTOK_LAUNCHER=launcher, SLURM_CONF=str(self.slurm / "slurm.conf"),
            OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

    def __enter__(self):
        done = subprocess.run([ONE_NODE, "start", self.slurm], capture_output=True, text=True, timeout=90)
        if done.returncode != 0:
            fail("one_node.sh start failed", done.stdout + done.stderr)
        print(done.stdout, end="")
        return self

    def __exit__(self, *unused):
        subprocess.run([ONE_NODE, "stop", self.slurm], timeout=90, check=False)

    def call(self, *command):
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60)

    def submit(self, run):
        done = self.call("sbatch", "--parsable", f"--ntasks-per-node={self.ranks}", SCRIPT, "config.yaml",
                         f"checkpoint.directory={run}")
        if done.returncode != 0:
            fail("sbatch failed", done.stderr)
        return done.stdout.strip()

    def log(self, job):
        path = self.folder / f"overtok-{job}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def state(self, job):
        found = re.search(r"JobState=(\S+)", self.call("scontrol", "show", "job", job).stdout)
        return found.group(1) if found else ""

    def trains(self, job, run, start, more):
        """Waits until this start of the job has written `more` lines of metrics."""
        wait_for(f"start {start} of job {job}", 60, lambda: f"start {start} of job" in self.log(job))
        before = metric_lines(self.folder / run)
        wait_for(f"{more} lines of metrics from start {start} of job {job}", 120,
                 lambda: metric_lines(self.folder / run) >= before + more)

    def ended(self, job):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return wait_for(f"the end of job {job}", 180, lambda: (lambda s: s if s in ends else None)(self.state(job)))


def warned_twice(cluster):
    job = cluster.submit("warned")
    for start in (1, 2):
        cluster.trains(job, "warned", start, 12)
        expect(cluster.call("scancel", "--signal=USR1", "--batch", job).returncode == 0, "scancel failed")
        wait_for(f"the requeue after start {start}", 60,
                 lambda start=start: cluster.log(job).count("goes back into the queue") == start)
    state, log = cluster.ended(job), cluster.log(job)
    expect(state == "COMPLETED" and "ended with code 0 after start 3" in log, f"job {job} is {state}", log)
    equal_ends(cluster.folder / "straight", cluster.folder / "warned")
    print(f"job {job}: warned and requeued twice, then complete; equal to the run that was left alone")


def rank_killed(cluster, program):
    job = cluster.submit("killed")
    cluster.trains(job, "killed", 1, 12)
    ranks = ranks_of(program)
    expect(len(ranks) == cluster.ranks, f"{len(ranks)} processes run {program}, not {cluster.ranks}")
    begin = time.monotonic()
    os.kill(ranks[-1], signal.SIGKILL)
    wait_for("the other ranks to end", GONE_WITHIN, lambda: not ranks_of(program))
    gone = time.monotonic() - begin
    state = cluster.ended(job)
    expect(state == "FAILED" and "goes back" not in cluster.log(job), f"job {job} is {state}", cluster.log(job))
    again = cluster.submit("killed")
    expect(cluster.ended(again) == "COMPLETED", f"job {again} did not complete", cluster.log(again))
    equal_ends(cluster.folder / "straight", cluster.folder / "killed")
    print(f"job {job}: one rank killed, all ranks gone after {gone:.1f} s; job {again} completed the run, equal again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="auto")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"
    for name in ("munged", "slurmctld", "slurmd", "sbatch"):
        if shutil.which(name) is None:
            print(f"slurm_job_test: skipped: {name} was not found (as root: tools/slurm/one_node.sh install)")
            sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="overtok_slurm_") as name:
        folder = pathlib.Path(name)
        # A copy: ranks are told from other processes by their program file.
        program = folder / "overtok"
        shutil.copy(options.program, program)
        make_corpus(folder, program)
        with Cluster(folder, program, options.ranks, options.launcher) as cluster:
            done = cluster.call("mpirun", "-n", str(options.ranks), "--oversubscribe", program, "train", "config.yaml",
                                "checkpoint.directory=straight")
            expect(done.returncode == 0, "the run that is left alone failed", done.stdout + done.stderr)
            warned_twice(cluster)
            rank_killed(cluster, program)


if __name__ == "__main__":
    main()
