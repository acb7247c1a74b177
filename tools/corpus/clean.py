"""Documents from extracted texts: repeated lines out, long texts sliced, short and equal documents dropped, stable ids."""

import collections
import dataclasses
import hashlib
import re

SHORTEST = 200  # characters
SLICE = 24_000  # characters; cut at the next blank line, at the latest at SLICE_LIMIT
SLICE_LIMIT = 30_000


@dataclasses.dataclass(frozen=True)
class Document:
    id: str  # 16 hex digits
    text: str
    source: str
    domain: str

    @property
    def number(self):
        return int(self.id, 16)


def document_id(package, path, piece):
    """Does not move when packages are added; a new version of a package keeps the ids of files that keep their names."""
    return hashlib.sha256(f"{package}\0{path}\0{piece}".encode()).hexdigest()[:16]


def drop_repeated_lines(texts):
    """Lines found in more than max(3, 1 %) of the texts are menus, licence headers and the like. Lines without a letter
    (braces, rules) are structure and stay."""
    counts = collections.Counter()
    for text in texts:
        counts.update({line.strip() for line in text.split("\n")})
    limit = max(3, len(texts) / 100)
    repeated = {line for line, count in counts.items() if count > limit and re.search(r"[^\W\d_]", line)}
    if not repeated:
        return list(texts)
    cleaned = []
    for text in texts:
        kept = "\n".join(line for line in text.split("\n") if line.strip() not in repeated)
        cleaned.append(re.sub(r"\n{3,}", "\n\n", kept).strip("\n"))
    return cleaned


def slices(text, size=SLICE, limit=SLICE_LIMIT):
    """Cuts between `size` and `limit` characters at a blank line, if possible one before an unindented line (dictionaries
    indent the body of an entry); else at a line end, else anywhere."""
    pieces = []
    while len(text) > limit:
        entry = re.compile(r"\n\n(?=\S)").search(text, size, limit)
        cut = entry.start() if entry else text.find("\n\n", size, limit)
        if cut < 0:
            cut = text.rfind("\n", 1, limit)
        if cut < 0:
            cut = limit
        pieces.append(text[:cut].strip("\n"))
        text = text[cut:].lstrip("\n")
    return pieces + [text.strip("\n")]


def documents(texts, package, source):
    """`texts`: list of (path, piece number, text) of one source. Returns its documents in that order."""
    if source.sliced:
        pieces = [(path, f"{piece}.{part}", cut) for path, piece, text in texts for part, cut in enumerate(slices(text))]
    else:
        cleaned = [text for _, _, text in texts]
        if source.repeats:
            cleaned = drop_repeated_lines(cleaned)
        pieces = [(path, str(piece), text) for (path, piece, _), text in zip(texts, cleaned)]
    return [
        Document(document_id(package, path, piece), text, source.name, source.domain) for path, piece, text in pieces
        if len(text) >= SHORTEST
    ]


def drop_equal(groups):
    """Of equal documents the first one stays, across all groups (lists of documents). Returns the groups and the number
    dropped."""
    seen, dropped, kept = set(), 0, []
    for group in groups:
        rest = []
        for document in group:
            digest = hashlib.sha256(document.text.strip().encode()).digest()
            if digest in seen:
                dropped += 1
            else:
                seen.add(digest)
                rest.append(document)
        kept.append(rest)
    return kept, dropped
