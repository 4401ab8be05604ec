"""Computes on blocks with their terms: products, sums and other reductions, cuts and joins.

Every result has the terms that it is made of, and every operation refuses what can no longer become
right. Example: `O[0,0] += I[0,1] W[1,0]` reads two finished blocks and makes the term M=0 N=1 K=0
of O[0,0]. A second addition of the same product is refused: a sum has each term once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, combinations
from math import prod
from typing import Protocol

import numpy as np

from primepar.errors import IncompleteError, WrongDataError
from primepar.reference.emulator.contents import (
    Array,
    Block,
    Contents,
    Term,
    Terms,
    often,
    overlap,
    sub_operator_text,
)
from primepar.reference.emulator.surrogate import PRIME, modular, stand_in
from primepar.reference.emulator.tensors import extents, part_window
from primepar.schedule.meaning import Meaning, Phase, Place
from primepar.schedule.operators import parse_block, tensor_dims
from primepar.schedule.program import Compute, Cut, Join
from primepar.schedule.signature import Reduction, Scale, Template

SMALL = 4096
"""Elements of a block below which the search for a faster contraction costs more than it saves."""
UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Kernels(Protocol):
    """What computes the phases of a program on real numbers.

    `primepar.reference.kernels.StepKernels` does it for those of a training step.
    """

    def check(self, phases: Iterable[Phase]) -> None:
        """Raise `ProgramError` for a phase without a kernel."""

    def made(self, meaning: Meaning, node: Compute, arrays: Sequence[Array]) -> Array:
        """Return the result of a sub-operator; `ValueError` if the shapes do not fit."""

    def added(self, phase: Phase, arrays: Sequence[Array]) -> Array | None:
        """Return the sum of blocks of a phase; None if it is element by element."""


def multiply(phase: Phase, blocks: Sequence[Array]) -> Array:
    """Return the product of two blocks, summed over the dims that the output does not have.

    The dims of each block have the order of the phase's templates: O_MK = I_MN W_NK, with W_KN for
    the table of a tied head. Raises `ValueError` for shapes that do not fit.
    """

    def dims(template: Template) -> str:
        # Blocks of a linear operator also have the dims that the grid does not cut, except B.
        if template.tensor in ("I", "W", "O", "dI", "dW", "dO"):
            names = tensor_dims(template.tensor)
            return "".join(dim for dim in names if dim != "B" or "B" in phase.dims)
        return "".join(dim for dim, _ in template.entries)

    optimize = max(map(np.size, blocks)) > SMALL
    contraction = f"{','.join(map(dims, phase.reads))}->{dims(phase.writes)}"
    return np.asarray(np.einsum(contraction, *blocks, optimize=optimize))


class Arithmetic:
    """Computes the blocks of one program, on real numbers or exactly.

    The program of one linear operator is computed directly, a training step by `kernels`. Without
    them each phase of a program with signatures or scales has a stand-in, in integers modulo a
    prime. Raises `ProgramError` if a phase has no kernel.
    """

    def __init__(self, contents: Contents, kernels: Kernels | None) -> None:
        self.contents, self.kernels = contents, kernels
        self.exact = kernels is None and contents.exact
        if kernels is not None:
            kernels.check(contents.meaning.phases.values())

    def dtype(self, memories: Iterable[Mapping[str, Array]]) -> np.dtype[np.generic]:
        """Return the dtype of a block of zeros: that of the real numbers in the memories."""
        if self.exact:
            return np.dtype(np.int64)
        arrays = (np.asarray(array) for memory in memories for array in memory.values())
        real = {array.dtype for array in arrays if array.dtype.kind == "f"}
        return np.result_type(*real) if real else np.dtype(np.float64)

    def zeros(self, name: str, dtype: np.dtype[np.generic]) -> Block:
        """Return a block of zeros; if its shape is unknown, the first term added to it defines it.

        The shape is known by the cuts of its tensor, or by the shape of the linear operator.
        """
        program, shape = self.contents.program, self.contents.shape(name)
        parsed, declared, grid = parse_block(name), program.shape or {}, program.linear_grid
        if shape is None and parsed is not None and grid:
            dims = [dim for dim in tensor_dims(parsed.tensor) if dim in grid or dim != "B"]
            if all(dim in declared for dim in dims):
                shape = tuple(declared[dim] // grid.get(dim, 1) for dim in dims)
        return Block(np.zeros(shape or (), dtype), {})

    def product(self, node: Compute, blocks: Sequence[Block]) -> Block:
        """Return the result of a sub-operator on the blocks that it reads.

        Raises `WrongDataError` if the sub-operator is not in the grid, if the blocks are not its
        operands in the order of the phase, if their shapes do not fit, or if a kernel returns a
        wrong block. Raises `IncompleteError` if an operand is an unfinished sum.
        """
        phase = self.contents.meaning.phases[str(node.phase)]
        slices = node.sub_operator or {}
        text = sub_operator_text(phase.name, _ordered(phase, slices))
        self._check_operands(node, [read.block(slices) for read in phase.reads], blocks, text)
        term = self.contents.product(phase, slices)
        arrays = [block.array for block in blocks]
        try:
            if self.exact:
                shape = self.contents.shape(phase.writes.block(slices))
                array = stand_in(phase, arrays, shape)
            elif self.kernels is None:
                array = multiply(phase, arrays)
            else:
                array = self._by_kernel(self.kernels, phase, node, arrays)
        except ValueError:
            shapes = " and ".join(str(array.shape) for array in arrays)
            raise WrongDataError(
                f"expected operands of {text} that fit, got shapes {shapes}"
            ) from None
        return self._scaled(Block(array, {term: 1}), node.scale_value)

    def _check_operands(
        self, node: Compute, operands: Sequence[str], blocks: Sequence[Block], text: str
    ) -> None:
        contents = self.contents
        dues = [contents.due(home) for home in map(contents.home, operands) if home is not None]
        # The array may be equal by chance, its terms are not: I[0,1] of zeros in place of I[0,0] is
        # refused.
        if [block.terms for block in blocks] == dues:
            return
        # The right operands without some of their terms: a sum that is not finished yet.
        if len(blocks) == len(dues) and all(
            block.terms and block.terms.keys() <= due.keys()
            for block, due in zip(blocks, dues, strict=True)
        ):
            for operand, block in zip(operands, blocks, strict=True):
                if difference := contents.difference(operand, block):
                    raise IncompleteError(f"{difference}: finish the sum before this instruction")
        got = []
        for name, block in zip(node.reads, blocks, strict=True):
            home = contents.home(name)
            right = home is not None and block.terms == contents.due(home)
            got.append(name if right else f"{name} holding {contents.text(block.terms)}")
        raise WrongDataError(f"expected {text} to read {_listed(operands)}, got {_listed(got)}")

    def _by_kernel(
        self, kernels: Kernels, phase: Phase, node: Compute, arrays: Sequence[Array]
    ) -> Array:
        array = np.asarray(kernels.made(self.contents.meaning, node, arrays))
        shape = self.contents.shape(phase.writes.block(node.sub_operator or {}))
        if array.dtype.kind != "f" or shape not in (None, array.shape):
            expected = "a real block" if shape is None else f"a real block of shape {shape}"
            raise WrongDataError(
                f"expected {expected} from kernel {phase.kernel}, got {array.dtype} of shape "
                f"{array.shape}: see that the program is of this model, batch and positions"
            )
        return array

    def combine(
        self, blocks: Sequence[Block], reduction: Reduction = "sum", scale: Scale = 1
    ) -> Block:
        """Reduce blocks into one: `scale` times their sum, or their maximum or minimum.

        Raises `WrongDataError` if their shapes differ. Notes a doubt if they belong to different
        blocks, if the reduction is not that of their phase, or if a term is counted twice.
        """
        shapes = {block.array.shape for block in blocks if block.terms}
        if len(shapes) > 1:
            listed = " and ".join(str(shape) for shape in sorted(shapes))
            raise WrongDataError(f"expected blocks of one shape to reduce, got {listed}")
        homes = frozenset[Place]().union(*(block.homes for block in blocks))
        if len(homes) > 1:
            names = " and ".join(sorted(map(self.contents.name, homes)))
            self.contents.note_doubt(f"expected terms of one block in a sum, got terms of {names}")
        counts: dict[Term, Scale] = {}
        for term, times in chain.from_iterable(block.terms.items() for block in blocks):
            counts[term] = counts.get(term, 0) + times if reduction == "sum" else times
        # A maximum or minimum of equal blocks is that block, and so is their mean: an average of
        # two replicas of a finished dW is dW, although it has every term twice before the scale.
        keeps = reduction != "sum" or len(blocks) * scale == 1
        alike = keeps and all(block.terms == blocks[0].terms for block in blocks)
        if len(blocks) > 1 and not alike:
            for home in homes:
                self._check_reduction(home, blocks, reduction)
                self._check_terms(home, {term: times * scale for term, times in counts.items()})
        arrays = [block.array for block in blocks]
        array = None
        if self.kernels is not None and reduction == "sum":
            makers = [maker for maker in map(self.contents.maker, homes) if maker is not None]
            array = self.kernels.added(makers[0], arrays) if makers else None
        if array is None:
            array = reduce(UFUNCS[reduction], arrays)
        return self._scaled(Block(np.array(array), counts), scale)

    def _scaled(self, block: Block, scale: Scale) -> Block:
        """Return a block times a coefficient; modulo a prime where stand-ins compute."""
        if scale == 1:
            return block
        terms = {term: times * scale for term, times in block.terms.items()}
        if self.exact:
            return Block(np.mod(block.array, PRIME) * modular(scale) % PRIME, terms)
        return Block(np.asarray(block.array * float(scale)), terms)

    def _check_reduction(self, home: Place, blocks: Sequence[Block], reduction: Reduction) -> None:
        phase, name = self.contents.maker(home), self.contents.name(home)
        due = phase.reduction if phase else "sum"
        if reduction != due:
            article = "a sum" if due == "sum" else f"the {due}"
            raise WrongDataError(
                f"expected {article} of the terms of {name}, got their {reduction}: "
                f"write reduction {due}, or a name without meaning"
            )
        # Zeros are an unfinished sum, but no unfinished maximum.
        if due != "sum" and not all(block.terms for block in blocks):
            raise WrongDataError(
                f"expected the {due} of the terms of {name}, got zeros "
                "among them: write the first one into a name that holds nothing"
            )

    def _check_terms(self, home: Place, counts: Terms) -> None:
        """Note a term of a sum that has too large a coefficient."""
        contents, phase = self.contents, self.contents.maker(home)
        # Without scales below 1 a coefficient that is too large can never become right.
        if contents.rescales or (phase is not None and phase.reduction != "sum"):
            return
        most = {
            contents.text([term]): (contents.most(term), times)
            for term, times in counts.items()
            if term.home and times > contents.most(term)
        }
        for text, (allowed, times) in sorted(most.items()):
            if allowed == 1 and times == int(times):
                self.contents.note_doubt(
                    f"expected every term once in a sum, got {text} a second time"
                )
            self.contents.note_doubt(
                f"expected {text} {often(allowed)} in a sum, got it {often(times)}"
            )

    def cut(self, node: Cut, block: Block) -> list[Block]:
        """Return the parts of a block. Raises `WrongDataError` if they do not fill it."""
        whole, parts = self._whole_and_parts(node)
        if len(parts) == 1 or block.array.shape != extents(whole.box):
            return [block.moved(part, block.array) for part in parts]
        windows = [part_window(whole.box, part.box) for part in parts]
        return [
            block.moved(part, block.array[window])
            for part, window in zip(parts, windows, strict=True)
        ]

    def join(self, node: Join, blocks: Sequence[Block]) -> Block:
        """Return the join of some parts. Raises `WrongDataError` if they do not fill it."""
        whole, parts = self._whole_and_parts(node)
        for name, block in zip(node.blocks, blocks, strict=True):
            if block.kinds != blocks[0].kinds:
                raise WrongDataError(
                    f"expected parts of {node.block} with the same terms, got "
                    f"{self.contents.text(blocks[0].terms)} in {node.blocks[0]} and "
                    f"{self.contents.text(block.terms)} in {name}"
                )
        if len(parts) == 1:
            return blocks[0].moved(whole, blocks[0].array)
        array = np.zeros(extents(whole.box), np.result_type(*(block.array for block in blocks)))
        for part, block in zip(parts, blocks, strict=True):
            array[part_window(whole.box, part.box)] = block.array
        return blocks[0].moved(whole, array)

    def _whole_and_parts(self, node: Cut | Join) -> tuple[Place, list[Place]]:
        """Return the places of a block and of its parts, which fill it without overlap."""
        whole = self.contents.meaning.place(node.block)
        parts = [part for part in map(self.contents.meaning.place, node.blocks) if part is not None]
        if whole is None or len(parts) < len(node.blocks) or not _fill(parts, whole):
            names = " and ".join(node.blocks)
            raise WrongDataError(f"expected the parts of {node.block}, side by side, got {names}")
        return whole, parts


def _ordered(phase: Phase, slices: Mapping[str, int]) -> dict[str, int]:
    """Return a sub-operator in the order of its grid. Raises `WrongDataError` if not in it."""
    grid = phase.grid
    if grid is None:
        return dict(slices)
    if slices.keys() != grid.keys() or any(slices[dim] >= grid[dim] for dim in grid):
        cut = " ".join(f"{dim}={count}" for dim, count in grid.items())
        text = sub_operator_text(phase.name, slices)
        raise WrongDataError(f"expected a sub-operator of the grid {cut}, got {text}")
    return {dim: slices[dim] for dim in grid}


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in words: `x`, `x and y`, `x, y and z`."""
    *first, last = names or ("nothing",)
    return f"{', '.join(first)} and {last}" if first else last


def _fill(parts: Sequence[Place], whole: Place) -> bool:
    """Return whether parts are inside a place, do not overlap, and fill it."""
    inside = all(
        part.tensor == whole.tensor
        and len(part.box) == len(whole.box)
        and all(
            start <= first and end <= stop
            for (first, end), (start, stop) in zip(part.box, whole.box, strict=True)
        )
        for part in parts
    )
    apart = not any(overlap(first, second) for first, second in combinations(parts, 2))
    # Parts inside, disjoint, and of the whole's size leave no gap.
    size = sum(prod(extents(part.box)) for part in parts)
    return inside and apart and size == prod(extents(whole.box))
