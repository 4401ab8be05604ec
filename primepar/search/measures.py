"""What a class costs: words as formulas, and what its program sends, holds and posts on one mesh.

The words of a tensor are `a s + b` of its blocks per device, each 1 / s^2 of it: PrimePar's W sends
`2 s`, and I where the output stays `3 s - 3`. They hold from side 3 on: with two devices a side,
going on and going back is the same, so that some triples send less there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from primepar.schedule.ledger import live_elements, sent_blocks
from primepar.schedule.lowering import lower
from primepar.schedule.primitive import Primitive
from primepar.schedule.program import Compute, ISend, Program, Send
from primepar.schedule.sequence import Sequence

SIZES = {"I": "MN", "W": "NK", "O": "MK"}
"""Tensor -> the dims of which it has the elements."""
Words = tuple[tuple[int, int], ...]
"""Of I, W and O: `a` and `b` of the `a s + b` blocks that leave each device."""
READ_ON = (3, 4)
"""Sides whose programs give the words of a primitive that is not of this search."""


@dataclass(frozen=True)
class Costs:
    """What a training step costs on one mesh, for one shape."""

    sent: Fraction
    """Elements that leave each device, on average."""
    held: Fraction
    """Elements live at once on a device at most."""
    messages: Fraction
    """Sent by each device per step, on average over the three phases."""
    both_ways: Fraction
    """Of the steps in which a device sends: the part in which it does so in opposite directions."""


def costs(primitive: Primitive, side: int, shape: tuple[int, int, int]) -> Costs:
    """Count in the program of a mesh. `shape` is M, N and K."""
    sequence = on_side(primitive, side)
    program = lower(sequence)
    sizes = dict(zip(("M", "N", "K"), shape, strict=True))
    blocks = {
        tensor: prod((Fraction(sizes[d], sequence.grid.get(d, 1)) for d in dims), start=Fraction(1))
        for tensor, dims in SIZES.items()
    }

    def elements(block: str) -> Fraction:
        return blocks[_tensor(block)]

    sent = sum(
        (elements(block) * times for block, times in sent_blocks(program).items()), Fraction(0)
    )
    messages = sum(isinstance(node, Send | ISend) for nodes in program.programs for node in nodes)
    held = max(max(live_elements(program, rank, elements)) for rank in range(program.ranks))
    steps = [step for step in _directions(sequence, program) if step]
    both = sum(any(tuple(-x % side for x in along) in step for along in step) for step in steps)
    return Costs(
        sent / program.ranks,
        held,
        Fraction(messages, program.ranks * 3 * sequence.steps),
        Fraction(both, max(len(steps), 1)),
    )


def on_side(primitive: Primitive, side: int) -> Sequence:
    """The primitive alone, on a mesh with one side along all axes."""
    return Sequence.of(primitive, *[side] * len(primitive.side_names))


def _tensor(block: str) -> str:
    return block.partition("[")[0].removeprefix("d")


def _directions(sequence: Sequence, program: Program) -> Iterator[set[tuple[int, ...]]]:
    """Where rank 0 sends to between two of its products, as offsets along the axes."""
    here, lengths = sequence.coordinates[0], sequence.axis_lengths
    offsets: set[tuple[int, ...]] = set()
    for node in program.programs[0]:
        if isinstance(node, Compute):
            yield offsets
            offsets = set()
        elif isinstance(node, Send | ISend):
            there = sequence.coordinates[node.peer]
            offsets.add(
                tuple((b - a) % length for a, b, length in zip(here, there, lengths, strict=True))
            )
    yield offsets


def words_of(primitive: Primitive) -> Words:
    """The words of a primitive on two axes of side s, from the programs of two meshes."""
    few, many = (parts_sent(primitive, side) for side in READ_ON)
    slopes = [b - a for a, b in zip(few, many, strict=True)]
    return tuple(
        (int(slope), int(low - READ_ON[0] * slope)) for slope, low in zip(slopes, few, strict=True)
    )


def parts_sent(primitive: Primitive, side: int) -> list[Fraction]:
    """Parts of I, W and O that leave each device, of which it has one where nothing is copied."""
    sequence = on_side(primitive, side)
    total = dict.fromkeys(SIZES, Fraction(0))
    for block, times in sent_blocks(lower(sequence)).items():
        total[_tensor(block)] += times
    grid = sequence.grid
    return [
        total[tensor] / prod(grid.get(dim, 1) for dim in dims) for tensor, dims in SIZES.items()
    ]


def amount(words: Words, side: int, shape: tuple[int, int, int]) -> Fraction:
    """Elements that leave each device, by the formula."""
    M, N, K = shape
    blocks = [a * side + b for a, b in words]
    return Fraction(
        sum(n * size for n, size in zip(blocks, (M * N, N * K, M * K), strict=True)), side**2
    )


def formula_text(words: Words) -> str:
    """The words as a formula, times 1 / s^2: `3 (s - 1) MN + (3 s - 2) MK`."""
    parts: dict[str, list[str]] = {}
    for (a, b), size in zip(words, SIZES.values(), strict=True):
        often = f"{a} " if a != 1 else ""
        if a or b:
            factor = f"{often}s {'+' if b > 0 else '-'} {abs(b)}" if b else f"{often}s"
            parts.setdefault(
                f"{often}(s - 1)" if b == -a else f"({factor})" if b else factor, []
            ).append(size)
    terms = (
        f"{factor} {sizes[0]}" if len(sizes) == 1 else f"{factor} ({' + '.join(sizes)})"
        for factor, sizes in parts.items()
    )
    return " + ".join(terms) or "0"


def beats(one: Words, other: Words) -> bool:
    """Whether one sends no more of any tensor, and less of one, from side 3 on."""
    sides = (3, 1_000_000)  # affine in s: what holds at both holds between them
    pairs = [
        (a * s + b, c * s + d) for s in sides for (a, b), (c, d) in zip(one, other, strict=True)
    ]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)
