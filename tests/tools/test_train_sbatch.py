"""Tests of tools/slurm/train.sbatch's decisions, with stand-ins for Slurm's commands, mpirun and overtok."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "slurm" / "train.sbatch"

# Starts one rank, as srun and mpirun would; hands SIGUSR1 on like both of them.
LAUNCHER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
if [[ "$1" == --mpi=list ]]; then echo "MPI plugin types are..." >&2; echo "$PLUGINS" >&2; exit 0; fi
while [[ "$1" != bash && "$1" != "$OVERTOK" ]]; do shift; done
export SLURM_PROCID=0 SLURM_STEP_ID=0
set -m  # the rank is a process group of its own
"$@" &
child=$!
trap 'kill -USR1 -- -$child' USR1
trap : TERM
while :; do wait $child; code=$?; kill -0 $child 2>/dev/null || break; done
wait $child
code=$?
[[ $code != 127 ]] || code=$(cat "$CALLS.code")
exit $code
"""
RECORDER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
exit "${RECORDER_CODE:-0}"
"""
# Ends at once with CODE, or, where WAIT is 1, when SIGUSR1 comes (with 99 when it does not).
OVERTOK = """#!/usr/bin/env bash
trap 'ready=1' USR1
printf 'overtok threads=%s' "$OMP_NUM_THREADS" >>"$CALLS"
printf ' [%s]' "$@" >>"$CALLS"
echo >>"$CALLS"
echo "$CODE" >"$CALLS.code"
for ((i = 0; i < 250 && WAIT == 1; ++i)); do [[ -z "${ready:-}" ]] || break; sleep 0.02; done
[[ "$WAIT" == 0 || -n "${ready:-}" ]] || exit 99
[[ "$CODE" -lt 128 ]] || kill -$((CODE - 128)) $$
exit "$CODE"
"""


class TrainSbatch(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.calls = self.root / "calls"
        programs = {"srun": LAUNCHER, "mpirun": LAUNCHER, "scontrol": RECORDER, "scancel": RECORDER, "overtok": OVERTOK}
        for name, text in programs.items():
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)

    def start(self, *arguments, **environment):
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OVERTOK", "OMP", "SRUN"))}
        variables |= dict(PATH=f"{self.root}:{variables['PATH']}", CALLS=str(self.calls), OVERTOK=str(self.root / "overtok"),
                          SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_CPUS_PER_TASK="3", PLUGINS="\tpmix\n\tnone", CODE="0",
                          WAIT="0") | environment
        variables = {k: v for k, v in variables.items() if v is not None}
        return subprocess.Popen(["bash", SCRIPT, *arguments], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def run_to_end(self, *arguments, signals=(), **environment):
        """(code, output, calls); the signals are sent to the script once the program runs."""
        process = self.start(*arguments, **environment)
        if signals:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and not self.calls.with_suffix(".code").exists():
                time.sleep(0.01)
            for number in signals:
                process.send_signal(number)
                time.sleep(0.1)
        output = process.communicate(timeout=20)[0]
        return process.returncode, output, self.calls.read_text().splitlines() if self.calls.exists() else []

    def requeues(self, calls):
        return [call for call in calls if call.startswith("scontrol")]

    def test_a_complete_run_ends_and_gets_its_arguments_as_they_are(self):
        code, output, calls = self.run_to_end("a b.yaml", "train.steps=3", "name=x y")
        self.assertEqual((code, self.requeues(calls)), (0, []), output)
        self.assertIn("overtok threads=3 [train] [a b.yaml] [train.steps=3] [name=x y]", calls)

    def test_the_warning_reaches_the_program_and_75_requeues_this_job(self):
        code, output, calls = self.run_to_end("c", CODE="75", WAIT="1", signals=[signal.SIGUSR1])
        self.assertEqual((code, self.requeues(calls)), (0, ["scontrol requeue 7"]), output)
        self.assertFalse([call for call in calls if call.startswith("scancel")], calls)

    def test_ranks_killed_while_they_followed_a_warning_are_started_again(self):
        code, output, calls = self.run_to_end("c", CODE="143", WAIT="1", signals=[signal.SIGUSR1])
        self.assertEqual((code, self.requeues(calls)), (0, ["scontrol requeue 7"]), output)

    def test_an_error_is_final_and_ends_the_other_ranks_at_once(self):
        for number in ("1", "127", "137"):
            with self.subTest(code=number):
                self.calls.unlink(missing_ok=True)
                code, output, calls = self.run_to_end("c", CODE=number)
                self.assertEqual((code, self.requeues(calls)), (int(number), []), output)
                self.assertIn("scancel --signal=KILL 7.0", calls)

    def test_an_error_after_a_warning_is_final(self):
        code, output, calls = self.run_to_end("c", CODE="1", WAIT="1", signals=[signal.SIGUSR1])
        self.assertEqual((code, self.requeues(calls)), (1, []), output)

    def test_a_cancelled_job_stays_cancelled(self):
        code, output, calls = self.run_to_end("c", CODE="75", WAIT="1", signals=[signal.SIGTERM, signal.SIGUSR1])
        self.assertEqual((code, self.requeues(calls)), (75, []), output)

    def test_the_number_of_starts_has_a_limit(self):
        for restarts, expected in (("3", []), ("2", ["scontrol requeue 7"])):
            self.calls.unlink(missing_ok=True)
            code, output, calls = self.run_to_end("c", CODE="75", OVERTOK_MAX_STARTS="4", SLURM_RESTART_COUNT=restarts)
            self.assertEqual((code, self.requeues(calls)), (75 if not expected else 0, expected), output)

    def test_a_refused_requeue_is_reported(self):
        code, output, _ = self.run_to_end("c", CODE="75", RECORDER_CODE="1")
        self.assertEqual(code, 75, output)
        self.assertIn("the requeue failed", output)

    def test_srun_where_it_offers_pmix_else_mpirun(self):
        for plugins, setting, expected in (("\tpmix\n\tpmi2", "auto", "srun --mpi=pmix"), ("\tpmi2", "auto", "mpirun "),
                                           ("\tpmix", "mpirun", "mpirun "), ("\tpmi2", "srun", "srun --mpi=pmix")):
            with self.subTest(plugins=plugins, setting=setting):
                self.calls.unlink(missing_ok=True)
                code, output, calls = self.run_to_end("c", PLUGINS=plugins, OVERTOK_LAUNCHER=setting)
                self.assertEqual(code, 0, output)
                self.assertTrue([call for call in calls if call.startswith(expected)], calls)

    def test_mistakes_are_named(self):
        for arguments, environment, text in ((["c"], dict(SLURM_JOB_ID=None), "not a Slurm job"), ([], {}, "no configuration"),
                                             (["c"], dict(OVERTOK="/nowhere/overtok"), "set OVERTOK"),
                                             (["c"], dict(OVERTOK_LAUNCHER="ssh"), "expected srun, mpirun or auto")):
            with self.subTest(text=text):
                code, output, calls = self.run_to_end(*arguments, **environment)
                self.assertEqual(code, 2, output)
                self.assertIn(text, output)
                self.assertFalse([call for call in calls if call.startswith("overtok")], calls)


if __name__ == "__main__":
    unittest.main()
