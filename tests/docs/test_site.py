"""The crawl of the site sees what is broken, and formulas of docstrings become maths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from formulas import latex, map_latex, with_formulas, with_papers
from site_crawl import LOOKED_FOR, faults

HEAD = '<meta name="description" content="{}"><link href="s.css" rel="stylesheet">'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pages that are right."""
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(HEAD.format("home") + '<a href="a/#x">a</a>')
    (tmp_path / "a" / "index.html").write_text(
        HEAD.format("a").replace("s.css", "../s.css")
        + '<p id="x"><a href="https://other.org">b</a>'
    )
    (tmp_path / "s.css").write_text("p { background: url(data:x) }")
    (tmp_path / "sitemap.xml").write_text("<loc>http://x/</loc><loc>http://x/a/</loc>")
    (tmp_path / "search").mkdir()
    found = {"docs": [{"title": "x", "text": " ".join(LOOKED_FOR)}]}
    (tmp_path / "search" / "search_index.json").write_text(json.dumps(found))
    return tmp_path


def test_a_site_without_faults_has_none(site: Path) -> None:
    assert list(faults(site)) == []


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ('<a href="b/">b</a>', "index.html: b/: no such file"),
        ('<a href="a/#y">y</a>', "index.html: a/#y: no such anchor"),
        ('<a href="../../x">x</a>', "index.html: ../../x: no such file"),
        ('<img src="no.png">', "index.html: no.png: no such file"),
        (
            '<script src="https://cdn.org/x.js"></script>',
            "index.html: fetches https://cdn.org/x.js",
        ),
    ],
)
def test_what_is_broken_is_seen(site: Path, added: str, fault: str) -> None:
    page = site / "index.html"
    page.write_text(page.read_text() + added)
    assert list(faults(site)) == [fault]


def test_so_are_styles_descriptions_the_sitemap_and_the_search(site: Path) -> None:
    (site / "s.css").write_text("p { background: url(https://cdn.org/f.woff2) }")
    (site / "a" / "index.html").write_text('<p id="x">')
    (site / "sitemap.xml").write_text("<loc>http://x/</loc>")
    (site / "search" / "search_index.json").write_text('{"docs": []}')
    found = list(faults(site))
    assert found[:3] == [
        "s.css: https://cdn.org/f.woff2: no such file",
        "a/index.html: not in sitemap.xml",
        "a/index.html: expected a description of its own, got ''",
    ]
    assert len(found) == 3 + len(LOOKED_FOR)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("1 / p", r"\frac{1}{p}"),
        ("[2 (s - 1) MN + 2 s NK] / p", r"\frac{2 \left(s - 1\right) MN + 2 s NK}{p}"),
        ("2 (d - 1) / d NK / q^2", r"\frac{2 \left(d - 1\right)}{d} \frac{NK}{q^{2}}"),
        ("max(2 NK, MN + MK)", r"\max \left(2 NK , MN + MK\right)"),
        (
            "x, ... <= ceil(T n / g) mod p",
            r"x , \ldots \le \left\lceil \frac{T n}{g}\right\rceil \bmod p",
        ),
    ],
)
def test_a_formula_as_latex(formula: str, expected: str) -> None:
    assert latex(formula) == expected


def test_prose_keeps_what_is_no_formula() -> None:
    text = "On a q x q mesh, x*p and y*n; step t (of s) reads  $1 / p$ of each."
    assert with_formulas(text) == text.replace("  $1 / p$", r": \(\frac{1}{p}\)")
    assert with_formulas("    adds  at $k - 1$   $x$\n          $y$") == (
        "$$\n\\begin{array}{llll}\n\\text{adds} & \\text{at }k - 1 & x \\\\\n & y\n\\end{array}\n$$"
    )
    with pytest.raises(ValueError, match="expected a formula, got"):
        latex("a; b")


def test_a_map_as_latex() -> None:
    text = "N=(r + where(t == s - 1, 1, 0)) % s, K=c"
    assert map_latex(text) == r"N=(r + [t = s - 1]) \bmod s,\; K=c"


def test_papers_are_links() -> None:
    assert with_papers("see arXiv 2104.05343.") == (
        "see [arXiv 2104.05343](https://arxiv.org/abs/2104.05343)."
    )
