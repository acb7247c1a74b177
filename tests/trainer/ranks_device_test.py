#!/usr/bin/env python3
"""The real program with ranks as processes on a device with memory of its own, the emulated one: a run by two data-parallel
ranks, evaluation and checkpoints among them, stopped and continued alone, is the run of one rank in every bit; with
tensor parallelism it has the same ids and losses to rounding.

usage: ranks_device_test.py --program build/release/overtok
"""

import signal

from ranks_jobs import expect, run_test

# bf16, where sums of other order fall on other sides of 8 bits; a part that is missing is of the order of 1.
CLOSE = 2e-2
DEVICE = ("train.device=emulated", "train.steps=8", "eval.every_steps=4", "checkpoint.every_steps=2")


def test(jobs, _):
    jobs.finish(jobs.train(0, "alone", *DEVICE))
    job = jobs.train(2, "data", *DEVICE)
    jobs.stop_at(job, "data", 3, lambda: job.send_signal(signal.SIGUSR1))
    jobs.finish(jobs.train(0, "data", *DEVICE))
    jobs.expect_equal_ends("alone", "data")
    print("2 ranks, then 1: every bit of the run of one rank")

    jobs.finish(jobs.train(2, "tensor", "parallel.tensor=2", *DEVICE))
    (state, lines), (expected_state, expected_lines) = jobs.end("tensor"), jobs.end("alone")
    expect(state["ids_hash"] == expected_state["ids_hash"], "ids differ")
    expect(len(lines) == len(expected_lines), f"{len(lines)} lines of metrics, expected {len(expected_lines)}")
    largest, compared = 0.0, 0
    for line, expected in zip(lines, expected_lines):
        for key, value in expected.items():
            if isinstance(value, float) and "loss" in key:
                distance = abs(line[key] / value - 1)
                expect(distance <= CLOSE, f"{key} of step {line['step']} is {line[key]}, expected {value}")
                largest, compared = max(largest, distance), compared + 1
    expect(compared > 8, f"only {compared} values compared")
    print(f"2 ranks with tensor 2: every id, losses within {largest:.1e}")


if __name__ == "__main__":
    run_test(__doc__, test)
