"""`make docs` ends with this: every link, anchor and file of the built site is there.

It also fails where a page asks another host for anything (a link to it is not a request), where a
page has no description of its own, and where the search cannot find what newcomers look for.

    python tests/helpers/site_crawl.py site
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REQUESTS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that fetch something -> the attribute that names it."""
LOOKED_FOR = ("sharding", "FSDP", "tensor parallel", "all-gather", "deadlock", "Megatron")
"""What a search of the site has to find."""
_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)")


class Page(HTMLParser):
    """The anchors of a page, what it links to and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetches: list[str] = []
        self.description = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element names."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "meta" and given.get("name") == "description":
            self.description = given.get("content", "")
        where = given.get(REQUESTS.get(tag, ""))
        if where and given.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.fetches.append(where)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with a built site, a line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in (*page.links, *page.fetches):
            fault = _broken(site, path, link, pages)
            if fault:
                yield f"{name}: {link}: {fault}"
        yield from (f"{name}: fetches {link}" for link in page.fetches if urlsplit(link).netloc)
    for path in site.rglob("*.css"):
        for link in _URL.findall(path.read_text(encoding="utf-8")):
            if urlsplit(link).netloc or not (link.startswith("data:") or _file(site, path, link)):
                yield f"{path.relative_to(site)}: {link}: no such file"
    yield from _unlisted(site, pages)
    yield from _not_found(site)


def _broken(site: Path, path: Path, link: str, pages: dict[Path, Page]) -> str | None:
    """Why a link leads nowhere; None if it leads somewhere, or to another host."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = _file(site, path, parts.path) if parts.path else path
    if target is None:
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


def _file(site: Path, path: Path, link: str) -> Path | None:
    start = site if link.startswith("/") else path.parent
    found = (start / unquote(urlsplit(link).path).lstrip("/")).resolve()
    found = found / "index.html" if found.is_dir() else found
    return found if found.is_file() and site.resolve() in found.parents else None


def _unlisted(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Pages without a description of their own, or that the sitemap leaves out."""
    seen: dict[str, Path] = {}
    listed = (site / "sitemap.xml").read_text(encoding="utf-8")
    for path, page in pages.items():
        if path.name != "index.html":
            continue
        name = path.relative_to(site)
        address = "" if name.parent == Path() else f"{name.parent.as_posix()}/"
        if f"/{address}</loc>" not in listed:
            yield f"{name}: not in sitemap.xml"
        if not page.description or page.description in seen:
            yield f"{name}: expected a description of its own, got {page.description!r}"
        seen[page.description] = path


def _not_found(site: Path) -> Iterator[str]:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    text = " ".join(f"{each['title']} {each['text']}" for each in index["docs"]).lower()
    yield from (
        f"search: nothing about {term!r}" for term in LOOKED_FOR if term.lower() not in text
    )


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    site = Path(sys.argv[1]).resolve()
    found = sorted(set(faults(site)))
    print("\n".join(found) or f"{site.name}: every link, anchor and file is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
