"""The page *Why PrimePar?*: simulated runs of one operator, and where its primitive is the fastest.

    python -m docs.render_border

prints the numbers, and writes docs/why-primepar.md and docs/images/why-primepar.svg, which are kept
in git; a test simulates some of the cells again and compares them with the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from primepar.partition import parse_sequence
from primepar.pictures.svg import GREY, PAPER, RED, element, text
from primepar.pictures.svg import picture as svg
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.simulator.run import simulate
from primepar.schedule import Linear, Program, lower

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "why-primepar.md", ROOT / "docs" / "images" / "why-primepar.svg"
P = "P2x2"
FAMILIES = {
    "PrimePar": (P,),
    "stationary": ("Os2x2", "Is2x2", "Ws2x2"),
    "data": ("M4",),
    "column or row": ("K4", "N4", "Ks4", "Ns4"),
    "two dims": ("M2,K2", "M2,N2", "K2,N2"),
    "SUMMA": ("S2x2",),
}
COLOURS = dict(zip(FAMILIES, (RED, "#1f6feb", "#2e7d32", "#8a6d00", "#6a3d9a", GREY), strict=True))
LETTERS = dict(zip(FAMILIES, "PsMK2S", strict=True))
NAMES = tuple(name for names in FAMILIES.values() for name in names)
BASE, H = "v100-8x4", 4096
SIZES = tuple(2**power for power in range(8, 17))
BANDWIDTHS = (1.6e9, 3.1e9, 6.2e9, 1.25e10, 2.5e10, 5e10, 1e11, 2e11, 4e11)
SIZE = 52


class Cell(NamedTuple):
    """The fastest family of an operator, and PrimePar's time over that of the fastest other."""

    family: str
    name: str
    ratio: float


@dataclass(frozen=True)
class Panel:
    """A map of cells: tokens upwards, and something to the right."""

    title: str
    across: tuple[float, ...]
    labels: tuple[str, ...]
    what: str

    def cell(self, tokens: int, value: float) -> Cell:
        """Simulate all methods."""
        is_bandwidth = self.across is BANDWIDTHS
        machine = node(value) if is_bandwidth else node()
        features = H if is_bandwidth else int(value)
        times = {
            name: simulate(program(name, tokens, features), machine, "float32").seconds
            for name in NAMES
        }
        best = min(times, key=lambda name: times[name])
        family = next(key for key, names in FAMILIES.items() if best in names)
        others = min(seconds for name, seconds in times.items() if name != P)
        return Cell(family, best, times[P] / others)


PANELS = (
    Panel("N = K = 4096, by the links' bandwidth", BANDWIDTHS,
          tuple(f"{value / 1e9:g}" for value in BANDWIDTHS), "GB/s of a device, one way"),
    Panel("N = 4096, links of 25 GB/s, by K", SIZES, tuple(map(str, SIZES)), "K, output features"),
)  # fmt: skip


@cache
def program(name: str, tokens: int, features: int) -> Program:
    """A training step of the operator under a sequence."""
    return lower(parse_sequence(name), Linear(M=tokens, N=H, K=features))


def node(bandwidth: float | None = None) -> Cluster:
    """One node of the paper's cluster, four devices; its links may have another bandwidth."""
    machine = load_cluster(BASE)
    inside = machine.links[0]
    links = (replace(inside, bandwidth=bandwidth or inside.bandwidth),)
    return replace(machine, name="one node", nodes=1, links=links)


@cache
def cells(panel: Panel, rows: tuple[int, ...] = SIZES) -> dict[tuple[int, float], Cell]:
    """All cells of some rows."""
    return {(tokens, value): panel.cell(tokens, value) for tokens in rows for value in panel.across}


def table(panel: Panel, rows: tuple[int, ...] = SIZES) -> Iterator[str]:
    """A row for each number of tokens: the fastest, and PrimePar's time over the best other."""
    simulated = cells(panel, rows)
    yield f"| tokens | {' | '.join(panel.labels)} |"
    yield "|--:" * (len(panel.labels) + 1) + "|"
    for tokens in rows:
        row = (simulated[tokens, value] for value in panel.across)
        texts = (f"**P** {cell.ratio:.2f}" if cell.name == P else f"{cell.name} {cell.ratio:.2f}"
                 for cell in row)  # fmt: skip
        yield f"| {tokens} | {' | '.join(texts)} |"


def hidden() -> Iterator[str]:
    """Of the fastest of some families: time, products, what is not hidden by them, and bytes."""
    yield "| sequence | ms | products | not hidden | MB sent |"
    yield "|---|--:|--:|--:|--:|"
    for name in (P, "Is2x2", "Os2x2", "M2,K2", "M4"):
        run = simulate(program(name, H, H), node(), "float32")
        time, products = 1e3 * run.seconds, 1e3 * run.computing[0]
        sent = float(run.sent[0]) / 1e6
        yield f"| `{name}` | {time:.2f} | {products:.2f} | {time - products:.2f} | {sent:.0f} |"


def drawn(panel: Panel, left: int) -> Iterator[str]:
    """One map: a coloured cell with the letter of the fastest family and the ratio."""
    bottom = 60 + SIZE * len(SIZES)
    yield text(panel.title, left, 40, font_weight="bold")
    for (tokens, value), cell in cells(panel).items():
        x = left + SIZE * panel.across.index(value)
        y = bottom - SIZE * (SIZES.index(tokens) + 1)
        yield element("rect", x=x + 1, y=y + 1, width=SIZE - 2, height=SIZE - 2,
                      fill=COLOURS[cell.family])  # fmt: skip
        yield text(LETTERS[cell.family], x + SIZE / 2, y + 23, text_anchor="middle", fill=PAPER,
                   font_weight="bold")  # fmt: skip
        yield text(f"{cell.ratio:.2f}", x + SIZE / 2, y + 41, text_anchor="middle", fill=PAPER)
    for place, label in enumerate(panel.labels):
        yield text(label, left + SIZE * (place + 0.5), bottom + 18, text_anchor="middle")
    yield text(panel.what, left + SIZE * len(panel.labels) / 2, bottom + 40, text_anchor="middle")


def picture() -> str:
    """Both maps, with the tokens on the left and a legend below."""
    bottom, second = 60 + SIZE * len(SIZES), 90 + SIZE * (len(BANDWIDTHS) + 1)
    marks = [text("tokens", 62, 40, text_anchor="end")]
    marks += [text(str(size), 62, bottom - SIZE * (place + 0.5) + 4, text_anchor="end")
              for place, size in enumerate(SIZES)]  # fmt: skip
    marks += [*drawn(PANELS[0], 70), *drawn(PANELS[1], second)]
    fastest = {cell.family for panel in PANELS for cell in cells(panel).values()}
    for place, family in enumerate(family for family in FAMILIES if family in fastest):
        x = 70 + 160 * place
        marks.append(element("rect", x=x, y=bottom + 56, width=22, height=22, fill=COLOURS[family]))
        marks.append(text(LETTERS[family], x + 11, bottom + 72, text_anchor="middle", fill=PAPER))
        marks.append(text(family, x + 30, bottom + 72))
    width = second + SIZE * len(SIZES) + 20
    return svg(width, bottom + 100, marks, "The fastest method by tokens, bandwidth and features")


HEAD = """---
description: >-
  Where PrimePar's primitive is the fastest way to split an operator, and where it is not.
---

# Why PrimePar?

PrimePar's `P2x2` holds nothing twice and has no all-reduce. Its blocks go round in hops, while the
products run. What does that gain? This page is written by `python -m docs.render_border`: it
simulates a training step of one linear operator, forward, backward and gradient, on four devices
under thirteen sequences. The devices are those of a node of the paper's cluster, `v100-8x4`, in
float32.

![The fastest method by tokens, bandwidth and features](images/why-primepar.svg)

A cell has the letter of the fastest family. The number is PrimePar's time over that of the fastest
other sequence: below 1 it wins.
"""
WHY = """
## Where the border is

PrimePar wins in the middle. On every side of it something else is better, for a reason:

- **Few tokens**, or few output features: one tensor is small. The methods that send only the small
  one, or that keep the large one where it is, send less.
- **Fast links**: sums cost little then, and little is won or lost. What decides is how many
  products and messages have to be started, and splitting one dim has the fewest.
- **Slow links**: products no longer hide the hops. Then what is sent decides, and PrimePar does not
  send least: [the family on one product](tutorials/05_the_whole_family.md) has the counts.
- **In the middle** its hops are hidden, and a sum is not. The stationary family sends less, and
  hops too. But the last sum of a phase goes home when its products are done: nothing hides that.

At 4096 tokens, 4096 features and 25 GB/s:

"""
AFTER = """
Not shown here: several kinds of links. Blocks that go round through the slowest link lose, as in
[tutorial 9](tutorials/09_plan_a_cluster.md). And a model is more than one operator: two PrimePar
operators in a row have to move blocks in between. `primepar plan` weighs both. These are times of
the [simulator](simulator.md), not of a machine; latency and the cost of a start are assumed.

```console
$ primepar simulate P2x2 --cluster v100-8x4 --shape 4096,4096,4096
...
```
"""


def main() -> None:
    """Simulate, print the tables, and write the page and its picture."""
    rows = "\n".join(hidden())
    print(rows)
    parts = [HEAD, WHY.lstrip("\n") + rows + "\n"]
    for panel in PANELS:
        rows = "\n".join(table(panel))
        print(f"{panel.title}\n{rows}\n")
        parts.append(f"## {panel.title}\n\nTo the right: {panel.what}.\n\n{rows}\n")
    parts.append(AFTER.lstrip("\n"))
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
