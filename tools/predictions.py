#!/usr/bin/env python3
"""Predicted steps of the recipes on one described GPU, and what tables take, as the tables of docs/gpu.md.

usage: tools/predictions.py [--program build/release/overtok] [--hardware configs/hardware/h200.yaml]
Needs no GPU: `overtok bench step --predict` counts every op of a step where the step asks for it.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMON = ["train.precision=bf16", "train.device=cpu"]
# Recipe, keys, and tokens/s to reach with the full softmax (first, goal). 1.2B: its recipe's micro-batch of 32 windows
# needs more memory than there is.
SIZES = [
    ("130m", [], 400e3, 550e3),
    ("300m", [], 180e3, 275e3),
    ("520m", [], 80e3, 115e3),
    ("1_2b", ["train.micro_batch_sequences=16"], 35e3, 50e3),
]


def run(arguments, *command):
    out = subprocess.run([arguments.program, *command], capture_output=True, text=True, cwd=ROOT)
    if out.returncode != 0:
        sys.exit("predictions.py: " + " ".join(command) + ": " + out.stderr.strip())
    return json.loads(out.stdout)


def predict(arguments, size, arm=None, keys=()):
    laid = ["--arm", f"configs/arms/{arm}.yaml"] if arm else []
    return run(arguments, "bench", "step", f"configs/recipes/{size}.yaml", *laid, "--predict", "--hardware",
               arguments.hardware, "--ids", "text", *COMMON, *keys)


def shown(size):
    return size.replace("1_2b", "1.2B")


def thousands(value):
    return f"{value / 1e3:,.0f}k"


def steps(arguments):
    full, sampled = {}, {}
    print("| | full softmax: step, tokens/s | first / goal | P = 24,576 | P = 36,864 | P = 65,536 | whole schedule | over "
          "full | device memory, GiB |\n|---|---|---|---|---|---|---|---|---|")
    for size, keys, first, goal in SIZES:
        full[size] = predict(arguments, size, keys=keys)
        sampled[size] = predict(arguments, size, "ss", keys)
        stages = {stage["candidates"]: stage for stage in sampled[size]["stages"]}
        cells = [f"{full[size]['step_ms']:,.0f} ms, {thousands(full[size]['tokens_per_second'])}",
                 f"{thousands(first)} / {thousands(goal)}"]
        cells += [thousands(stages[p]["tokens_per_second"]) for p in (24576, 36864, 65536)]
        cells += [thousands(sampled[size]["tokens_per_second"]),
                  f"{full[size]['step_ms'] / sampled[size]['step_ms']:.2f}x", f"{full[size]['planned_gib']:.0f}"]
        print(f"| {shown(size)} | " + " | ".join(cells) + " |")
    return full, sampled


def arms(arguments, baseline):
    print("\n| at 300m | mean step, tokens/s | over the baseline with the full softmax | first / goal |\n|---|---|---|---|")
    for name, arm, wanted, invert in (("input tables (oe)", "oe", "at most 1.03x / 1.01x its time", True),
                                      ("OT-H, both heads sampled (ot_h_ss)", "ot_h_ss", "1.05x / 1.12x its rate", False),
                                      ("OT-H, full softmax (ot_h)", "ot_h", "", False)):
        step = predict(arguments, "300m", arm)
        ratio = step["step_ms"] / baseline["step_ms"] if invert else baseline["step_ms"] / step["step_ms"]
        print(f"| {name} | {step['step_ms']:,.0f} ms, {thousands(step['tokens_per_second'])} | "
              f"{ratio:.3f}x its {'time' if invert else 'rate'} | {wanted} |")


def shares(full, sampled):
    parts = list(full["130m"]["stages"][0]["parts_ms"])
    print("\n| share of a step, % | " + " | ".join(parts) + " |\n|---" + "|---" * len(parts) + "|")
    for size, *_ in SIZES:
        for name, step in ((f"{shown(size)}, full", full[size]), (f"{shown(size)}, P = 24,576", sampled[size])):
            stage = step["stages"][0]
            print(f"| {name} | " + " | ".join(f"{100 * stage['parts_ms'][p] / stage['step_ms']:.1f}" for p in parts) + " |")


def tables(arguments):
    plan = run(arguments, "plan", "configs/recipes/300m.yaml", "--arm", "configs/arms/oe.yaml", "--json", *COMMON)
    print("\n| tables at 300m | values, GB | state, GB | together | wanted |\n|---|---|---|---|---|")
    options = plan["tables"]["options"]
    for name, wanted in (("update: exact", "80"), ("all three of these", "14")):
        row = options[name]
        values, state = row["value_bytes"] / 1e9, row["state_bytes"] / 1e9
        print(f"| {name} | {values:.1f} | {state:.1f} | {values + state:.1f} | {wanted} |")
    keys = ["optimizer.tables.storage=bf16", "optimizer.tables.second_moment=row"]
    plan = run(arguments, "plan", "configs/recipes/300m.yaml", "--arm", "configs/arms/oe.yaml", "--json", *COMMON, *keys)
    total = plan["tables"]["total"]
    values, state = total["value_bytes"] / 1e9, total["state_bytes"] / 1e9
    print(f"| {', '.join(keys)} | {values:.1f} | {state:.1f} | {values + state:.1f} | 40 |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/overtok"))
    parser.add_argument("--hardware", default="configs/hardware/h200.yaml")
    arguments = parser.parse_args()
    arguments.program = str(pathlib.Path(arguments.program).resolve())
    full, sampled = steps(arguments)
    arms(arguments, full["300m"])
    shares(full, sampled)
    tables(arguments)


if __name__ == "__main__":
    main()
