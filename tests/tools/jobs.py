"""What the tests of whole jobs share: waiting, the processes of a job's ranks, and the comparison of two runs' ends."""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "trainer"))
from kill_test import end_of, make_corpus  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
GONE_WITHIN = 10  # seconds, after a rank was killed


def fail(text, log=""):
    sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {text}\n{log}")


def expect(condition, text, log=""):
    if not condition:
        fail(text, log)


def wait_for(what, seconds, condition):
    """The first value of condition() that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return fail(f"after {seconds} s still waiting for {what}")


def metric_lines(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ranks_of(program):
    """Process numbers of all that run this very file: a job's ranks without launchers and shells."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "exe") == str(program):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def equal_ends(expected, found):
    for what, a, b in zip(("state", "metrics"), end_of(expected), end_of(found)):
        expect(a == b, f"{what} of {found.name} differs:\n{b}\nagainst {expected.name}'s\n{a}")
