#!/usr/bin/env python3
"""Training over two hosts (tools/two_hosts.sh: network namespaces, TCP between them) ends as the same ranks on one host do:
weights, optimizer state, ids and metrics, whether hosts share out the batch or the model. What a step sends must be seen
on the link. A rank that is killed on the second host ends the others within 10 s, and the run is completed on one host.
Exit code 77 where namespaces are not permitted.

usage: two_hosts_test.py --program build/release/overtok [--ranks-per-host 1]
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

STEPS = 60
LAYOUTS = {"data": [], "tensor": ["parallel.tensor=2"]}
# Bytes of the blocks' matrices of kill_test's model. In every step each host sends at least half as much, gradients,
# weights or activations: far below what is really sent, far above what starting and ending a job takes (15 kB).
MATRICES = 4 * 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)


class Job:
    def __init__(self, folder, program, ranks_per_host):
        self.folder = folder
        self.train = [program, "train", "config.yaml", f"train.steps={STEPS}"]
        # Whole micro-batches for every rank.
        self.train.append(f"train.micro_batch_sequences={max(1, 2 // ranks_per_host)}")
        self.two = [ROOT / "tools" / "two_hosts.sh", "-n", str(ranks_per_host)]
        self.one = ["mpirun", "-n", str(2 * ranks_per_host), "--oversubscribe", "--bind-to", "none"]

    def start(self, launcher, run, more):
        environment = os.environ | dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        return subprocess.Popen([*launcher, *self.train, *more, f"checkpoint.directory={run}"], cwd=self.folder,
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, launcher, run, more):
        process = self.start(launcher, run, more)
        output = process.communicate(timeout=120)[0]
        if process.returncode == 77:
            print(output)
            sys.exit(77)
        expect(process.returncode == 0, f"{run}: exit code {process.returncode}", output)
        return output


def same_ends(job, layout):
    more = LAYOUTS[layout]
    output = job.finish(job.two, f"{layout}_two", more)
    job.finish(job.one, f"{layout}_one", more)
    equal_ends(job.folder / f"{layout}_one", job.folder / f"{layout}_two")
    sent = re.search(r"over the link: (\d+) bytes from host-a, (\d+) from host-b", output)
    expect(sent, "no byte counts", output)
    for count in sent.groups():
        expect(int(count) >= STEPS * MATRICES // 2, f"{count} bytes on the link; expected {STEPS * MATRICES // 2}", output)
    print(f"{layout}: equal ends on two hosts and on one; {sent.group(0)}")


def rank_killed(job, program):
    process = job.start(job.two, "killed", [])
    wait_for("12 lines of metrics", 60, lambda: metric_lines(job.folder / "killed") >= 12)
    ranks = ranks_of(program)
    expect(len(ranks) >= 2, f"{len(ranks)} processes run {program}")
    begin = time.monotonic()
    os.kill(ranks[-1], signal.SIGKILL)
    wait_for("the other ranks to end", GONE_WITHIN, lambda: not ranks_of(program))
    gone = time.monotonic() - begin
    output = process.communicate(timeout=60)[0]
    expect(process.returncode == 128 + signal.SIGKILL, f"exit code {process.returncode} after a kill", output)
    job.finish(job.one, "killed", [])
    equal_ends(job.folder / "data_one", job.folder / "killed")
    print(f"one rank killed: all gone after {gone:.1f} s; completed on one host with equal ends")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    options = parser.parse_args()
    if shutil.which("mpirun") is None:
        fail("mpirun was not found; package openmpi-bin")
    with tempfile.TemporaryDirectory(prefix="overtok_two_hosts_") as name:
        folder = pathlib.Path(name)
        # A copy: ranks are told from other processes by their program file.
        program = folder / "overtok"
        shutil.copy(options.program, program)
        make_corpus(folder, program)
        job = Job(folder, program, options.ranks_per_host)
        for layout in LAYOUTS:
            same_ends(job, layout)
        rank_killed(job, program)


if __name__ == "__main__":
    main()
