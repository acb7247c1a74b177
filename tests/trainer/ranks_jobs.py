"""What the tests of training jobs of several ranks share: a corpus, starting jobs under mpirun and waiting for them."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from jobs import end_of, expect, fail, make_corpus, metric_lines, ranks_of, wait_for  # noqa: E402, F401

SKIPPED = 77
INTERRUPTED = 75  # exit code of a run that was stopped by a signal and saved
LONGEST = 300  # seconds that a job of these sizes may take; on busy cores ranks that wait for each other are ten times slower


class Jobs:
    """A folder with kill_test's corpus and configuration, and a copy of the program: its ranks are told from other
    processes by their program file."""

    def __init__(self, folder, program):
        self.folder = folder
        self.program = folder / "overtok"
        shutil.copy(program, self.program)
        make_corpus(folder, self.program)
        self.running = []

    def start(self, ranks, command, more=()):
        """Ranks 0: alone, without a launcher. `command`: of the program, or a program with its arguments."""
        launcher = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 0 else []
        environment = os.environ | dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        process = subprocess.Popen([*launcher, *command, *more], cwd=self.folder, env=environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append(process)
        return process

    def train(self, ranks, run, *more):
        return self.start(ranks, [self.program, "train", "config.yaml", "train.micro_batch_sequences=1",
                                  f"checkpoint.directory={run}"], more)

    def finish(self, process, code=0):
        """Waits for the end of a job; its output."""
        output = process.communicate(timeout=LONGEST)[0]
        expect(process.returncode == code, f"exit code {process.returncode}, expected {code}", output)
        return output

    def stop_at(self, process, run, lines, send):
        """Calls send() once the run has written so many lines of metrics; it must end as stopped."""
        wait_for(f"{lines} lines of metrics of {run}", LONGEST, lambda: metric_lines(self.folder / run) >= lines)
        send()
        return self.finish(process, INTERRUPTED)

    def end(self, run):
        """State of the newest checkpoint, without the layout that wrote it, and the metrics without what is measured."""
        state, lines = end_of(self.folder / run)
        del state["layout"]
        return state, lines

    def expect_equal_ends(self, expected, found):
        for what, a, b in zip(("state", "metrics"), self.end(expected), self.end(found)):
            expect(a == b, f"{what} of {found} differs:\n{json.dumps(b)}\nagainst {expected}'s\n{json.dumps(a)}")


def run_test(description, test, arguments=()):
    """test(jobs, options) in a folder of its own; `arguments`: more of the command line, as name and default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    for name, default in arguments:
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    if shutil.which("mpirun") is None:
        print("skipped: mpirun was not found; package openmpi-bin")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="overtok_ranks_") as name:
        jobs = Jobs(pathlib.Path(name), options.program.resolve())
        try:
            test(jobs, options)
        finally:
            for process in jobs.running:
                if process.poll() is None:
                    process.kill()
            # What a launcher that was killed leaves behind.
            for rank in ranks_of(jobs.program):
                try:
                    os.kill(rank, 9)
                except ProcessLookupError:
                    pass
