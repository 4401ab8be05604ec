"""Operations on blocks with provenance: reductions, cuts and joins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain, combinations
from math import prod

import numpy as np

from primepar.errors import WrongDataError
from primepar.reference.emulator.arithmetic import Arithmetic
from primepar.reference.emulator.expected_contents import Contents, often, overlap
from primepar.reference.emulator.provenance import Block, Term, Terms
from primepar.schedule.meaning import Box, Place
from primepar.schedule.program import Cut, Join
from primepar.schedule.signature import Reduction, Scale

_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combine(
    arithmetic: Arithmetic, blocks: Sequence[Block], reduction: Reduction = "sum", scale: Scale = 1
) -> Block:
    """Reduce blocks into one: `scale` times their sum, or their maximum or minimum.

    Raises `WrongDataError` if their shapes differ, if they belong to different blocks, if the
    reduction is not that of their phase, or if a term of a sum would be counted twice.
    """
    contents = arithmetic.contents
    shapes = {block.array.shape for block in blocks if block.terms}
    if len(shapes) > 1:
        listed = " and ".join(str(shape) for shape in sorted(shapes))
        raise WrongDataError(f"expected blocks of one shape to reduce, got {listed}")
    homes = frozenset[Place]().union(*(block.homes for block in blocks))
    if len(homes) > 1:
        names = " and ".join(sorted(map(contents.name, homes)))
        raise WrongDataError(f"expected terms of one block in a sum, got terms of {names}")
    counts: dict[Term, Scale] = {}
    for term, times in chain.from_iterable(block.terms.items() for block in blocks):
        counts[term] = counts.get(term, 0) + times if reduction == "sum" else times
    # A maximum or minimum of equal blocks is that block, and so is their mean.
    keeps = reduction != "sum" or len(blocks) * scale == 1
    alike = keeps and all(block.terms == blocks[0].terms for block in blocks)
    if len(blocks) > 1 and not alike:
        for home in homes:
            _check_reduction(contents, home, blocks, reduction)
            _check_terms(contents, home, blocks, {t: n * scale for t, n in counts.items()})
    arrays = [block.array for block in blocks]
    makers = [contents.maker(home) for home in homes]
    array = arithmetic.stored_sum(makers, arrays) if reduction == "sum" else None
    if array is None:
        array = reduce(_UFUNCS[reduction], arrays)
    return arithmetic.scaled(Block(np.array(array), counts), scale)


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


def _check_terms(contents: Contents, home: Place, blocks: Sequence[Block], counts: Terms) -> None:
    phase = contents.maker(home)
    if phase is None or phase.reduction == "sum":
        # Without scales below 1 a coefficient that is too large can never become right.
        most = {} if contents.rescales else {
            contents.text([term]): (contents.most(term), times)
            for term, times in counts.items()
            if term.home and times > contents.most(term)
        }  # fmt: skip
        for text, (allowed, times) in sorted(most.items()):
            if allowed == 1 and times == int(times):
                raise WrongDataError(f"expected every term once in a sum, got {text} a second time")
            raise WrongDataError(
                f"expected {text} {often(allowed)} in a sum, got it {often(times)}"
            )
        return
    if not all(block.terms for block in blocks):
        raise WrongDataError(
            f"expected the {phase.reduction} of the terms of {contents.name(home)}, got zeros "
            "among them: write the first one into a name that holds nothing"
        )


def cut(contents: Contents, node: Cut, block: Block) -> list[Block]:
    """Return the parts of a block. Raises `WrongDataError` if they do not fill it."""
    whole, parts = _whole_and_parts(contents, node)
    if len(parts) == 1 or block.array.shape != _extents(whole.box):
        return [block.moved(part, block.array) for part in parts]
    return [block.moved(part, block.array[_window(whole.box, part.box)]) for part in parts]


def join(contents: Contents, node: Join, blocks: Sequence[Block]) -> Block:
    """Return the join of some parts. Raises `WrongDataError` if they do not fill it."""
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
    """Return the places of a block and of its parts."""
    whole = contents.meaning.place(node.block)
    parts = [part for part in map(contents.meaning.place, node.blocks) if part is not None]
    if whole is None or len(parts) < len(node.blocks) or not _fill(parts, whole):
        names = " and ".join(node.blocks)
        raise WrongDataError(f"expected the parts of {node.block}, side by side, got {names}")
    return whole, parts


def _fill(parts: Sequence[Place], whole: Place) -> bool:
    """Return whether parts are inside a place, do not overlap, and fill it."""
    inside = all(
        part.tensor == whole.tensor
        and len(part.box) == len(whole.box)
        and all(start <= first and end <= stop
                for (first, end), (start, stop) in zip(part.box, whole.box, strict=True))
        for part in parts
    )  # fmt: skip
    apart = not any(overlap(first, second) for first, second in combinations(parts, 2))
    size = sum(prod(_extents(part.box)) for part in parts)
    return inside and apart and size == prod(_extents(whole.box))


def _extents(box: Box) -> tuple[int, ...]:
    return tuple(end - first for first, end in box)


def _window(whole: Box, part: Box) -> tuple[slice, ...]:
    """Return the slices of a part in its block."""
    return tuple(
        slice(first - start, end - start)
        for (first, end), (start, _) in zip(part, whole, strict=True)
    )
