"""What an answer to a blank has to do: functions that a reader fills in, held against the library.

A blank is an exercise whose Python file has functions instead of a schedule. Its check calls them
on small meshes and sizes, and yields a line for whatever is wrong. Where several answers are right,
it asks what they must do, and compares with none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from math import exp, inf, isclose
from random import Random
from typing import Any

from primepar.partition import parse_sequence
from primepar.partition.sequence_parallel import SequenceColumn
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD
from primepar.schedule import Linear, Movement, Primitive, Sequence, lower
from primepar.schedule.ledger import sent_by_ranks
from primepar.schedule.properties import HOLDS
from primepar.verify import verify_primitive

Function = Callable[..., Any]


@dataclass(frozen=True)
class Blank:
    """The functions that an answer defines, and what is wrong with them."""

    functions: tuple[str, ...]
    wrong: Callable[..., Iterator[str]]


def order_of_chunks(rows_of: Function) -> Iterator[str]:
    """Own rows first, those of each device once, and no device sends to two at a step."""
    for devices in range(1, 6):
        ranks = range(devices)
        table = [[rows_of(rank, step, devices) for step in ranks] for rank in ranks]
        for rank, row in enumerate(table):
            where = f"{devices} devices, device {rank}"
            if sorted(row) != list(ranks):
                yield f"{where}: expected the rows of each device once, got {row}"
            elif row[0] != rank:
                yield f"{where}: waits for the rows of device {row[0]} before its first product"
        for step in ranks:
            sources = [row[step] for row in table]
            if len({*sources}) < devices:
                yield f"{devices} devices, step {step}: two of them receive from one: {sources}"


def shares_of_workers(piece: Function, owner: Function) -> Iterator[str]:
    """Pieces that join to the line, none above the share; owners that wait for later workers."""
    for workers, tiles, iterations in product(range(1, 5), range(1, 5), range(1, 4)):
        where = f"{workers} workers, {tiles} tiles of {iterations}"
        total, share = tiles * iterations, -(-tiles * iterations // workers)
        pieces = [piece(worker, workers, tiles, iterations) for worker in range(workers)]
        ends = [
            0,
            *(place for begin, end in pieces if begin < end for place in (begin, end)),
            total,
        ]
        if any(before != after for before, after in zip(ends[::2], ends[1::2], strict=True)):
            yield f"{where}: expected pieces that join to 0 to {total}, got {pieces}"
        elif any(end - begin > share for begin, end in pieces):
            yield f"{where}: expected at most {share} iterations on a worker, got {pieces}"
        for tile in range(tiles):
            first, last = tile * iterations, (tile + 1) * iterations
            touching = [worker for worker, (begin, end) in enumerate(pieces)
                        if begin < last and end > first and begin < end]  # fmt: skip
            owning = owner(tile, workers, tiles, iterations)
            if touching and owning != touching[0]:
                why = "does nothing of it" if owning not in touching else "waits for one before it"
                yield f"{where}: worker {owning} owns tile {tile}, and {why}"


def row_of_a_table(next_row: Function) -> Iterator[str]:
    """Row after row ends with the cost of the best of all chains."""
    random = Random(0)
    for choices in ((2, 2), (2, 3, 2), (3, 3, 3, 3)):
        nodes = [[random.randint(0, 9) for _ in range(count)] for count in choices]
        ways = [[[random.randint(0, 9) for _ in range(after)] for _ in range(before)]
                for before, after in pairwise(choices)]  # fmt: skip
        row = list(nodes[0])
        for length, (way, node) in enumerate(zip(ways, nodes[1:], strict=True), 2):
            given = row
            row = next_row(list(row), [list(line) for line in way], list(node))
            least = [inf] * len(node)
            for chain in product(*(range(count) for count in choices[:length])):
                cost = sum(nodes[place][choice] for place, choice in enumerate(chain))
                cost += sum(ways[place][pair[0]][pair[1]]
                            for place, pair in enumerate(pairwise(chain)))  # fmt: skip
                least[chain[-1]] = min(least[chain[-1]], cost)
            if list(row) != least:
                yield (f"costs {given}, way {way}, operator {node}: expected {least}, the least of "
                       f"all chains, got {row}")  # fmt: skip
                return


def copies(redundant: Function) -> Iterator[str]:
    """As much as the library's layouts hold in forward, beyond one copy."""
    sizes = dict(M=16, N=8, K=32)
    for text in ("M4", "K4", "N4", "M2,K2", "M2,N2", "K2,N4", "P2x2", "P2x2,M2"):
        sequence, total = parse_sequence(text), 0
        movement, tensors = Movement(sequence), {"I": "MN", "W": "NK", "O": "MK"}
        for tensor, dims in tensors.items():
            holders = sum(map(len, movement.start("forward", tensor)))
            blocks = len(frozenset().union(*movement.start("forward", tensor)))
            total += (holders - blocks) * sizes[dims[0]] * sizes[dims[1]] // blocks
        slices = {dim: sequence.grid.get(dim, 1) for dim in "MNK"}
        got = redundant(sequence.ranks, dict(slices), dict(sizes))
        if got != total:
            yield f"{text}, slices {slices}, sizes {sizes}: expected {total}, got {got}"


def averages(train: Function) -> Iterator[str]:
    """As workers that step by themselves and average, in fractions."""

    def gradient(worker: int, step: int, weight: Fraction) -> Fraction:
        return (worker + 1) * weight - step

    rate = Fraction(1, 8)
    for workers, steps, period in product((1, 2, 3), (1, 4), (1, 2, 3)):
        models = [Fraction(1)] * workers
        for step in range(steps):
            models = [w - rate * gradient(k, step, w) for k, w in enumerate(models)]
            if (step + 1) % period == 0 or step == steps - 1:
                models = [sum(models, Fraction(0)) / workers] * workers
        got = train(workers, Fraction(1), gradient, steps, period, rate)
        if got != models[0]:
            yield (f"{workers} workers, {steps} steps, an average every {period}: expected "
                   f"{models[0]}, got {got}")  # fmt: skip


def softmax_in_parts(merge: Function) -> Iterator[str]:
    """Parts in any order give the softmax of all keys."""
    random = Random(0)
    for count, scale in product((2, 3, 6), (1.0, 1000.0)):
        keys = [(scale * random.uniform(-1, 1), random.uniform(-1, 1)) for _ in range(count)]
        largest = max(score for score, _ in keys)
        weights = [exp(score - largest) for score, _ in keys]
        expected = sum(w * v for w, (_, v) in zip(weights, keys, strict=True)) / sum(weights)
        for order in (keys, keys[::-1]):
            part, *rest = [(score, 1.0, value) for score, value in order]
            for other in rest:
                part = merge(part, other)
            if not isclose(part[2] / part[1], expected, rel_tol=1e-9, abs_tol=1e-12):
                yield (f"{count} keys with scores up to {scale:g}: expected {expected:.6f}, got "
                       f"{part[2] / part[1]:.6f}")  # fmt: skip


def heads_for_rows(there: Function, back: Function) -> Iterator[str]:
    """A device sends what it has, and ends with all rows of one group, then with its own rows."""
    for devices in range(1, 5):
        ranks = range(devices)
        for name, sends, kept in (("there", there, 0), ("back", back, 1)):
            where = f"{devices} devices, {name}"
            for rank in ranks:
                pieces = [sends(rank, member) for member in ranks]
                if any(piece[kept] != rank for piece in pieces):
                    yield f"{where}: device {rank} sends what it has not: {pieces}"
                received = sorted(sends(other, rank) for other in ranks)
                whole = [(other, rank) if name == "there" else (rank, other) for other in ranks]
                if received != whole:
                    kind = "group of heads" if name == "there" else "rows"
                    yield f"{where}: device {rank} receives {received}, no whole {kind}"


def homes(kind: type[Primitive], count: int) -> Callable[[Function], Iterator[str]]:
    """Homes for the maps of a method: nothing is twice at home, and no more is sent than it sends.

    `count` is how many sides are tried; the first has the length 2.
    """

    def wrong(home: Function) -> Iterator[str]:
        members = {"home": lambda _, tensor, *place: home(tensor, *place[:-1])}
        mine = type("Mine", (kind,), members)()
        shape = Linear(M=36, N=36, K=36)
        for side in range(2, 2 + count):
            sequence, known = Sequence.of(mine, side), Sequence.of(kind(), side)
            movement = Movement(sequence)
            for tensor in ("I", "W", "O"):
                phase = "forward" if tensor != "O" else "backward"
                held = movement.start(phase, "dO" if tensor == "O" else tensor)
                twice = sum(map(len, held)) - len(frozenset().union(*held))
                if twice:
                    yield f"s={side}: {twice} blocks of {tensor} are at home on a second device"
                    return
            sent, fewest = (max(sent_by_ranks(lower(of, shape))) for of in (sequence, known))
            if sent > fewest:
                yield f"s={side}: a device sends {sent} elements, and {fewest} are enough"
        for result in verify_primitive(mine, "home").properties:
            if result.verdict not in HOLDS:
                yield f"{result.name}: {result.counterexample or result.reason}"

    return wrong


def who_broadcasts(roots: Function) -> Iterator[str]:
    """The device of the row at home to I[r, t], and that of the column at home to W[t, c]."""
    for side in range(1, 5):
        for r, c, t in product(range(side), repeat=3):
            for tensor, got, block in zip("IW", roots(r, c, t), ((r, t), (t, c)), strict=True):
                if tuple(got) != block:
                    yield (f"s={side}: device {(r, c)} needs {tensor}{list(block)} at step {t}, "
                           f"and {tuple(got)} is at home to another block")  # fmt: skip


def depth(best: Function) -> Iterator[str]:
    """The depth with the least that Tesseract's formula states."""
    for devices, M, K in product((1, 4, 8, 16, 32, 64), (64, 1024, 16384), (64, 4096)):
        meshes = [(q, d) for d in range(1, devices + 1) for q in range(1, devices + 1)
                  if q * q * d == devices]  # fmt: skip
        sent = {d: Fraction(Tesseract().sent(*map(Fraction, (M, 256, K, q, d)))) for q, d in meshes}
        got = best(devices, M, 256, K)
        if got not in sent:
            yield f"{devices} devices have no mesh of depth {got}"
        elif (sent[got], got) > min((count, d) for d, count in sent.items()):
            yield (f"{devices} devices, M={M} N=256 K={K}: depth {got} sends {float(sent[got]):g} "
                   f"elements, another {float(min(sent.values())):g}")  # fmt: skip


BLANKS = {
    "13_order_of_chunks": Blank(("rows_of",), order_of_chunks),
    "14_shares_of_workers": Blank(("piece", "owner"), shares_of_workers),
    "15_row_of_a_table": Blank(("next_row",), row_of_a_table),
    "16_copies": Blank(("redundant",), copies),
    "17_averages": Blank(("train",), averages),
    "18_softmax_in_parts": Blank(("merge",), softmax_in_parts),
    "19_heads_for_rows": Blank(("there", "back"), heads_for_rows),
    "20_homes_of_a_cube": Blank(("home",), homes(ThreeD, 2)),
    "21_who_broadcasts": Blank(("roots",), who_broadcasts),
    "22_resident_rows": Blank(("home",), homes(SequenceColumn, 3)),
    "23_depth": Blank(("depth",), depth),
}
"""Stem of the exercise's files -> what it asks."""
