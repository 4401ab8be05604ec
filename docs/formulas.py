"""Formulas of docstrings and maps as LaTeX, for the pages that are made from them.

A docstring has its formulas between `$`, as in `$[2 (s - 1) (MN + MK) + 2 s NK] / p$`: factors
next to one another are multiplied, and `/` divides all factors before it in its term by the one
after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\d+|[a-zA-Z]+|\.\.\.|<-|[+<>!]=|[-+/^=,<>()\[\]'*]")
_FORMULA = re.compile(r"\$([^$]+)\$")
_WHERE = re.compile(r"where\(([^(),]+), 1, 0\)")
_LABEL = re.compile(r"(?<=\w) {2,}(?=[\d$])")
"""Where a label ends and its formula begins, in columns."""
_BETWEEN = {
    **{sign: sign for sign in "+-=,<>"}, "mod": r"\bmod", "+=": r"\mathrel{+}=",
    "<-": r"\leftarrow", "<=": r"\le", ">=": r"\ge", "!=": r"\ne",
}  # fmt: skip
"""What ends a term -> LaTeX."""
_NAMES = {"...": r"\ldots", "*": r"\ast", "min": r"\min", "max": r"\max"}
_ROUNDED = {"ceil": (r"\lceil ", r"\rceil"), "floor": (r"\lfloor ", r"\rfloor")}
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
    if "".join(tokens) != re.sub(r"\s", "", formula):
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
        if token in _BETWEEN:
            yield from (*term, _BETWEEN[token])
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
    if token in "([" or token in _ROUNDED:
        left, right = _ROUNDED.get(token, (token, ""))
        if right:
            tokens.pop(0)
        inside = " ".join(_sum(tokens))
        close = tokens.pop(0)
        factor = rf"\left{left}{inside}\right{right or close}"
    else:
        factor = _NAMES.get(token, rf"\mathit{{{token}}}" if re.match("[a-z]{2}", token) else token)
    if tokens and tokens[0] == "^":
        tokens.pop(0)
        return f"{factor}^{{{tokens.pop(0)}}}"
    return factor


def with_formulas(text: str) -> str:
    """Prose whose formulas are set as maths, or a block of columns, as one formula of its lines."""
    if not text.startswith(" "):
        return _FORMULA.sub(lambda match: rf"\({latex(match[1])}\)",
                            " ".join(_LABEL.sub(": ", text).split()))  # fmt: skip
    indent = len(text) - len(text.lstrip())
    rows = [" & ".join(map(_cell, re.split(" {2,}", line[indent:]))) for line in text.splitlines()]
    lines = " \\\\\n".join(rows)
    return f"$$\n\\begin{{array}}{{llll}}\n{lines}\n\\end{{array}}\n$$"


def _cell(text: str) -> str:
    """Words and formulas as one formula."""
    parts = _FORMULA.split(text)
    return "".join(latex(part) if number % 2 else rf"\text{{{part}}}" * bool(part)
                   for number, part in enumerate(parts))  # fmt: skip


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
