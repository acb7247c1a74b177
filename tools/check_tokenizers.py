#!/usr/bin/env python3
"""Compares overtok's tokenizers with Hugging Face `tokenizers`, id by id.

For Llama-3's and Qwen's vocabularies (their rank files come from PyPI and are never stored in the
repository), turned into tokenizer.json by transformers' own converter, and for vocabularies that
`overtok tokenizer train` and `truncate` make: random mixtures of Unicode ranges, every code point in
a few surroundings, texts with special-token strings in them, and real text where files are given.
Also prints the encoding speed on one core for those files.

    python3 tools/check_tokenizers.py --overtok build/release/overtok [--text FILE.txt ...]

Needs PyPI; without it the check is skipped with a message and exit code 0 (--require makes that an
error). Everything is installed and kept under --cache.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import zipfile

PACKAGES = ["tokenizers", "transformers", "tiktoken"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
FAMILIES = {
    "llama3": {
        "package": "llama-models",
        "file": "llama3/tokenizer.model",
        "pattern": LLAMA3,
        "specials": ["<|begin_of_text|>", "<|end_of_text|>"]
                    + [f"<|reserved_special_token_{i}|>" for i in range(254)],
        "nfc": False,
        "ignore_merges": True,
    },
    "qwen2": {
        "package": "dashscope",
        "file": "resources/qwen.tiktoken",
        "pattern": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
        "specials": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "nfc": True,
        "ignore_merges": False,
    },
}
# First and last code point of the ranges that random strings are mixed from.
RANGES = [
    (0x20, 0x7E), (0x41, 0x5A), (0x61, 0x7A), (0x30, 0x39), (0x09, 0x0D), (0x80, 0xFF), (0x100, 0x24F),
    (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1800, 0x180F), (0x1E00, 0x1EFF), (0x2000, 0x206F),
    (0x2100, 0x218F), (0x2200, 0x22FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xFB00, 0xFB06), (0xFE00, 0xFEFF), (0xFF00, 0xFFEF), (0x10D30, 0x10D39), (0x1D400, 0x1D7FF),
    (0x1E900, 0x1E95F), (0x1F300, 0x1F6FF),
]
FIXED = ["'s", "'S", "'\u017f", "'LL", "'ve", " don't", "\r\n", "\n\n", "   ", "\t\t", "\u0085", "\u00a0",
         "\u180e", "\ufeff", "\u200d", "\u3000", "e\u0301", "\u1100\u1161\u11a8", "100000", "====", "</s>"]


def skip(reason, require):
    print(f"check_tokenizers: skipped: {reason}")
    sys.exit(1 if require else 0)


def run(command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def set_up(cache, require):
    """Installs the packages into a virtual environment; returns its python."""
    python = cache / "venv" / "bin" / "python"
    try:
        if not python.exists():
            run([sys.executable, "-m", "venv", str(cache / "venv")])
        missing = subprocess.run([str(python), "-c", "import " + ",".join(PACKAGES)], capture_output=True)
        if missing.returncode != 0:
            run([str(python), "-m", "pip", "install", "-q", *PACKAGES])
        for family in FAMILIES.values():
            folder = cache / family["package"]
            if folder.exists():
                continue
            run([str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache / "wheels"),
                 family["package"]])
            stem = family["package"].replace("-", "_")
            wheel = sorted((cache / "wheels").glob(stem + "-*.whl"))[-1]
            partial = folder.with_suffix(".partial")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
            partial.rename(folder)
    except (subprocess.CalledProcessError, OSError, IndexError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        skip(f"the packages cannot be had ({detail.strip().splitlines()[-1]})", require)
    return python


def rank_file(cache, family):
    found = sorted((cache / family["package"]).rglob(family["file"].split("/")[-1]))
    found = [path for path in found if str(path).endswith(family["file"])]
    if not found:
        raise SystemExit(f"check_tokenizers: {family['package']} holds no {family['file']}")
    return found[0]


def convert(ranks, family, out):
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    tokenizer = TikTokenConverter(str(ranks), pattern=family["pattern"],
                                  extra_special_tokens=family["specials"]).converted()
    tokenizer.model.ignore_merges = family["ignore_merges"]
    if family["nfc"]:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(out))


def random_strings(count, seed, specials):
    generator = random.Random(seed)
    strings = []
    for _ in range(count):
        parts = []
        for _ in range(generator.randint(1, 24)):
            low, high = generator.choice(RANGES)
            kind = generator.random()
            if kind < 0.2:
                parts.append(generator.choice(FIXED))
            elif kind < 0.22:
                parts.append(generator.choice(specials))
            elif kind < 0.24:
                parts.append(chr(generator.randint(low, high)) * generator.randint(2, 200))
            else:
                parts.append("".join(chr(generator.randint(low, high))
                                     for _ in range(generator.randint(1, 8))))
        strings.append("".join(parts))
    return strings


def code_point_strings():
    """Every code point between letters, digits, spaces and punctuation (not the empty planes)."""
    strings = []
    for code in range(1, 0x110000):
        if 0xD800 <= code < 0xE000 or 0x33480 <= code < 0xE0000 or 0xE0200 <= code:
            continue
        c = chr(code)
        strings.append(f"a{c}b {c}{c}1{c}2 '{c} x\n{c}\n!{c}! {c}\r\n")
    return strings


class Checker:
    def __init__(self, overtok, cache):
        self.overtok, self.cache, self.failures = overtok, cache, 0

    def encode(self, arguments, path):
        done = subprocess.run([self.overtok, "tokenizer", "encode", *arguments, str(path)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"check_tokenizers: overtok failed: {done.stderr}")
        ids = [[int(x) for x in line.split()] for line in done.stdout.split("\n")[:-1]]
        return ids, done.stderr.strip().splitlines()[-1]

    def compare(self, title, arguments, oracle, strings, parse=False):
        path = self.cache / "strings.jsonl"
        with open(path, "w", encoding="utf-8") as out:
            for text in strings:
                out.write(json.dumps({"text": text}) + "\n")
        ours, speed = self.encode(arguments + (["--parse-added-tokens"] if parse else []), path)
        oracle.encode_special_tokens = not parse
        bad, tokens = [], 0
        for start in range(0, len(strings), 10000):
            batch = oracle.encode_batch(strings[start:start + 10000], add_special_tokens=False)
            for i, theirs in enumerate(batch, start):
                tokens += len(theirs.ids)
                if theirs.ids != ours[i]:
                    bad.append(i)
        if len(ours) != len(strings):
            raise SystemExit(f"check_tokenizers: {len(strings)} strings gave {len(ours)} lines")
        print(f"{title}: {len(strings)} strings, {tokens} tokens, {len(bad)} mismatches", flush=True)
        for i in bad[:5]:
            print(f"  {strings[i]!r}\n    overtok: {ours[i]}\n    tokenizers: "
                  f"{oracle.encode(strings[i], add_special_tokens=False).ids}")
        self.failures += len(bad)
        return speed


def inside(options):
    from tokenizers import Tokenizer

    cache = pathlib.Path(options.cache)
    checker = Checker(options.overtok, cache)
    forged = [special for family in FAMILIES.values() for special in family["specials"][:2]]
    strings = random_strings(options.strings, 1, forged)
    strings += ["", " ", "=" * 100000, "a" * 50000, " " * 20000, "\n" * 20000, "ab" * 30000]
    points = code_point_strings()
    texts = []
    for path in options.text:
        data = pathlib.Path(path).read_text(encoding="utf-8", errors="strict")
        texts.append((path, [data[i:i + 20000] for i in range(0, len(data), 20000)]))

    tokenizers = []
    for name, family in FAMILIES.items():
        ranks, converted = rank_file(cache, family), cache / f"{name}.json"
        if not converted.exists():
            convert(ranks, family, converted)
        tokenizers.append((name, ["--tokenizer", str(converted)], converted))
        if not family["nfc"]:
            specials = [part for s in family["specials"] for part in ("--special", s)]
            tokenizers.append((f"{name} ranks", ["--tokenizer", str(ranks), "--pattern", name, *specials],
                               converted))
        small = cache / f"{name}-8k.json"
        run([options.overtok, "tokenizer", "truncate", "--in", str(converted), "--vocab-size", "8192",
             "--out", str(small)])
        tokenizers.append((f"{name} truncated to 8192", ["--tokenizer", str(small)], small))
    sample = cache / "train.txt"
    sample.write_text("\n".join(s for s in strings if len(s) < 2000), encoding="utf-8")
    for pattern in ("gpt2", "llama3", "qwen2"):
        trained = cache / f"trained-{pattern}.json"
        run([options.overtok, "tokenizer", "train", "--vocab-size", "2000", "--pattern", pattern, "--out",
             str(trained), *(options.text or [str(sample)])])
        tokenizers.append((f"trained, {pattern}", ["--tokenizer", str(trained)], trained))
    # GPT-2's own form: the pattern is ByteLevel's, with and without the space in front.
    for space in (False, True):
        form = json.loads((cache / "trained-gpt2.json").read_text(encoding="utf-8"))
        form["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True,
                                 "use_regex": True}
        form["model"]["merges"] = [merge.split(" ") for merge in form["model"]["merges"]]
        path = cache / f"gpt2-form-{space}.json"
        path.write_text(json.dumps(form), encoding="utf-8")
        tokenizers.append((f"GPT-2's form, add_prefix_space {space}", ["--tokenizer", str(path)], path))

    for title, arguments, file in tokenizers:
        oracle = Tokenizer.from_file(str(file))
        checker.compare(title + ", random", arguments, oracle, strings)
        checker.compare(title + ", added tokens parsed", arguments, oracle, strings, parse=True)
        if title in ("llama3", "qwen2", "GPT-2's form, add_prefix_space False"):  # each pattern once
            checker.compare(title + ", code points", arguments, oracle, points)
        for path, pieces in texts:
            checker.compare(f"{title}, {path}", arguments, oracle, pieces)
            _, speed = checker.encode(arguments, path)
            print(f"  {speed}")
    print(f"check_tokenizers: {checker.failures} mismatches")
    sys.exit(1 if checker.failures else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--overtok", default="build/release/overtok", help="the program to check")
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/overtok/check_tokenizers"))
    parser.add_argument("--strings", type=int, default=3300, help="random strings a vocabulary")
    parser.add_argument("--text", nargs="*", default=[], help=".txt files of real text")
    parser.add_argument("--require", action="store_true", help="fail when packages cannot be had")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    if not os.access(options.overtok, os.X_OK):
        raise SystemExit(f"check_tokenizers: {options.overtok} is not a program; build it first")
    cache = pathlib.Path(options.cache)
    cache.mkdir(parents=True, exist_ok=True)
    python = set_up(cache, options.require)
    arguments = [str(python), __file__, "--inside", *sys.argv[1:]]
    sys.exit(subprocess.run(arguments, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}).returncode)


if __name__ == "__main__":
    main()
