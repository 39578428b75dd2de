"""Check the links of built pages: files and elements must exist; other hosts should not be used."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and anchors of a page.

    Attributes:
        links: addresses that a reader may follow.
        resources: addresses that the browser loads with the page.
        anchors: the elements' ids.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.resources: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        for key, value in attributes:
            if value is None:
                continue
            if key == "id" or (tag == "a" and key == "name"):
                self.anchors.add(value)
            elif key == "href" and tag == "a":
                self.links.add(value)
            elif key == "src" or (key == "href" and tag == "link"):
                self.resources.add(value)


def broken_links(folder: Path) -> list[str]:
    """Return a line per broken link, or resource on a different host, given the folder of the
    pages.
    """
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
    }
    found = []
    for path, page in pages.items():
        here = path.relative_to(folder.resolve())
        for address in sorted(page.links | page.resources):
            parts = urlsplit(address)
            if parts.scheme in {"data", "mailto"}:
                continue
            if parts.scheme or parts.netloc:
                if address in page.resources:
                    found.append(f"{here}: loads {address} from another host")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{here}: {address} leads to no file")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{here}: {address} leads to no element")
    return found
