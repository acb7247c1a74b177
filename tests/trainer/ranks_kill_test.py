#!/usr/bin/env python3
"""Kills one rank of a job (kill -9) at a random moment, while a checkpoint is being written, and while the others wait for
it in an exchange. The others are gone within 10 s, the launcher's exit code is not 0, and the run, continued by the same or
another number of ranks, ends in every bit as one that was left alone.

usage: ranks_kill_test.py --program build/release/overtok [--kills 4] [--seed 1]
"""

import itertools
import os
import random
import signal
import time

from ranks_jobs import LONGEST, expect, ranks_of, run_test, wait_for

GONE_WITHIN = 10  # seconds
# Ranks, and what more they are told: four share out the batch, of two each has a part of the model, two write copies.
LAYOUTS = {"four": (4, ["checkpoint.every_steps=1"]), "tensor": (2, ["parallel.tensor=2"]),
           "two": (2, ["checkpoint.background=true"])}


def unmarked(run):
    """Whether a checkpoint is being written."""
    return any(not (path / "complete").exists() for path in run.glob("checkpoints/*"))


def at_random(jobs, process, run, rank, draw):
    time.sleep(draw.uniform(0, 0.6))


def mid_checkpoint(jobs, process, run, rank, draw):
    wait_for("a checkpoint that is being written", LONGEST, lambda: process.poll() is not None or unmarked(run))


def mid_exchange(jobs, process, run, rank, draw):
    """The rank stands still for so long that every other one waits for it."""
    time.sleep(draw.uniform(0.1, 0.3))
    os.kill(rank, signal.SIGSTOP)
    time.sleep(0.2)


def kill_once(jobs, run, layout, moment, draw):
    """Seconds that the others outlived a killed rank; None where the run came to its end before."""
    ranks, more = LAYOUTS[layout]
    process = jobs.train(ranks, run, *more)
    folder = jobs.folder / run
    wait_for("all ranks and a checkpoint", LONGEST,
             lambda: process.poll() is not None or (len(ranks_of(jobs.program)) == ranks and
                                                    list(folder.glob("checkpoints/*/complete"))))
    alive = ranks_of(jobs.program)
    if process.poll() is not None or len(alive) < ranks:
        jobs.finish(process)
        return None
    rank = draw.choice(alive)
    try:
        moment(jobs, process, folder, rank, draw)
        os.kill(rank, signal.SIGKILL)
    except ProcessLookupError:
        jobs.finish(process)
        return None
    begin = time.monotonic()
    wait_for("the other ranks to end", GONE_WITHIN, lambda: not ranks_of(jobs.program))
    gone = time.monotonic() - begin
    output = process.communicate(timeout=LONGEST)[0]
    if process.returncode == 0:
        expect("finished 200 steps" in output, "exit code 0 after a kill", output)
        return None  # it had finished, but for leaving
    return gone


def test(jobs, options):
    draw = random.Random(options.seed)
    jobs.finish(jobs.train(0, "alone"))
    jobs.finish(jobs.train(2, "tensor_alone", "parallel.tensor=2"))
    moments = [mid_exchange, mid_checkpoint, at_random]
    kills, longest, killed = 0, 0.0, []
    for layout, number in zip(itertools.cycle(LAYOUTS), itertools.count()):
        run = f"{layout}{number}"
        # Two kills in one run, then its end by ranks of another number where that changes no bit.
        for kill in range(2):
            moment = moments[(2 * number + number // 3 + kill) % 3]
            gone = kill_once(jobs, run, layout, moment, draw)
            if gone is None:
                break
            kills, longest = kills + 1, max(longest, gone)
            killed.append(f"{layout} {moment.__name__}")
        ranks, more = LAYOUTS[layout] if layout == "tensor" else (0, [])
        jobs.finish(jobs.train(ranks, run, *more))
        jobs.expect_equal_ends("tensor_alone" if layout == "tensor" else "alone", run)
        if kills >= options.kills:
            break
    print(f"{kills} kills in {number + 1} runs ({', '.join(killed)}): ranks gone within {longest:.1f} s, equal ends")


if __name__ == "__main__":
    run_test(__doc__, test, [("kills", 4), ("seed", 1)])
