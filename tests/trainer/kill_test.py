#!/usr/bin/env python3
"""Kills the real program at random moments (kill -9), starts it again, and compares the end with a
run that was left alone: state of the last checkpoint (hashes of weights, optimizer state and ids)
and metrics, times apart. The run passes over its data about three times, with n-gram tables, a
second head and sampled stages.

usage: kill_test.py --program build/release/overtok [--kills 20] [--seed 1]
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

# What docs/formats/metrics.md calls measured.
MEASURED = {
    "time", "throughput/duration", "throughput/loading_time", "throughput/tokens_per_second",
    "throughput/examples_per_second", "memory/peak_gib"
}

CONFIG = """
model: {vocab_size: 258, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
        num_attention_heads: 2, num_key_value_heads: 1,
        ngram_embedding: {rows: 997, row_dropout: 0.1}, second_token_head: {weight: 0.1}}
loss: {sampled_softmax: {stages: [{until: 0.4, candidates: 64}, {until: 0.8, candidates: 128}]}}
optimizer: {lr: 0.02, adam_lr: 0.008}
data: {train: [tokens/*.h5], sequence_length: 64}
train: {steps: 200, batch_sequences: 4, micro_batch_sequences: 2}
eval: {held_out: [held_out], tokenizer: bytes, every_steps: 30, at_start: true}
checkpoint: {directory: unset, every_minutes: 0, every_steps: 7, keep: 2}
"""
WINDOWS = 270  # 800 sequences are read: three passes


def make_corpus(folder, program):
    draw = random.Random(5)
    words = ["".join(draw.choice("abcdefghij") for _ in range(draw.randint(1, 9)))
             for _ in range(300)]
    def document():
        return {"text": " ".join(draw.choice(words) for _ in range(draw.randint(3, 40)))}
    with open(folder / "text.jsonl", "w", encoding="utf-8") as out:
        size = 0
        while size < WINDOWS * 64:
            one = document()
            size += len(one["text"]) + 2
            out.write(json.dumps(one) + "\n")
    for name in ("first", "second"):
        path = folder / "held_out" / name / "val"
        path.mkdir(parents=True)
        with open(path / "val.jsonl", "w", encoding="utf-8") as out:
            for _ in range(4):
                out.write(json.dumps(document()) + "\n")
    subprocess.run([program, "tokenize", "--tokenizer", "bytes", "--out", "tokens", "text.jsonl"],
                   cwd=folder, check=True, capture_output=True)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")


def start(folder, program, run):
    return subprocess.Popen([program, "train", "config.yaml", f"checkpoint.directory={run}"],
                            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process):
    error = process.communicate()[1].decode()
    if process.returncode != 0:
        sys.exit(f"kill_test: exit code {process.returncode}: {error}")


def end_of(run):
    """State of the newest marked checkpoint and the metrics, without what is measured."""
    marked = sorted(p.parent for p in run.glob("checkpoints/step-*/complete"))
    state = json.loads((marked[-1] / "state.json").read_text(encoding="utf-8"))
    del state["metrics_bytes"]  # times have more or fewer digits
    lines = []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        lines.append({k: v for k, v in json.loads(line).items() if k not in MEASURED})
    return state, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = options.program.resolve()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="overtok_kill_") as name:
        folder = pathlib.Path(name)
        make_corpus(folder, program)
        begin = time.monotonic()
        finish(start(folder, program, "straight"))
        whole = time.monotonic() - begin
        expected = end_of(folder / "straight")
        kills, rounds, killed_at = 0, 0, []
        while kills < options.kills:
            rounds += 1
            run = f"killed{rounds}"
            this_round = 0
            while kills < options.kills and this_round < 10:
                process = start(folder, program, run)
                try:
                    process.wait(timeout=draw.uniform(0, 0.6 * whole))
                    break  # it came to its end first
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    kills += 1
                    this_round += 1
                    metrics = folder / run / "metrics.jsonl"
                    lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
                    killed_at.append(lines)
            finish(start(folder, program, run))
            found = end_of(folder / run)
            for what, a, b in zip(("state", "metrics"), expected, found):
                if a != b:
                    sys.exit(f"kill_test: {what} of {run} differs:\n{a}\nagainst\n{b}")
        state = expected[0]
        print(f"{kills} kills in {rounds} runs of {state['step']} steps ({whole:.1f} s each), after "
              f"these lines of metrics: {sorted(killed_at)}")
        print(f"all ends equal the run that was left alone: model {state['model_hash']}, optimizer "
              f"{state['optimizer_hash']}, ids {state['ids_hash']}, {len(expected[1])} lines")


if __name__ == "__main__":
    main()
