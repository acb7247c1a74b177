#!/usr/bin/env python3
"""A run that is stopped and continued by another number of ranks, over three passes of its data, is the run that was left
alone. Where only data-parallel ranks change: in every bit of weights, optimizer state, ids and metrics, evaluation among
them. With tensor-parallel ranks: in every id, and in losses to rounding.

usage: ranks_elastic_test.py --program build/release/overtok
"""

import os
import signal

from ranks_jobs import expect, fail, ranks_of, run_test

# Losses and norms of the leg with tensor parallelism: sums of f32 in another order, roundings of 6e-8 that 80 steps make
# grow (to 6e-7 where this was written).
CLOSE = 1e-4


def by_launcher(process, number):
    return lambda: process.send_signal(number)


def of_one_rank(jobs, number):
    return lambda: os.kill(ranks_of(jobs.program)[-1], number)


def data_ranks(jobs):
    """2, 4 and 1 ranks; stopped by a signal that one rank alone gets, and by one that mpirun hands on."""
    job = jobs.train(2, "data", "checkpoint.background=true")
    jobs.stop_at(job, "data", 60, of_one_rank(jobs, signal.SIGTERM))
    job = jobs.train(4, "data")
    jobs.stop_at(job, "data", 130, by_launcher(job, signal.SIGUSR1))
    jobs.finish(jobs.train(0, "data"))
    jobs.expect_equal_ends("alone", "data")


def tensor_ranks(jobs):
    """4 ranks, 1, and 2 that share the model."""
    job = jobs.train(4, "elastic", "checkpoint.background=true")
    jobs.stop_at(job, "elastic", 60, by_launcher(job, signal.SIGUSR1))
    job = jobs.train(0, "elastic")
    jobs.stop_at(job, "elastic", 120, by_launcher(job, signal.SIGTERM))
    before = jobs.end("elastic")[0]["step"]
    expect(before < 200, "the run ended before it was stopped")
    jobs.finish(jobs.train(2, "elastic", "parallel.tensor=2", "checkpoint.background=true"))

    (state, lines), (expected_state, expected_lines) = jobs.end("elastic"), jobs.end("alone")
    for key in ("step", "sequences", "tokens", "ids_hash", "identity"):
        expect(state[key] == expected_state[key], f"{key} is {state[key]}, expected {expected_state[key]}")
    expect(len(lines) == len(expected_lines), f"{len(lines)} lines of metrics, expected {len(expected_lines)}")
    largest, compared = 0.0, 0
    for line, expected in zip(lines, expected_lines):
        # An evaluation that is due when the run is stopped is made up for by the next leg.
        if expected["step"] < before or (expected["step"] == before and expected["kind"] == "train"):
            expect(line == expected, f"line of {line['kind']} {line['step']} differs:\n{line}\n{expected}")
            continue
        expect(line.keys() == expected.keys(), f"{line.keys()}\n{expected.keys()}")
        for key, value in expected.items():
            if isinstance(value, float) and ("loss" in key or "norm" in key or "bpb" in key or key == "train/objective"):
                distance = abs(line[key] / value - 1)
                expect(distance <= CLOSE, f"{key} of step {line['step']} is {line[key]}, expected {value}")
                largest, compared = max(largest, distance), compared + 1
            elif key != "eval/best_step":
                expect(line[key] == value, f"{key} of step {line['step']} is {line[key]}, expected {value}")
    expect(compared > 80, f"only {compared} values compared")
    return largest


def test(jobs, _):
    jobs.finish(jobs.train(0, "alone"))
    state, lines = jobs.end("alone")
    passes = [line["data/pass"] for line in lines if line["kind"] == "train"]
    if max(passes) < 2 or state["step"] != 200:
        fail("the run does not cross two borders of passes")
    data_ranks(jobs)
    print("2, 4 and 1 ranks: every bit of the run that was left alone")
    largest = tensor_ranks(jobs)
    print(f"4 ranks, 1 rank, 2 ranks with tensor 2: every id, losses within {largest:.1e}")


if __name__ == "__main__":
    run_test(__doc__, test)
