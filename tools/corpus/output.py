"""Writes the corpus: train/*.jsonl.gz, held_out/<set>/{val,test}/*.jsonl.gz, manifest.json. The same documents give the
same bytes; the manifest comes last, so a folder without one is not a corpus."""

import gzip
import io
import json
import os
import pathlib
import shutil


def jsonl_gz(documents):
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as packed:
        for document in documents:
            record = {"text": document.text, "id": document.id, "source": document.source, "domain": document.domain}
            packed.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return buffer.getvalue()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_corpus(out, training, sets, manifest):
    """Replaces train/, held_out/ and manifest.json of `out`; other files there (tokenizer, tokens) stay."""
    out = pathlib.Path(out)
    partial = out / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    for name, documents in sorted(training.items()):
        if documents:
            write(partial / "train" / f"{name}.jsonl.gz", jsonl_gz(documents))
    for name, parts in sets.items():
        for part, documents in parts.items():
            if documents:
                write(partial / "held_out" / name / part / f"{name}.jsonl.gz", jsonl_gz(documents))
    (out / "manifest.json").unlink(missing_ok=True)
    for folder in ("train", "held_out"):
        shutil.rmtree(out / folder, ignore_errors=True)
        if (partial / folder).exists():
            (partial / folder).rename(out / folder)
    write(partial / "manifest.json", (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    (partial / "manifest.json").rename(out / "manifest.json")
    shutil.rmtree(partial, ignore_errors=True)
