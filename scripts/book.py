#!/usr/bin/env python3
"""What scripts/book needs besides mdBook.

    outside DOCS REPOSITORY   links of the pages in DOCS to files outside of it lead to the repository on the web
    check HTML                each link of the built book leads to a page, and to a place on it, that is there
"""

import html.parser
import os
import pathlib
import re
import sys
import urllib.parse

WEB = "https://github.com/megapage/megapage/blob/main"
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<place>#[^)\s]*)?\)")


def outside(docs, repository):
    """Makes a book of `docs`, a copy of the directory of that name in `repository`. The README
    becomes its first page. Pages named README get the name under which mdBook shows them. Links out
    of `docs` lead to the web."""
    places = {pathlib.PurePosixPath("docs") / page.relative_to(docs): page for page in sorted(docs.rglob("*.md"))}
    places[pathlib.PurePosixPath("README.md")] = repository / "README.md"
    inside = {str(place): "docs/index.md" if str(place) == "README.md" else re.sub(r"README\.md$", "index.md", str(place)) for place in places}
    for place, page in places.items():
        here = os.path.dirname(inside[str(place)])

        def link(match):
            target = match["target"]
            if "://" in target or target.startswith("mailto:"):
                return match[0]
            path = os.path.normpath(place.parent / target)
            if path in inside:
                return f"]({os.path.relpath(inside[path], here)}{match['place'] or ''})"
            if not (repository / path).exists():
                sys.exit(f"{place}: {target} is not there")
            if path.startswith("docs/") and path.endswith(".svg"):
                return f"]({os.path.relpath(path, here)})"
            return f"]({WEB}/{path}{match['place'] or ''})"

        text = LINK.sub(link, page.read_text())
        if page.is_relative_to(docs):
            page.unlink()
        (docs.parent / inside[str(place)]).write_text(text)


class Page(html.parser.HTMLParser):
    """Collects the links of a page, and the places in it that links can name."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.places.add(attrs["id"])
        for name in ("href", "src"):
            if attrs.get(name) and tag in ("a", "img"):
                self.links.append(attrs[name])


def check(directory):
    """Prints the links that lead nowhere and exits with status 1; prints the numbers if there are
    none."""
    pages = {path: Page(path.read_text()) for path in sorted(directory.rglob("*.html"))}
    wrong, count = [], 0
    for path, page in pages.items():
        # These pages only repeat links of the others.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = path if not parts.path else pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path)))
            place = urllib.parse.unquote(parts.fragment)
            if not target.is_file():
                wrong.append(f"{path.relative_to(directory)}: {link}: no such page")
            elif place and target in pages and place not in pages[target].places:
                wrong.append(f"{path.relative_to(directory)}: {link}: no such place on the page")
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print(f"book: {len(pages)} pages, {count} links within it, each leads somewhere: {directory}/index.html")


def main():
    match sys.argv[1:]:
        case ["outside", docs, repository]:
            outside(pathlib.Path(docs), pathlib.Path(repository))
        case ["check", directory]:
            check(pathlib.Path(directory))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
