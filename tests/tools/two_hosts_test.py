#!/usr/bin/env python3
"""A training run over two hosts (tools/two_hosts.sh: network namespaces, TCP between them) ends as the same ranks on one
host do: weights, optimizer state, ids and metrics. What the step sends must be seen on the link. Exit code 77 where
namespaces are not permitted.

usage: two_hosts_test.py --program build/release/overtok [--ranks-per-host 1]
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trainer"))
import kill_test  # noqa: E402

TWO_HOSTS = ROOT / "tools" / "two_hosts.sh"
STEPS = 60


def run(folder, command):
    environment = os.environ | dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                                    OMP_WAIT_POLICY="passive")
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode == 77:
        print(f"two_hosts_test: {done.stderr.strip()}")
        sys.exit(77)
    if done.returncode != 0:
        sys.exit(f"two_hosts_test: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stderr, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    options = parser.parse_args()
    program = options.program.resolve()
    ranks = 2 * options.ranks_per_host
    with tempfile.TemporaryDirectory(prefix="overtok_two_hosts_") as name:
        folder = pathlib.Path(name)
        kill_test.make_corpus(folder, program)
        train = [program, "train", "config.yaml", f"train.steps={STEPS}"]
        two, two_seconds = run(folder, [TWO_HOSTS, "-n", str(options.ranks_per_host), *train, "checkpoint.directory=two"])
        _, one_seconds = run(folder, ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *train,
                                      "checkpoint.directory=one"])
        for what, a, b in zip(("state", "metrics"), kill_test.end_of(folder / "one"), kill_test.end_of(folder / "two")):
            if a != b:
                sys.exit(f"two_hosts_test: {what} of two hosts differs:\n{b}\nagainst one host's\n{a}")
        sent = re.search(r"over the link: (\d+) bytes from host-a, (\d+) from host-b", two)
        if not sent:
            sys.exit(f"two_hosts_test: no byte counts in:\n{two}")
        # In every step each host sends at least one 4-byte gradient or updated weight of each parameter of the blocks
        # that the other owns: far below what is really sent, far above what starting and ending a job takes (15 kB).
        matrices = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)
        least = STEPS * matrices * 4 // 2
        for count in sent.groups():
            if int(count) < least:
                sys.exit(f"two_hosts_test: {count} bytes went over the link, at least {least} are needed:\n{two}")
        print(f"{ranks} ranks, {STEPS} steps: two hosts {two_seconds:.1f} s, one host {one_seconds:.1f} s, equal ends; "
              f"{sent.group(0)}")


if __name__ == "__main__":
    main()
