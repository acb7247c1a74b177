"""Texts of SWORD modules (zText, zCom): the compressed files read directly, without the SWORD library.

A module keeps per testament three files: ?zs says where each compressed block lies (u32 offset, u32 size, u32 unpacked size),
?zv says for each verse (u32 block, u32 start, u16 size; u32 size in modules of the "4" drivers, though not in all of them),
?zz holds the blocks (zlib).
"""

import html
import re
import struct
import zlib


def plain(markup):
    """OSIS or ThML markup to text: notes dropped, lines and paragraphs kept."""
    text = re.sub(r"<(note|title\s+type=\"(?:acrostic|parallel)\")\b[^>]*>.*?</(?:note|title)>", "", markup, flags=re.DOTALL)
    text = re.sub(r"</?(?:p|div|lg|list|item|title|head|br|lb|h[1-6])\b[^>]*>|<milestone type=\"(?:x-p|line)\"[^>]*>|</l>",
                  "\n", text)
    text = html.unescape(re.sub(r"<[^>]*>", "", text))
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text.replace("\r", ""))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


WHERE = struct.Struct("<III")
NARROW, WIDE = struct.Struct("<IIH"), struct.Struct("<III")


def verse_layout(index, verses, wide):
    """The layout of ?zv: what the driver's name says, unless only the other one gives whole entries in existing blocks."""
    count = len(index) // WHERE.size
    for layout in (WIDE, NARROW) if wide else (NARROW, WIDE):
        if len(verses) % layout.size == 0 and all(block < count or size == 0
                                                  for block, _, size in layout.iter_unpack(verses)):
            return layout
    raise ValueError("the verse index of the module fits no known layout")


def entries(index, verses, blocks, wide):
    """Distinct entries in the order of the verses. Linked verses point at one entry and would repeat it many times."""
    unpacked, seen = {}, set()
    for entry in verse_layout(index, verses, wide).iter_unpack(verses):
        block, start, size = entry
        if size == 0 or entry in seen:
            continue
        seen.add(entry)
        if block not in unpacked:
            offset, packed, _ = WHERE.unpack_from(index, block * WHERE.size)
            unpacked = {block: zlib.decompress(blocks[offset:offset + packed])}  # one at a time: they come in order
        yield unpacked[block][start:start + size]


def read_module(tree, path, decode):
    """One testament of a module as text; paragraphs that occur twice are kept once."""
    conf = next((name for name in tree.paths() if re.search(r"/mods\.d/[^/]*\.conf$", name)), None)
    if conf is None:
        raise ValueError("the module's description (mods.d/*.conf) is missing")
    driver = re.search(r"^ModDrv=(\S+)", decode(tree.read(conf)), re.MULTILINE)
    if driver is None or not re.fullmatch(r"z(Text|Com)4?", driver.group(1)):
        raise ValueError(f"driver {driver.group(1) if driver else 'without a name'} of {conf} is not zText or zCom")
    index, verses, blocks = (tree.read(path[:-1] + last) for last in ("s", "v", "z"))
    seen, paragraphs = set(), []
    for entry in entries(index, verses, blocks, driver.group(1).endswith("4")):
        for paragraph in plain(decode(entry)).split("\n"):
            if paragraph.strip() and paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)
