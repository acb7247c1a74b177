"""Tests of the pure parts of tools/build_corpus.py: extraction, cleaning, splits, output. No network, no packages."""

import gzip
import json
import pathlib
import re
import struct
import sys
import tempfile
import unittest
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from corpus import clean, extract, html_text, output, packages, sources, split, sword  # noqa: E402


def document(number, text="x" * 300, source="s", domain="d"):
    return clean.Document(f"{number:016x}", text, source, domain)


def source(**more):
    fields = dict(name="s", domain="d", packages=("p",), extractor="text", files=(".",))
    return sources.Source(**(fields | more))


class FakeTree:
    def __init__(self, files):
        self.files = files

    def paths(self):
        return sorted(self.files)

    def read(self, path):
        return self.files[path]


class Html(unittest.TestCase):
    def test_prose_is_reflowed_and_pre_is_verbatim(self):
        page = "<html><head><title>t</title></head><body><p>one\n   two</p><pre>a\n    b\n</pre><p>x &lt; y</p></body></html>"
        self.assertEqual(html_text.html_to_text(page), "one two\n\na\n    b\n\nx < y")

    def test_navigation_is_dropped_with_everything_inside(self):
        page = ("<body><div class='NavHeader'><div>up</div>down</div><nav><ul><li>menu</ul></nav><script>if (a<b) {}</script>"
                "<div role='navigation'>path</div><p>kept<a class='headerlink' href='#x'>¶</a></p><svg><text>no</text></svg>")
        self.assertEqual(html_text.html_to_text(page), "kept")

    def test_unclosed_head_ends_at_the_body(self):
        self.assertEqual(html_text.html_to_text("<head><title>t<body>text"), "text")

    def test_void_elements_do_not_start_a_skip(self):
        self.assertEqual(html_text.html_to_text("<p>a<img class='nav' src='x'>b</p>"), "ab")


class Formats(unittest.TestCase):
    def test_decode_falls_back_to_latin_1(self):
        self.assertEqual(extract.decode("é".encode()), "é")
        self.assertEqual(extract.decode(b"caf\xe9"), "café")

    def test_fortunes(self):
        self.assertEqual(extract.split_fortunes("one\n%\ntwo\n\tlines %\n%\n"), ["one", "two\n\tlines %"])

    def test_crawl(self):
        self.assertEqual(extract.split_crawl("%%%%\n# note\nAgnes\n\nShe {{ return 1 }}walks.\n%%%%\n"), ["Agnes\n\nShe walks."])

    def test_wordnet(self):
        line = "00001740 03 n 02 entity 0 living_thing 0 001 ~ 00001930 n 0000 | that which exists  "
        self.assertEqual(extract.split_wordnet("  1 This software\n" + line), ["entity, living thing: that which exists"])

    def test_pod(self):
        pod = ("=encoding utf8\n\n=head1 The B<Name>\n\nUse C<< $a->{b} >> and L<the manual|perlfunc> E<lt>nowE<gt>, "
               "I<not C<nested>>.\n\n    verbatim B<x>\n\n=begin html\n\n<b>no</b>\n\n=end html\n\n=cut\n")
        self.assertEqual(extract.pod_to_text(pod),
                         "The Name\n\nUse $a->{b} and the manual <now>, not nested.\n\n    verbatim B<x>")

    def test_overstrikes(self):
        self.assertEqual(extract.strip_overstrikes("N\bNA\bA _\bx"), "NA x")

    def test_r_lazy_load_finds_the_strings_of_every_object(self):
        def text(value):
            return b"\0\x04\0\x09" + struct.pack(">i", len(value)) + value

        missing = b"\0\0\0\x09" + struct.pack(">i", -1)
        objects = [text(b"Persuasion") + missing + text(b"") + text(b"by J."), text(b"EMMA")]
        database = b"".join(struct.pack(">I", len(data)) + zlib.compress(data) for data in objects)
        tree = FakeTree({"x.rdb": database})
        self.assertEqual(extract.from_novels(tree, "x.rdb", source(part="Persuasion"), {}), ["Persuasion\n\nby J."])
        self.assertEqual(extract.from_novels(tree, "x.rdb", source(part="all but Persuasion"), {}), ["EMMA"])

    def test_doc_comments_are_long_and_unique(self):
        long = "/**\n * " + "word " * 20 + "\n */\n"
        self.assertEqual(extract.doc_comments("/** short */\n" + long + long), [("word " * 20).strip()])

    def test_mail_takes_text_parts(self):
        mail = (b"Subject: hello\nContent-Type: multipart/alternative; boundary=b\n\n--b\nContent-Type: text/plain\n\nplain\n"
                b"--b\nContent-Type: text/html\n\n<p>rich</p>\n--b\nContent-Type: image/png\n\nnoise\n--b--\n")
        self.assertEqual(extract.from_mail(FakeTree({"m": mail}), "m", source(), {}), ["hello\n\nplain\n\nrich"])


class Sword(unittest.TestCase):
    def module(self, layout, driver):
        block = zlib.compress(b"<verse>In the <w>beginning</w></verse><note>no</note>\nLight")
        first = len(b"<verse>In the <w>beginning</w></verse><note>no</note>\n")
        verses = [(0, 0, 0), (0, 0, first), (0, 0, first), (0, first, 5)]
        return FakeTree({"d/mods.d/x.conf": f"[X]\nModDrv={driver}\n".encode(), "d/ot.bzz": block,
                         "d/ot.bzs": struct.pack("<III", 0, len(block), 0),
                         "d/ot.bzv": b"".join(layout.pack(*verse) for verse in verses)})

    def test_linked_verses_come_once(self):
        for layout, driver in ((sword.NARROW, "zText"), (sword.WIDE, "zCom4")):
            self.assertEqual(sword.read_module(self.module(layout, driver), "d/ot.bzz", extract.decode),
                             "In the beginning\n\nLight")

    def test_a_driver_name_that_lies_about_the_width(self):
        self.assertEqual(sword.read_module(self.module(sword.NARROW, "zCom4"), "d/ot.bzz", extract.decode),
                         "In the beginning\n\nLight")

    def test_other_drivers_are_refused(self):
        with self.assertRaisesRegex(ValueError, "RawLD"):
            sword.read_module(self.module(sword.NARROW, "RawLD"), "d/ot.bzz", extract.decode)


class Clean(unittest.TestCase):
    def test_repeated_lines_go_but_structure_stays(self):
        texts = [f"Menu\n{{\nbody {number}\n}}" for number in range(4)]
        self.assertEqual(clean.drop_repeated_lines(texts), [f"{{\nbody {number}\n}}" for number in range(4)])
        self.assertEqual(clean.drop_repeated_lines(texts[:3]), texts[:3])  # three of three: at the limit, kept

    def test_slices_lose_nothing_and_cut_before_entries(self):
        text = "\n\n".join(f"word{number}\n\n   body " + "y" * 400 for number in range(200))
        pieces = clean.slices(text, 5000, 7000)
        self.assertEqual("\n\n".join(pieces), text)
        self.assertTrue(all(piece.startswith("word") and len(piece) <= 7000 for piece in pieces))

    def test_slices_of_text_without_line_ends(self):
        self.assertEqual(clean.slices("z" * 25, 8, 10), ["z" * 10, "z" * 10, "z" * 5])

    def test_ids_are_stable(self):
        # Pinned: a change moves documents between training and held-out text.
        self.assertEqual(clean.document_id("dict-devil", "usr/share/dictd/devil.dict.dz", "0.3"), "1f350c8f0724a24b")

    def test_short_documents_are_dropped(self):
        texts = [("a", 0, "x" * 199), ("b", 0, "y" * 200)]
        self.assertEqual([d.text[0] for d in clean.documents(texts, "p", source())], ["y"])

    def test_of_equal_documents_the_first_stays(self):
        groups, dropped = clean.drop_equal([[document(1, "same")], [document(2, "same\n"), document(3, "other")]])
        self.assertEqual([[d.number for d in group] for group in groups], [[1], [3]])
        self.assertEqual(dropped, 1)


class Split(unittest.TestCase):
    def test_no_document_is_on_both_sides(self):
        trained = [document(number, f"text {number} " + "x" * 300) for number in range(200)]
        foreign = [document(1000 + number, "y" * 300, "t") for number in range(10)]
        sets, training = split.held_out_sets([(source(), trained), (source(name="t", held_out="novel"), foreign)], 700, {})
        self.assertEqual(set(training), {"s"})
        self.assertEqual(set(sets), {"in_domain_d", "novel"})
        held = {d.id for parts in sets.values() for part in parts.values() for d in part}
        self.assertFalse(held & {d.id for d in training["s"]})
        self.assertEqual([d.number for d in sets["in_domain_d"]["val"]], [0, 50])
        self.assertEqual([d.number for d in sets["in_domain_d"]["test"]], [100, 150])
        self.assertEqual(len(training["s"]), 196)

    def test_a_long_document_does_not_end_a_set(self):
        ordered = [document(1, "a" * 300), document(2, "b" * 9000), document(3, "c" * 300)]
        taken, rest = split.first_bytes(ordered, 1000)
        self.assertEqual(([d.number for d in taken], [d.number for d in rest]), ([1, 3], [2]))
        self.assertEqual([d.number for d in split.first_bytes(ordered[1:2], 1000)[0]], [2])

    def test_sources_kept_out_of_held_out_sets(self):
        sets, training = split.held_out_sets([(source(in_domain=False), [document(0), document(50)])], 1000, {})
        self.assertEqual((sets, len(training["s"])), ({}, 2))

    def test_domains_can_share_a_set(self):
        sets, _ = split.held_out_sets([(source(), [document(0)]), (source(name="t", domain="e"), [document(50)])], 1000,
                                      {"d": "both", "e": "both"})
        self.assertEqual([d.number for d in sets["in_domain_both"]["val"]], [0, 50])

    def test_caps_hold(self):
        training = {"big": [document(n, "x" * 1000, "big") for n in range(90)], "s": [document(1000 + n, "x" * 1000) for n in
                                                                                     range(10)]}
        kept = split.apply_caps(training, [source(name="big"), source()], 0.6, {})
        sizes = {name: sum(map(split.size, documents)) for name, documents in kept.items()}
        self.assertLessEqual(sizes["big"], 0.6 * sum(sizes.values()))
        self.assertEqual((sizes["s"], len(kept["big"])), (10000, 15))
        self.assertEqual([d.number for d in kept["big"]], list(range(15)))

    def test_caps_that_cannot_fill_a_whole_are_widened(self):
        total, widen = split.capped_total({"a": 100, "b": 100}, {"a": 0.1, "b": 0.1})
        self.assertAlmostEqual(total, 200, delta=2)
        self.assertAlmostEqual(widen, 5.05)

    def test_overlap(self):
        words = " ".join(f"w{number}" for number in range(26))
        sets = {"same": {"val": [document(0, words)]}, "other": {"val": [document(1, words.upper())]},
                "short": {"val": [document(2, "few words")]}}
        self.assertEqual(split.overlap_shares(sets, {"s": [document(3, "before " + words)]}),
                         {"same": 1.0, "other": 0.0, "short": 0.0})


class Output(unittest.TestCase):
    def test_layout_and_determinism(self):
        sets = {"novel": {"val": [document(1, "é")], "test": []}}
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            (out / "tokenizer.json").write_text("{}")
            for _ in range(2):  # the second time over the first
                output.write_corpus(out, {"s": [document(2)]}, sets, {"version": 1})
            files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
            self.assertEqual(files, ["held_out/novel/val/novel.jsonl.gz", "manifest.json", "tokenizer.json",
                                     "train/s.jsonl.gz"])
            packed = (out / "held_out/novel/val/novel.jsonl.gz").read_bytes()
            self.assertEqual(packed[4:8], b"\0\0\0\0")  # no time stamp
            self.assertEqual(json.loads(gzip.decompress(packed)),
                             {"text": "é", "id": f"{1:016x}", "source": "s", "domain": "d"})


class Table(unittest.TestCase):
    def test_sources_are_well_formed(self):
        for table in (sources.MINI, sources.CORE, sources.NPM):
            self.assertEqual(len({s.name for s in table}), len(table))
            for entry in table:
                self.assertIn(entry.extractor, extract.EXTRACTORS)
                self.assertRegex(entry.name + entry.domain + entry.held_out, r"^[a-z0-9_]+$")
                for pattern in (*entry.files, entry.skip):
                    re.compile(pattern)
        self.assertGreaterEqual(len({s.domain for s in sources.MINI}), 8)

    def test_english_pages_only(self):
        guide = sources.html("g", "d", ["p"])
        for path in ("/doc/index.html", "/doc/FAQ/ch01.en.html", "/doc/html/en/ch1.html"):
            self.assertTrue(guide.wants(path), path)
        for path in ("/doc/FAQ/ch01.de.html", "/doc/html/fr/ch1.html", "/doc/x.pt-br.html", "/doc/genindex.html",
                     "/doc/_modules/django/db.html", "/doc/a.png"):
            self.assertFalse(guide.wants(path), path)

    def test_tree_walk_is_sorted_and_without_links(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "b").mkdir()
            (root / "b/2").write_text("x")
            (root / "a").write_bytes(gzip.compress(b"packed"))
            (root / "link").symlink_to("a")
            tree = packages.Tree(root)
            self.assertEqual(tree.paths(), ["a", "b/2"])
            self.assertEqual(tree.read("a"), b"packed")
            self.assertEqual(set(tree.digests), {"a"})


if __name__ == "__main__":
    unittest.main()
