#!/usr/bin/env python3
"""Jobs of several ranks as users start them: what ranks disagree on or one of them alone finds is told once, and all leave
with exit code 1 and without a run; numbers of tokens and FLOPs, evaluations and files do not depend on the number of ranks.

usage: ranks_launch_test.py --program build/release/overtok
"""

import json
import shutil

from ranks_jobs import expect, run_test

RANK = "$OMPI_COMM_WORLD_RANK"


def shell(jobs, command):
    """Every rank runs a line of shell; %s is the program."""
    return ["sh", "-c", command % f"'{jobs.program}'"]


def expect_error(jobs, process, run, *parts):
    output = jobs.finish(process, 1)
    errors = [line for line in output.splitlines() if line.startswith("overtok train: ")]
    expect(len(errors) == 1, f"{len(errors)} errors were told, expected 1", output)
    for part in parts:
        expect(part in errors[0], f'the error does not say "{part}"', output)
    expect(not list((jobs.folder / run).glob("checkpoints/*")), f"{run} has a checkpoint", output)
    return errors[0]


def disagreements(jobs):
    train = f"exec %s train config.yaml checkpoint.directory=refused train.micro_batch_sequences=1 train.seed={RANK}"
    expect_error(jobs, jobs.start(2, shell(jobs, train)), "refused",
                 "rank 1: the configuration is not the same on all ranks: train.seed is 1, and 0 on rank 0; ")
    # Each rank finds it by itself; one of them tells.
    expect_error(jobs, jobs.train(3, "refused"), "refused", "train.batch_sequences: 4 is no multiple of", "1 x 3")
    expect_error(jobs, jobs.train(2, "refused", "parallel.tensor=4"), "refused",
                 "parallel.tensor: 4 does not divide the number of ranks, 2")
    expect_error(jobs, jobs.train(4, "refused", "parallel.tensor=4"), "refused",
                 "parallel.tensor: 4 does not divide model.num_attention_heads = 2")
    print("ranks that disagree, and layouts that do not fit: one error, exit code 1")


def damaged_shards(jobs):
    """Rank 1 reads a copy of the corpus of its own."""
    shard = (jobs.folder / "tokens" / "shard_00000.h5").read_bytes()
    for rank in (0, 1):
        shutil.copytree(jobs.folder / "tokens", jobs.folder / f"of{rank}" / "tokens")
    train = (f"cd of{RANK} && exec %s train ../config.yaml checkpoint.directory=../refused "
             "train.micro_batch_sequences=1 'eval.held_out=[../held_out]'")
    other = jobs.folder / "of1" / "tokens" / "shard_00000.h5"
    told = []
    # Cut off, empty, and with an id that is none.
    inside = 6 * len(shard) // 10
    for damage in (shard[:len(shard) // 2], b"", shard[:inside] + b"\xff" * 4 + shard[inside + 4:]):
        other.write_bytes(damage)
        told.append(expect_error(jobs, jobs.start(2, shell(jobs, train)), "refused", "rank 1", "shard_00000.h5"))
    # Sound, and of another text.
    shutil.rmtree(other.parent)
    (jobs.folder / "other.jsonl").write_text(json.dumps({"text": "abc " * 5000}) + "\n", encoding="utf-8")
    jobs.finish(jobs.start(0, [jobs.program, "tokenize", "--tokenizer", "bytes", "--out", "of1/tokens", "other.jsonl"]))
    expect_error(jobs, jobs.start(2, shell(jobs, train)), "refused", "the hash of the corpus", "rank 1")
    print("a damaged shard that one rank alone sees:", told[0])


def same_numbers(jobs):
    """One rank with four micro-batches, and four ranks with one each."""
    more = ["train.steps=36", "checkpoint.every_steps=0"]
    output = {}
    for run, ranks in (("one", 0), ("four", 4)):
        output[run] = jobs.finish(jobs.train(ranks, run, *more))
        files = sorted(path.relative_to(jobs.folder / run).as_posix() for path in (jobs.folder / run).rglob("*"))
        expected = ["checkpoints", "checkpoints/step-00000036", "config.yaml", "lock", "manifest.json", "metrics.jsonl"]
        expected += [f"checkpoints/step-00000036/{name}" for name in ("complete", "state.json", "tensors.json")]
        expected += [f"checkpoints/step-00000036/rank-{rank:05}.h5" for rank in range(max(1, ranks))]
        expect(files == sorted(expected), f"{run} has {files}")
        manifest = json.loads((jobs.folder / run / "manifest.json").read_text(encoding="utf-8"))
        expect(len(manifest["starts"]) == 1, f"{len(manifest['starts'])} starts in the manifest of {run}")
        expect(output[run].count("finished 36 steps") == 1, "more than one rank tells", output[run])
    # Every line once, the last of them too; totals of tokens and FLOPs are among the values.
    jobs.expect_equal_ends("one", "four")
    lines = jobs.end("four")[1]
    trained = [line for line in lines if line["kind"] == "train"]
    expect([line["step"] for line in trained] == list(range(1, 37)), "steps of the metrics")
    for line in trained:
        expect(line["throughput/total_tokens"] == line["step"] * 4 * 64, f"tokens of step {line['step']}")
        expect(line["throughput/total_gflops"] == line["step"] * trained[0]["throughput/total_gflops"] or
               abs(line["throughput/total_gflops"] / (line["step"] * trained[0]["throughput/total_gflops"]) - 1) < 1e-12,
               f"FLOPs of step {line['step']}")
    print("1 x 4 and 4 x 1: equal files, steps, tokens and FLOPs")


def evaluations(jobs):
    scores = {}
    for ranks, tensor in ((0, 1), (2, 1), (2, 2)):
        out = f"scores{ranks}{tensor}.json"
        command = [jobs.program, "eval", "four", f"parallel.tensor={tensor}", "--out", out]
        jobs.finish(jobs.start(ranks, command))
        scores[ranks, tensor] = json.loads((jobs.folder / out).read_text(encoding="utf-8"))
    expect(scores[2, 1] == scores[0, 1], f"{scores[2, 1]}\nagainst one rank's\n{scores[0, 1]}")

    def numbers(value):
        if isinstance(value, dict):
            return [number for part in value.values() for number in numbers(part)]
        if isinstance(value, list):
            return [number for part in value for number in numbers(part)]
        return [value]

    pairs = list(zip(numbers(scores[2, 2]), numbers(scores[0, 1]), strict=True))
    expect(len(pairs) > 10, f"only {len(pairs)} values in {scores[0, 1]}")
    for found, expected in pairs:
        # f32 sums of another order.
        same = abs(found / expected - 1) <= 1e-5 if isinstance(expected, float) and expected else found == expected
        expect(same, f"{found} with two tensor ranks, {expected} with one\n{scores[2, 2]}")
    print(f"overtok eval: {len(pairs)} values are those of one rank")


def test(jobs, _):
    disagreements(jobs)
    damaged_shards(jobs)
    same_numbers(jobs)
    evaluations(jobs)


if __name__ == "__main__":
    run_test(__doc__, test)
