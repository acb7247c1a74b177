"""From one file of a package to its documents' texts. EXTRACTORS maps a source's `extractor` to a function of
(tree, path, source, tools) that returns a list of texts; tools maps program names to paths."""

import bz2
import email
import email.policy
import html
import json
import lzma
import re
import struct
import subprocess
import zlib

from . import html_text, sword


def decode(data):
    """UTF-8, or Latin-1 where that fails (old change logs, mails, WordNet). Nothing else is normalised."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def from_text(tree, path, source, tools):
    return [decode(tree.read(path))]


def from_html(tree, path, source, tools):
    return [html_text.html_to_text(decode(tree.read(path)))]


def from_dictd(tree, path, source, tools):
    return [decode(tree.read(path))]  # a .dict.dz is a gzip file with an index for random access


def split_fortunes(text):
    return [part.strip("\n") for part in re.split(r"^%\n", text + "\n", flags=re.MULTILINE) if part.strip()]


def from_fortune(tree, path, source, tools):
    return ["\n\n".join(split_fortunes(decode(tree.read(path))))]


def split_crawl(text):
    """Entries of a Dungeon Crawl text file: the key's line, then the text; '#' comments and Lua parts dropped."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{\{.*?\}\}", "", text, flags=re.DOTALL)
    return [part.strip() for part in re.split(r"^%%%%\s*$", text, flags=re.MULTILINE) if part.strip()]


def from_crawl(tree, path, source, tools):
    return ["\n\n".join(split_crawl(decode(tree.read(path))))]


def split_wordnet(text):
    """"lemma, lemma: gloss" of each synset line of a WordNet data file."""
    lines = []
    for line in text.split("\n"):
        data, bar, gloss = line.partition(" | ")
        fields = data.split(" ")
        if bar and len(fields) > 4 and re.fullmatch(r"\d{8}", fields[0]):
            lemmas = fields[4:4 + 2 * int(fields[3], 16):2]
            lines.append(f"{', '.join(lemma.replace('_', ' ') for lemma in lemmas)}: {gloss.strip()}")
    return lines


def from_wordnet(tree, path, source, tools):
    # Blank lines are where slices may be cut.
    return ["\n\n".join(split_wordnet(decode(tree.read(path))))]


POD_ESCAPES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}
POD_CODE = re.compile(r"([BCFILSXZ])(?:<<+\s+(.*?)\s+>>+|<([^<>]*)>)", re.DOTALL)


def pod_inline(text):
    """Formatting codes (B<...>, C<< ... >>, L<text|target>) replaced by what they show, innermost first."""

    def show(match):
        code, body = match.group(1), match.group(2) if match.group(2) is not None else match.group(3)
        if code in "XZ":
            return ""
        return body.split("|")[0].lstrip("/").strip('"') if code == "L" else body

    def escape(match):
        name = match.group(1)
        return POD_ESCAPES.get(name) or (chr(int(name)) if name.isdigit() else html.unescape(f"&{name};"))

    # Escapes are set aside until the end: the '<' that they show must not open a code.
    text = re.sub(r"E<(\w+)>", "\0\\1\0", text)
    replaced = None
    while replaced != text:
        replaced, text = text, POD_CODE.sub(show, text)
    return re.sub("\0(\\w+)\0", escape, text)


def pod_to_text(pod):
    out, skipping = [], False
    for paragraph in re.split(r"\n[ \t]*\n", pod.replace("\r\n", "\n")):
        paragraph = paragraph.strip("\n")
        command = re.match(r"=([a-z]+[0-9]?)[ \t]*(.*)", paragraph, re.DOTALL)
        if command:
            name, rest = command.groups()
            if name == "begin":
                skipping = not rest.startswith("text")
            elif name == "end":
                skipping = False
            elif not skipping and (name.startswith("head") or name == "item") and rest.strip():
                out.append(pod_inline(" ".join(rest.split())))
        elif paragraph.strip() and not skipping:
            # Indented paragraphs are verbatim.
            out.append(paragraph if paragraph[0] in " \t" else pod_inline(paragraph))
    return "\n\n".join(out)


def from_pod(tree, path, source, tools):
    return [pod_to_text(decode(tree.read(path)))]


def strip_overstrikes(text):
    return re.sub(".\b", "", text)


def from_man(tree, path, source, tools):
    page = tree.read(path)
    if re.match(rb"\s*\.so\s", page):  # a stub that names another page
        return []
    result = subprocess.run([tools["mandoc"], "-Tutf8", "-Owidth=100"], input=page, capture_output=True, check=False)
    return [strip_overstrikes(decode(result.stdout))]


def r_strings(data):
    """Character vectors of a serialised R object: CHARSXP records (flags ending in 9) with big-endian lengths."""
    strings, at = [], 0
    while (at := data.find(b"\x00\x09", at)) >= 0:
        # Four bytes of flags end here; a length of -1 is a missing value.
        if at >= 2 and data[at - 2] == 0 and at + 6 <= len(data):
            length = struct.unpack_from(">i", data, at + 2)[0]
            if 0 <= length <= len(data) - at - 6:
                strings.append(decode(data[at + 6:at + 6 + length]))
                at += 6 + length
                continue
        at += 1
    return strings


def r_lazy_load(database):
    """Objects of a lazy-load file: u32 unpacked size, optional type ('2' bzip2, 'Z' xz, '0' none), the packed bytes."""
    at = 0
    while at + 5 < len(database):
        kind, packed = database[at + 4:at + 5], at + 5
        if kind == b"2":
            unpacker = bz2.BZ2Decompressor()
        elif kind == b"Z":
            unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
        else:
            unpacker, packed = zlib.decompressobj(), at + 4
        yield unpacker.decompress(database[packed:])
        at = len(database) - len(unpacker.unused_data)


def from_novels(tree, path, source, tools):
    texts = ("\n".join(r_strings(entry)) for entry in r_lazy_load(tree.read(path)))
    return [text for text in texts if text.lstrip().lower().startswith("persuasion") == (source.part == "Persuasion")]


def from_sword(tree, path, source, tools):
    return [sword.read_module(tree, path, decode)]


def from_mail(tree, path, source, tools):
    message = email.message_from_bytes(tree.read(path), policy=email.policy.compat32)
    texts = [message.get("Subject") or ""]
    for part in message.walk():
        if part.get_content_maintype() == "text":
            body = decode(part.get_payload(decode=True) or b"")
            texts.append(html_text.html_to_text(body) if part.get_content_subtype() == "html" else body)
    return ["\n\n".join(text.replace("\r\n", "\n").strip() for text in texts)]


def doc_comments(code):
    """Texts of /** ... */ comments of at least 80 characters, markup removed, each once."""
    found = {}
    for comment in re.findall(r"/\*\*(.*?)\*/", code, re.DOTALL):
        lines = (re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.split("\n"))
        text = html_text.html_to_text("<pre>" + "\n".join(lines) + "</pre>")
        if len(text) >= 80:
            found[text] = None
    return list(found)


def from_doc_comments(tree, path, source, tools):
    return ["\n\n".join(doc_comments(decode(tree.read(path))))]


def from_spdx(tree, path, source, tools):
    licences = json.loads(decode(tree.read(path)))
    return [licences[name].get("licenseText", "") for name in sorted(licences)]


EXTRACTORS = {
    "text": from_text, "html": from_html, "dictd": from_dictd, "fortune": from_fortune, "crawl": from_crawl,
    "wordnet": from_wordnet, "pod": from_pod, "man": from_man, "novels": from_novels, "sword": from_sword,
    "mail": from_mail, "doc_comments": from_doc_comments, "spdx": from_spdx,
}
