"""The page of what `primepar search` finds, with its picture of words against memory.

    python -m docs.render_search

writes docs/search.md and docs/images/search.svg, which are kept in git, as the proofs take a
minute; a test computes the tables again, without the proofs, and compares them with the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from primepar.pictures.svg import GREY, PAPER, RED, element, text
from primepar.pictures.svg import picture as svg
from primepar.schedule.lower_bound import training_step
from primepar.search.boxes import shapes as ratios
from primepar.search.measures import amount, costs, formula_text
from primepar.search.run import (
    Placement,
    PlaneClass,
    Search,
    SearchClass,
    box_classes,
    plane_classes,
    search,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "search.md", ROOT / "docs" / "images" / "search.svg"
SHAPES = (
    (2048, 1024, 4096, 2),
    (8192, 512, 2048, 2),
    (4096, 512, 2048, 4),
    (16384, 4096, 16384, 4),
    (4096, 4096, 4096, 8),
)
"""M, N, K and the side of the mesh."""
MOST_NAMES = 5
"""Of classes that send the same, in a row."""
DEVICES = 64
"""Of the grids that are compared."""
DRAWN = (4096, 4096, 4096, 4)
HEAD = """---
description: >-
  Primitives that nobody wrote down: the maps on one, two and three axes, in classes, each proved.
---

# What a search finds

`primepar search` tries maps (device, step) -> (M, N, K) on one, two or three axes. This page is
written by `python -m docs.render_search`. No known primitive is a candidate. A
[tutorial](tutorials/12_search_for_a_primitive.md) makes the search of one axis by hand.

| axes | stage | maps or triples | what |
|---|---|---|---|
"""
ONE = """
## One axis, and three

Each axis **cuts** one dim in each phase and at home, in one step: `MNK` is the cube of 3D. `CutMNK`
has that cut in all phases, `CutK_N_N` has K in forward and N in backward and gradient. Every
triple of cuts is a map. Kept are those that send least for one of 37,249 shapes on a mesh of side
8, with nothing kept, or I, or W, or both. For one cut in all phases, what works it off in s steps
is kept too: in **panels** that are broadcast, or in a **ring**. `Copy` has replicas along the last
axis, and `Aligned` has no homes.

In one phase no map in steps sends less than a cut, on any side: the argument is at the top of
`primepar/search/boxes.py`, with what is known for other coefficients. So three axes are searched in
two parts. The planes of digits are only counted, up to signs and the order of digits. For the
triples of cuts the home of each tensor is chosen by itself, and 27^3 triples are left of 216^3.

For three phases that differ this is **refuted**: homes that suit all of them may need a skewed
plane. So three axes have **rings** on layers too: another tensor may stay in each phase while the
two others go round, on d layers of Cannon's plane, which cut one dim. In `RingsOII_CutN` O stays in
forward and I after it:

```python
# mixed.py
from primepar import Primitive


class Mixed(Primitive):
    axes = {"r": "q", "c": "q", "e": "d"}

    def forward(self, r, c, e, t, q, d):
        return dict(M=r, N=(e, (r + c + t) % q), K=c)

    def backward(self, r, c, e, t, q, d):
        return dict(M=r, N=(e, (r + c) % q), K=(c + t) % q)

    def gradient(self, r, c, e, t, q, d):
        return dict(M=r, N=(e, (r + c) % q), K=(c + t) % q)

    def home(self, tensor, r, c, e, q, d):
        n = (e, (r + c) % q)
        return {"I": dict(M=r, N=n), "W": dict(N=n, K=c), "O": dict(M=(r, e), K=c)}[tensor]
```

It is proved for every q and d, and sends
`(q - 1) MN + 3 (q - 1) NK + (d - 1 + q d - 1) MK, over q q d`. On 2 x 2 x 2 devices, where
MN : NK : MK is 4 : 4 : 3, that is 28 / 30 of what the best of all 216^3 triples of cuts sends. Kept
are the 12 of 5,832 rings that send least for some shape: on side 8 up to 2.2 % less than any triple
of cuts with one copy, and up to 1.3 % where I or W is kept. Where both are kept none does. So on
three axes the classes are complete for one cut in all phases, and for phases that differ among
triples of cuts and these rings. Other skewed planes, and rings whose homes have replicas, are open.

With one copy some shapes are served best by phases that differ, which no registered primitive has.
`CutK_N_N` is column-parallel in forward and row-parallel after it: W is exchanged once, and then dO
gathered once. Where I and W are kept, one cut in all phases is best for each of these shapes.

"""
TWO = """
## Two axes

- A map is affine in r, c and t: each coefficient, in M, N and K, is from {-1, 0, 1, 2}.
- With **homes**, one map in all three phases, or Cannon's plane with another choice in each.
  A home keeps one copy; its coefficients are from {-1, 0, 1, 2}. What forward receives of I, of W,
  or of both may be **kept** for the later phases: a device has 1 to s copies of its share.
- Without homes (**aligned**), the phases have one plane, and each device goes on along one dim.
  Offsets at the start and at the last step are from {-1, 0, 1, 2}.

Outside of it are other numbers of steps, and indices of several digits. Two axes of different sides
are three with d = 1. Maps that are not affine are outside of all three.
"""
BOUND = """
### What no triple with homes can beat

With homes every map that covers is right, so only the words decide. In each phase two tensors send
at least `s - 1` of their blocks per device, whatever the affine map and the affine homes of one
copy are: the argument is at the top of `primepar/search/homes.py`. With other coefficients it holds
on sides that are powers of a prime, and not on all others.
Which two can be chosen in each phase, and dO is sent once for backward and gradient if both have
one map. With nothing kept that leaves seven, and each is reached. Four classes mix what stays, and
none of the registered primitives is one of them.

What is kept of I sends nothing in gradient, and of W in backward, where the device goes on along
the same dim as in forward. So more kept is less sent, down to a third less than Cannon and SUMMA.
Left out is what keeps more than another class and sends no less. Of those that mix what stays,
`HomesWIW_KeepI` and `HomesIIW_KeepW` send least for some shapes: with MN : NK : MK as 6 : 4 : 1
and I kept 13 parts, for 14 of `HomesWWW_KeepI` and of `HomesIII`.

"""
AXES = """
## Where one axis is best

A grid of p x q x d devices, one dim cut along each axis, sends
`2 (d - 1) MN + 2 (p - 1) NK + 2 (q - 1) MK, over p q d` where I and W are kept. Where nothing is,
the first two factors are 3. Of all grids of 64 devices, for how many of the 37,249 shapes is the
best one of one axis, of two, and of three? Fewer axes count where they send as little.

"""
WHY = """
One axis gathers one tensor alone, the smallest: 63 parts of it. A second axis of two devices leaves
31 parts of that one, and adds a part of the next larger. So with copies kept one axis is best where
the next larger tensor has at least 32 times as many elements. Where it has 64 times as many, no
schedule at all sends less: that is the first case of the [bound](lower-bounds.md#one-product).
"""
FOUND = """
## What is known, and what is not

"""
OPEN = """
## Prior art, and what is open

Cannon (1969) rotates two tensors: `HomesOOO` is Cannon's algorithm in all phases. Fox, Otto and Hey
(1987) broadcast one and rotate the other: `HomesOOObI` and `HomesOOObW`. SUMMA (van de Geijn and
Watts, 1997) broadcasts both: `HomesOOObIW`. MeshSlice (ISCA 2025) chooses among such dataflows per
layer; here one layer has another in each phase.

`AlignedOOO` sends what Cannon's and SUMMA's do, and keeps no copy at home while blocks go round.
`AlignedOIW` keeps in each phase what PrimePar does, and sends one block per device less.

No class uses both directions of its links in every step (the command prints the part of the steps
in which it does): each tensor goes one way. Halves of a block that go round in opposite
directions are two sub-operators a step. That takes a [virtual axis](primitives.md#virtual-axes),
which no map of this space has: `output-stays-both-ways` and its two relatives are such rings.
PrimePar's map can be written in that way too, with one virtual axis that cuts N in forward, K in
backward and M in gradient. It is proved for every side, and right on emulated devices, but does not
pay: half of I, W and dO ends a phase where the next one does not start, so that on 4 x 4 devices
and a cube 5,504 elements leave a device for 5,120. All three dims are cut in two, so that its
blocks are multiplied in eighths. `primepar simulate` at 4096^3 on `torus-4x4`: 763 us for 518 of
`P4x4`. It is not in the library.

`CutM` is ZeRO-3 (arXiv 1910.02054), and `CutM_RingN` the same with parameters that go round.
`CutMKM_PanelsN_CopyW` is Tesseract. `CutMNK_PanelsN` is 2.5D multiplication (Solomonik and Demmel,
2011) with one copy. Its replicas of I and W are found too, but save nothing and are not kept.
`CutMNK` is 3D (Agarwal et al., 1995), AxoNN's (arXiv 2305.13525) and Al Daas et al.'s grid.

Open are several digits on two axes, parts of a tensor that are kept, four axes, and directions of
t that differ between the phases of one triple. Whether a training step of a cube can send less than
all-stash is open too: [lower bounds](lower-bounds.md).
"""


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def by_words(
    classes: Iterable[SearchClass], known: Mapping[str, Placement] | None = None
) -> list[tuple[str, str]]:
    """What is sent, and the classes that send it, with the registered primitives among them."""
    names: dict[str, list[str]] = {}
    for entry in classes:
        members = [f"`{n}`" for n, place in (known or {}).items() if place.member_of == entry.name]
        text = f"`{entry.name}`" + (f" ({', '.join(members)})" if members else "")
        names.setdefault(entry.formula.removesuffix(", over s^2"), []).append(text)
    return [(formula, ", ".join(several)) for formula, several in names.items()]


def class_rows(classes: Iterable[PlaneClass]) -> Iterator[tuple[str, str, str, str, str]]:
    """What each class costs for the drawn shape; those that send least first."""
    *shape, side = DRAWN
    sizes = shape[0], shape[1], shape[2]
    least = training_step(*sizes, side**2)
    copies = 2 * (sizes[0] * sizes[1] + sizes[1] * sizes[2] + sizes[0] * sizes[2]) / side**2
    rows = []
    for entry in classes:
        cost = costs(entry.primitive, side, sizes)
        rows.append((cost.sent, cost.held, entry, cost.messages))
    for sent, held, entry, messages in sorted(rows, key=lambda row: (*row[:2], row[2].name)):
        yield (f"`{entry.name}`", formula_text(entry.words), f"{float(sent) / least:.2f}",
               f"{float(held) / copies:.2f}", f"{float(messages):.2f}")  # fmt: skip


def shape_rows(classes: Iterable[PlaneClass]) -> Iterator[tuple[str, ...]]:
    """For each of the shapes the classes that send least, over the bound, by what they may keep."""
    classes = tuple(classes)
    for M, N, K, side in SHAPES:
        sent = {}
        for entry in classes:
            sent[entry.name] = amount(entry.words, side, (M, N, K))
            if side < 3:  # the formulas hold from side 3 on
                sent[entry.name] = costs(entry.primitive, side, (M, N, K)).sent
        bound, before = training_step(M, N, K, side**2), None
        for kept, most in (("none", 0), ("I or W", 1), ("both", 2)):
            some = [entry.name for entry in classes if len(entry.triple.keeps) <= most]
            least = min(sent[name] for name in some)
            best = [f"`{name}`" for name in some if sent[name] == least]
            more = f" and {len(best) - MOST_NAMES} more" if len(best) > MOST_NAMES else ""
            if least != before:
                yield (f"{M}, {N}, {K}", str(side**2), kept, f"{float(least) / bound:.2f}",
                       ", ".join(best[-MOST_NAMES:]) + more)  # fmt: skip
            before = least


def axes_rows() -> Iterator[tuple[str, ...]]:
    """For how many shapes the best grid is of one axis, two or three."""
    lengths = [2**power for power in range(DEVICES.bit_length())]
    grids = [grid for grid in product(lengths, repeat=3) if prod(grid) == DEVICES]
    grids.sort(key=axes_of)
    for kept, times in (("nothing", (3, 3, 2)), ("I and W", (2, 2, 2))):
        best = (times * (np.array(grids) - 1) @ ratios()).round(6).argmin(0)
        number = np.array([*map(axes_of, grids)])[best]
        yield kept, *(f"{(number == axes).mean():.0%}" for axes in (1, 2, 3))


def axes_table() -> str:
    """The same as a table."""
    return "\n".join(table(("kept", "one axis", "two", "three"), axes_rows())) + "\n"


def axes_of(grid: tuple[int, ...]) -> int:
    """How many lengths of a grid are more than one."""
    return sum(length > 1 for length in grid)


def picture(rows: Iterable[tuple[str, ...]]) -> str:
    """Words over the bound against memory over the least copies: a letter for each point."""
    points: dict[tuple[float, float], list[str]] = {}
    for name, _, sent, held, _ in rows:
        points.setdefault((float(held), float(sent)), []).append(name.strip("`"))

    def x(held: float) -> float:
        return 60 + (held - 1) * 340

    def y(sent: float) -> float:
        return 300 - (sent - 1) * 170

    marks = [element("path", d="M60 20V300H520", fill="none", stroke=GREY),
             text("memory at the peak / one copy of all tensors and gradients", 290, 338,
                  text_anchor="middle"),
             text("words / lower bound", 64, 16)]  # fmt: skip
    marks += [text(f"{v:.2f}", x(v), 316, text_anchor="middle") for v in (1.25, 1.5, 1.75, 2, 2.25)]
    marks += [text(f"{v:.1f}", 52, y(v) + 4, text_anchor="end") for v in (1, 1.5, 2, 2.5)]
    for place, ((held, sent), names) in enumerate(sorted(points.items())):
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        colour = "#1f6feb" if names[0].startswith("Homes") else RED
        letter = ascii_lowercase[place]
        for across, down, words in ((x(held), y(sent), ""), (560.0, 40.0 + 26 * place, label)):
            marks.append(element("circle", cx=across, cy=down, r=9, fill=colour))
            marks.append(text(letter, across, down + 4, text_anchor="middle", fill=PAPER))
            marks += [text(words, across + 18, down + 4)] * bool(words)
    height = max(350, 40 + 26 * len(points))
    return svg(800, height, marks, "Words against memory of the classes")


def tables(classes: tuple[PlaneClass, ...]) -> str:
    """All that needs no proof."""
    M, N, K, side = DRAWN
    parts = (
        BOUND,
        "\n".join(
            table(
                ("sent per device, times 1 / s^2", "classes"),
                sorted(by_words(entry for entry in classes if entry.triple.homes)),
            )
        ),
        "\n\nFor five shapes, what the best classes send over the joint "
        "[bound](lower-bounds.md), where\nnothing may be kept, and where more saves words:\n\n",
        "\n".join(
            table(("M, N, K", "devices", "kept", "words / bound", "classes"), shape_rows(classes))
        ),
        f"\n\n### All on two axes\n\nFor {M}, {N}, {K} on {side} x {side} devices. *words* are over"
        "\nthe joint bound, *memory* is the peak over one copy of all tensors and gradients,\n"
        "*messages* are of a device per step. In a name is what stays in forward, backward and\n"
        "gradient, and after `b` what is broadcast; after `Keep` what is kept.\n\n"
        "![Words against memory](images/search.svg)\n\n",
        "\n".join(
            table(
                ("class", "sent, times 1 / s^2", "words", "memory", "messages"), class_rows(classes)
            )
        ),
        "\n",
    )
    return "".join(parts)


def box_table(axes: int, known: Mapping[str, Placement]) -> str:
    """The classes of one axis or of three by what they send, which needs no proof."""
    rows = by_words(box_classes(axes), known)
    return "\n".join(table(("sent per device", "classes"), rows)) + "\n"


def main() -> None:
    """Search, and write the page and its picture."""
    results: dict[int, Search] = {axes: search(axes) for axes in (1, 2, 3)}
    counts = (
        f"| {axes} | {count.name} | {count.number:,} | {count.what} |\n"
        for axes, result in results.items()
        for count in result.counts
    )
    known = {name: place for result in results.values() for name, place in result.known.items()}
    page = (
        HEAD
        + "".join(counts)
        + ONE
        + "\n".join(box_table(axes, known) for axes in (1, 3))
        + TWO
        + tables(plane_classes())
        + AXES
        + axes_table()
        + WHY
        + FOUND
        + "\n".join(
            table(
                ("registered", "where it is"),
                ((f"`{name}`", place.text) for name, place in known.items()),
            )
        )
        + "\n"
        + OPEN
    )
    PAGE.write_text(page, encoding="utf-8")
    PICTURE.write_text(picture(class_rows(plane_classes())), encoding="utf-8")


if __name__ == "__main__":
    main()
