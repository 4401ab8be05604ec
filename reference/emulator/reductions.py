"""What is made of blocks: reductions of them, their parts, and the whole of some parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from math import prod

import numpy as np

from primepar.errors import WrongDataError
from primepar.reference.emulator.expected_contents import Contents, overlap
from primepar.reference.emulator.provenance import Block, Term
from primepar.schedule.meaning import Box, Place
from primepar.schedule.program import Cut, Join
from primepar.schedule.signature import Reduction

_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combine(contents: Contents, blocks: Sequence[Block], reduction: Reduction = "sum") -> Block:
    """Reduce blocks into one.

    Raises `WrongDataError` if they have other shapes, belong to different blocks, are reduced in
    another way than their phase reduces, or would count a term of a sum twice.
    """
    shapes = {block.array.shape for block in blocks if block.terms}
    if len(shapes) > 1:
        listed = " and ".join(str(shape) for shape in sorted(shapes))
        raise WrongDataError(f"expected blocks of one shape to reduce, got {listed}")
    homes = frozenset[Place]().union(*(block.homes for block in blocks))
    if len(homes) > 1:
        names = " and ".join(sorted(map(contents.name, homes)))
        raise WrongDataError(f"expected terms of one block in a sum, got terms of {names}")
    counts = Counter(term for block in blocks for term in block.terms)
    # The largest of equal blocks is each of them.
    alike = reduction != "sum" and all(block.terms == blocks[0].terms for block in blocks)
    if len(blocks) > 1 and not alike:
        for home in homes:
            _check_reduction(contents, home, blocks, reduction)
            _check_terms(contents, home, blocks, counts)
    array = reduce(_UFUNCS[reduction], (block.array for block in blocks))
    return Block(np.array(array), frozenset(counts))


def _check_reduction(
    contents: Contents, home: Place, blocks: Sequence[Block], reduction: Reduction
) -> None:
    phase = contents.maker(home)
    due = phase.reduction if phase else "sum"
    if reduction != due:
        article = "a sum" if due == "sum" else f"the {due}"
        raise WrongDataError(
            f"expected {article} of the terms of {contents.name(home)}, got their {reduction}: "
            f"write reduction {due}, or a name without meaning"
        )


def _check_terms(
    contents: Contents, home: Place, blocks: Sequence[Block], counts: Counter[Term]
) -> None:
    phase = contents.maker(home)
    if phase is None or phase.reduction == "sum":
        twice = sorted(contents.text([term]) for term, n in counts.items() if n > 1 and term.home)
        if twice:
            raise WrongDataError(f"expected every term once in a sum, got {twice[0]} a second time")
        return
    if not all(block.terms for block in blocks):
        raise WrongDataError(
            f"expected the {phase.reduction} of the terms of {contents.name(home)}, got zeros "
            "among them: write the first one into a name that holds nothing"
        )


def cut(contents: Contents, node: Cut, block: Block) -> list[Block]:
    """The parts of a block. Raises `WrongDataError` if they do not make it up."""
    whole, parts = _whole_and_parts(contents, node)
    if len(parts) == 1 or block.array.shape != _extents(whole.box):
        return [block.moved(part, block.array) for part in parts]
    return [block.moved(part, block.array[_window(whole.box, part.box)]) for part in parts]


def join(contents: Contents, node: Join, blocks: Sequence[Block]) -> Block:
    """The whole of some parts. Raises `WrongDataError` if they do not make it up."""
    whole, parts = _whole_and_parts(contents, node)
    for name, block in zip(node.blocks, blocks, strict=True):
        if block.kinds != blocks[0].kinds:
            raise WrongDataError(
                f"expected parts of {node.block} with the same terms, got "
                f"{contents.text(blocks[0].terms)} in {node.blocks[0]} and "
                f"{contents.text(block.terms)} in {name}"
            )
    if len(parts) == 1:
        return blocks[0].moved(whole, blocks[0].array)
    array = np.zeros(_extents(whole.box), np.result_type(*(block.array for block in blocks)))
    for part, block in zip(parts, blocks, strict=True):
        array[_window(whole.box, part.box)] = block.array
    return blocks[0].moved(whole, array)


def _whole_and_parts(contents: Contents, node: Cut | Join) -> tuple[Place, list[Place]]:
    """Where a block and its parts lie."""
    whole = contents.meaning.place(node.block)
    parts = [part for part in map(contents.meaning.place, node.blocks) if part is not None]
    if whole is None or len(parts) < len(node.blocks) or not _fill(parts, whole):
        names = " and ".join(node.blocks)
        raise WrongDataError(f"expected the parts of {node.block}, side by side, got {names}")
    return whole, parts


def _fill(parts: Sequence[Place], whole: Place) -> bool:
    """Whether parts lie in a place, side by side, and fill it."""
    inside = all(
        part.tensor == whole.tensor
        and len(part.box) == len(whole.box)
        and all(start <= first and end <= stop
                for (first, end), (start, stop) in zip(part.box, whole.box, strict=True))
        for part in parts
    )  # fmt: skip
    apart = not any(overlap(one, other) for one, other in combinations(parts, 2))
    size = sum(prod(_extents(part.box)) for part in parts)
    return inside and apart and size == prod(_extents(whole.box))


def _extents(box: Box) -> tuple[int, ...]:
    return tuple(end - first for first, end in box)


def _window(whole: Box, part: Box) -> tuple[slice, ...]:
    """Where a part lies in a block."""
    return tuple(
        slice(first - start, end - start)
        for (first, end), (start, _) in zip(part, whole, strict=True)
    )
