"""Formulas of docstrings and maps as LaTeX, for the pages that are made from them.

A formula is written as in `[2 (s - 1) (MN + MK) + 2 s NK] / p`: factors next to one another are
multiplied, and `/` divides all factors before it in its term by the one after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\d+|[a-zA-Z]+|[-+/^=,()\[\]]")
_FORMULA = re.compile(
    r"(?<![\w`])(?:[(\[]|max\(|\d+|[MNK]{1,2}|[pqdsuv](?![\w`]))"
    r"(?:[ ]?(?:[-+/^=()\[\]]|max\(|,(?= \w+ \+)|\d+|[MNK]{1,2}(?!\w)|[pqdsuv](?!\w)))+"
)
_WHERE = re.compile(r"where\(([^(),]+), 1, 0\)")
_LABEL = re.compile(r"(?<=\w) {2,}(?=[\d(\[])")
"""Where a label ends and its formula begins, in columns."""
PAPERS = {
    r"PrimePar \(Wang et al\., ASPLOS 2024\)|Wang et al\.,(?: PrimePar,)? ASPLOS 2024":
        "https://doi.org/10.1145/3620666.3651357",
    r"MeshSlice\s+\(ISCA 2025\)": "https://doi.org/10.1145/3695053.3731077",
    r"van de Geijn and Watts, 1997": "https://doi.org/10.1002/%28SICI%291096-9128%28199704%299:4"
        "%3C255::AID-CPE250%3E3.0.CO;2-2",
    r"Agarwal et al\., 1995": "https://doi.org/10.1147/rd.395.0575",
    r"arXiv (\d{4}\.\d{5})": r"https://arxiv.org/abs/\1",
}  # fmt: skip
"""How docstrings name a paper -> where it is."""


def latex(formula: str) -> str:
    """A formula as LaTeX. Raises `ValueError` if it is none."""
    tokens = _TOKEN.findall(formula)
    if "".join(tokens) != formula.replace(" ", ""):
        raise ValueError(f"expected a formula, got {formula!r}")
    parts = list(_sum(tokens))
    if tokens:
        raise ValueError(f"expected a formula, got {tokens} at the end of {formula!r}")
    return " ".join(parts)


def _sum(tokens: list[str]) -> Iterator[str]:
    """Terms with their signs, up to a closing bracket."""
    term: list[str] = []
    while tokens and tokens[0] not in ")]":
        token = tokens.pop(0)
        if token in "+-=,":
            yield from (*term, token)
            term = []
        elif token == "/":
            term = [rf"\frac{{{_bare(term)}}}{{{_bare([_factor(tokens)])}}}"]
        else:
            tokens.insert(0, token)
            term.append(_factor(tokens))
            done = len(term) > 1 and term[-2].startswith(r"\frac")
            if done:
                yield term.pop(-2)
    yield from term


def _bare(factors: list[str]) -> str:
    """Factors without the brackets that a fraction makes superfluous."""
    inside = re.fullmatch(r"\\left[(\[](.*)\\right[)\]]", factors[0]) if len(factors) == 1 else None
    if inside:
        return inside[1]
    return " ".join(factors)


def _factor(tokens: list[str]) -> str:
    token = tokens.pop(0)
    if token in "([":
        inside = " ".join(_sum(tokens))
        close = tokens.pop(0)
        factor = rf"\left{token}{inside}\right{close}"
    elif token == "max":
        factor = r"\max" + _factor(tokens)
    else:
        factor = token
    if tokens and tokens[0] == "^":
        tokens.pop(0)
        return f"{factor}^{{{tokens.pop(0)}}}"
    return factor


def with_formulas(text: str) -> str:
    """Prose whose formulas are set as maths; what only looks like one is left alone."""

    def mathematical(match: re.Match[str]) -> str:
        formula = match[0].rstrip(" ,")
        if not re.search(r"[/^=+]", formula):
            return match[0]
        try:
            return rf"\({latex(formula)}\)" + match[0][len(formula) :]
        except (ValueError, IndexError):
            return match[0]

    return _FORMULA.sub(mathematical, " ".join(_LABEL.sub(": ", text).split()))


def with_papers(text: str) -> str:
    """Prose in which every paper is a link."""
    for name, address in PAPERS.items():
        text = re.sub(name, lambda match, to=address: f"[{match[0]}]({match.expand(to)})", text)
    return text


def map_latex(equation: str) -> str:
    """A map or a home as its expressions print themselves, as LaTeX.

    `where(t == s - 1, 1, 0)` is written as a condition in brackets, which is 1 or 0.
    """
    made = _WHERE.sub(r"[\1]", equation).replace("==", "=").replace("*", r"\ast ")
    return made.replace(" % ", r" \bmod ").replace(", ", r",\; ")
