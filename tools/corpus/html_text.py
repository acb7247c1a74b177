"""HTML pages to plain text: prose reflowed to one line a paragraph, <pre> verbatim, navigation dropped."""

import html.parser
import re

# Elements whose contents are no prose.
SKIPPED = frozenset("script style nav head footer svg noscript template select button form iframe object".split())
# The same by class: the side bars and link rows of the common documentation generators.
SKIPPED_CLASSES = frozenset("""navheader navfooter nav navbar sphinxsidebar related headerlink footer breadcrumb breadcrumbs
    header-nav topnav subnav skipnav sub-nav nav-menu bottomnav nav-header nav-panel sidebar toc-sidebar fixed-navigation
    copyright node-up-next-panel tex2htmltoc""".split())
SKIPPED_ROLES = frozenset(("navigation", "search", "banner", "contentinfo"))
PARAGRAPHS = frozenset("""p div h1 h2 h3 h4 h5 h6 pre ul ol dl table blockquote section article hr figure details summary
    center main address""".split())
LINES = frozenset("li dt dd tr caption br".split())
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())


class _Extractor(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.skipped = None  # element that is being skipped
        self.depth = 0  # how many of its name are open
        self.verbatim = 0  # open <pre>

    def handle_starttag(self, tag, attributes):
        if self.skipped is not None:
            if tag == "body" and self.skipped == "head":  # old pages leave <head> open
                self.skipped = None
            elif tag == self.skipped:
                self.depth += 1
            return
        if tag not in VOID:
            values = dict(attributes)
            classes = (values.get("class") or "").lower().split()
            if (tag in SKIPPED or values.get("role") in SKIPPED_ROLES or not SKIPPED_CLASSES.isdisjoint(classes)):
                self.skipped, self.depth = tag, 1
                return
        if tag in PARAGRAPHS:
            self.parts.append("\n\n")
        elif tag in LINES:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")
        if tag == "pre":
            self.verbatim += 1

    def handle_endtag(self, tag):
        if self.skipped is not None:
            if tag == self.skipped:
                self.depth -= 1
                if self.depth == 0:
                    self.skipped = None
            return
        if tag == "pre":
            self.verbatim = max(0, self.verbatim - 1)
        if tag in PARAGRAPHS:
            self.parts.append("\n\n")
        elif tag in LINES:
            self.parts.append("\n")

    def handle_data(self, data):
        if self.skipped is not None:
            return
        self.parts.append(data if self.verbatim else re.sub(r"\s+", " ", data))


def html_to_text(page):
    """Text of an HTML page; line ends trimmed, never more than one blank line in a row."""
    extractor = _Extractor()
    extractor.feed(page)
    extractor.close()
    text = "".join(extractor.parts)
    text = re.sub(r"[ \t\r\f\v\xa0]+\n", "\n", text)
    # One space at a paragraph's start is left of collapsed white space; deeper indentation is somebody's <pre>.
    text = re.sub(r"\n (?=\S)", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
