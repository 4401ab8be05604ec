"""What blocks hold, and what they should hold: an array with the terms that are summed in it.

A term is a datum, which existed before the program, or the product of one sub-operator. Each has a
home: the place in a tensor that it may be summed into, once. If a block is cut, its terms are cut
with it. A datum whose name has no meaning has no home. It is identified by its name and its first
rank, and may be summed into anything, any number of times. Example: after `y += x0 w0` and
`y += x1 w1`, block `y` has two terms, the two products, each once. After an addition of `y` to `z`
with scale 1/2, `z` has both 1/2 times. Block `y` is finished if the grid has 2 slices along N.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.errors import ShapeError
from primepar.schedule.meaning import Key, Meaning, Phase, Place
from primepar.schedule.program import Compute, Instruction, Program
from primepar.schedule.signature import Scale

Array = NDArray[Any]


class Datum(NamedTuple):
    """The content of a block before the program; without a home its origin distinguishes it."""

    home: Place | None
    name: str = ""
    origin: int = 0


class ComputedProduct(NamedTuple):
    """The product of one sub-operator in its output block, or in the part that is its home."""

    home: Place
    phase: str
    key: Key


Term = Datum | ComputedProduct
Terms = Mapping[Term, Scale]
"""Term -> its coefficient."""


@dataclass(frozen=True)
class Block:
    """An array that is never changed in place, and the terms that are summed in it."""

    array: Array
    terms: Terms

    def __post_init__(self) -> None:
        self.array.flags.writeable = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    @cached_property
    def homes(self) -> frozenset[Place]:
        """The places that the terms belong to; a correct sum has one."""
        return frozenset(term.home for term in self.terms if term.home is not None)

    @property
    def kinds(self) -> frozenset[tuple[Any, ...]]:
        """The terms without their homes, with their coefficients."""
        return frozenset((*term[1:], scale) for term, scale in self.terms.items())

    def moved(self, home: Place, array: Array) -> Block:
        """Return a block with terms of the same kinds at another home, and another array."""
        terms = {
            term._replace(home=home) if term.home else term: scale
            for term, scale in self.terms.items()
        }
        return Block(np.array(array), terms)


class Contents:
    """The expected terms of the blocks of one program, and their names in messages."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.meaning = Meaning(program)
        self._homes: dict[str, Place | None] = {}
        self._due: dict[Place, Terms] = {}
        self._initial: defaultdict[str, set[Place]] = defaultdict(set)
        self.doubt: str | None = None
        """The first write that no later instruction makes right: wrong if its data is used."""

    def note_doubt(self, message: str) -> None:
        """Note a write that is wrong only if somebody uses its data, as a claim is made by a read.

        A doubled sum that nothing reads, and that does not end anywhere, does no harm.
        """
        self.doubt = self.doubt or message

    @cached_property
    def exact(self) -> bool:
        """Whether the program has signatures or scales, so that stand-ins compute its phases."""
        nodes = chain.from_iterable(self.program.programs)
        return bool(self.program.phases) or any(_scale(node) != "1" for node in nodes)

    @cached_property
    def rescales(self) -> bool:
        """Whether an addition or a collective makes coefficients smaller."""
        return any(
            Fraction(_scale(node)) < 1
            for node in chain.from_iterable(self.program.programs)
            if _scale(node) != "1" and getattr(node, "phase", None) is None
        )

    def home(self, name: str) -> Place | None:
        """Return the place that a block name means; a scratch block has that of its block.

        None for a name without meaning. Raises `ProgramError` for a block outside its tensor.
        """
        if name not in self._homes:
            self._homes[name] = self.meaning.place(name.removesuffix("'"))
        return self._homes[name]

    def maker(self, home: Place) -> Phase | None:
        """Return the phase that makes a place's tensor; None for inputs of the program."""
        return self.meaning.makers.get(home.tensor)

    def datum(self, name: str, rank: int, array: Array) -> Block:
        """Return a copy of the array that `rank` has under `name` before the program.

        Raises `ShapeError` if the cuts of its tensor give the block another shape.
        """
        home, shape = self.home(name), self.shape(name)
        if shape is not None and array.shape != shape:
            raise ShapeError(
                f"memories[{rank}]: expected an array of shape {shape} for {name}, "
                f"got {array.shape}"
            )
        if home is not None:
            self._initial[home.tensor].add(home)
        term = Datum(home) if home is not None else Datum(None, name, rank)
        return Block(np.array(array), {term: 1})

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a block of a tensor with declared cuts; None for any other."""
        home = self.home(name)
        if home is None or name.rpartition("[")[0] not in (self.program.tensors or {}):
            return None
        return tuple(end - first for first, end in home.box)

    def product(self, phase: Phase, sub_operator: Mapping[str, int]) -> ComputedProduct:
        """Return the term that a sub-operator makes."""
        whole = Place(self.meaning.real(phase.writes.tensor), ())
        home = self.home(phase.writes.block(sub_operator)) or whole
        return ComputedProduct(home, phase.name, phase.key(sub_operator))

    def due(self, home: Place) -> Terms:
        """Return the terms of a finished block: its datum, or all its products, scaled.

        A block that the program makes keeps the datum that it had before.
        """
        if home not in self._due:
            self._due[home] = dict(self._terms(home))
        return self._due[home]

    def _terms(self, home: Place) -> Iterable[tuple[Term, Scale]]:
        phase = self.maker(home)
        # A gradient that is there before the step is part of the sum, also where it is cut
        # otherwise then.
        if phase is None or any(overlap(home, given) for given in self._initial[home.tensor]):
            yield Datum(home), 1
        if phase is not None:
            keys = self._computed(phase, home) if phase.keys is None else phase.keys
            for key in keys:
                yield ComputedProduct(home, phase.name, key), phase.scale

    def most(self, term: Term) -> Scale:
        """Return the coefficient that a term has in a finished sum."""
        return 1 if isinstance(term, Datum) else self.meaning.phases[term.phase].scale

    def _computed(self, phase: Phase, home: Place) -> set[Key]:
        """Return the keys of the parts that the program computes at a place or in a part of it."""
        made = self._parts.get(phase.name, {})
        if home in made:
            return made[home]
        return {key for part, keys in made.items() if overlap(part, home) for key in keys}

    @cached_property
    def _parts(self) -> dict[str, dict[Place, set[Key]]]:
        keys_by_place: dict[str, dict[Place, set[Key]]] = {}
        for phase in self.meaning.phases.values():
            for slices in self.computed(phase):
                home, _, key = self.product(phase, slices)
                keys_by_place.setdefault(phase.name, {}).setdefault(home, set()).add(key)
        return keys_by_place

    def computed(self, phase: Phase) -> list[dict[str, int]]:
        """Return the sub-operators of a phase that the program computes, without replicas."""
        return list(self._sub_operators.get(phase.name, {}).values())

    @cached_property
    def _sub_operators(self) -> dict[str, dict[tuple[int, ...], dict[str, int]]]:
        by_phase: dict[str, dict[tuple[int, ...], dict[str, int]]] = {}
        for instructions in self.program.programs:
            for node in instructions:
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    dims = sorted(self.meaning.phases[node.phase].dims)
                    if node.sub_operator.keys() >= set(dims):
                        slices = {dim: node.sub_operator[dim] for dim in dims}
                        by_phase.setdefault(node.phase, {})[tuple(slices.values())] = slices
        return by_phase

    def is_finished(self, block: Block) -> bool:
        """Return whether a block holds the full sum of its home, in a tensor that a phase makes."""
        if len(block.homes) != 1:
            return False
        (home,) = block.homes
        return self.maker(home) is not None and block.terms == self.due(home)

    def difference(self, name: str, block: Block) -> str:
        """Return the error of a block that should be finished; empty if there is none.

        A name without meaning and a scratch block have no expected content.
        """
        home = self.home(name)
        if home is None or name.endswith("'"):
            return ""
        due = self.due(home)
        if block.terms == due:
            return ""
        if self.maker(home) is None:
            return f"expected {name}, got {self.text(block.terms)} under that name"
        expected = f"expected the {len(due)} term{'s' * (len(due) != 1)} of {name}, got"
        missing = sorted(map(self._term, due.keys() - block.terms.keys()))
        strange = sorted(map(self._term, block.terms.keys() - due.keys()))
        if missing:
            return f"{expected} it without {missing[0]}"
        if strange:
            return f"{expected} also {strange[0]}"
        return self._wrong_coefficient(due, block.terms, name)

    def _wrong_coefficient(self, due: Terms, terms: Terms, name: str) -> str:
        """Return the error of right terms of which one has another coefficient."""
        wrong = {self._term(term): (due[term], terms[term]) for term in due}
        text = min(text for text, (required, got) in wrong.items() if required != got)
        required, got = map(often, wrong[text])
        return f"expected {text} {required} in {name}, got it {got}"

    def name(self, home: Place) -> str:
        """Return a name of the block at a place."""
        return self.meaning.block_at(*home)

    def text(self, terms: Iterable[Term]) -> str:
        """Return the content of a block as text for messages, at most four terms."""
        shown = sorted(map(self._term, terms))
        more = f" + {len(shown) - 4} more" if len(shown) > 4 else ""
        return " + ".join(shown[:4]) + more if shown else "zeros"

    def _term(self, term: Term) -> str:
        if isinstance(term, Datum):
            if term.home is None:
                return f"{term.name} of device {term.origin}"
            return self.name(term.home) + " from before" * (self.maker(term.home) is not None)
        phase = self.meaning.phases[term.phase]
        index = self.meaning.index_of(phase, term.home.box)
        if index is not None:
            return sub_operator_text(phase.name, phase.sub_operator(index, term.key))
        part = f" part {','.join(map(str, term.key))}" if term.key else ""
        return f"{phase.name}{part} of {self.name(term.home)}"


def _scale(node: Instruction) -> str:
    return getattr(node, "scale", "1")


def often(scale: Scale) -> str:
    """Return a coefficient as text for messages, `once` or `1/64 times`."""
    return "once" if scale == 1 else f"{scale} times"


def sub_operator_text(phase: str, slices: Mapping[str, int]) -> str:
    """Return a sub-operator as text for messages, `forward M=0 N=1 K=0`."""
    return " ".join([phase, *(f"{dim}={index}" for dim, index in slices.items())])


def overlap(one: Place, other: Place) -> bool:
    """Return whether two places share elements."""
    if one.tensor != other.tensor or len(one.box) != len(other.box):
        return False
    pairs = zip(one.box, other.box, strict=True)
    return all(first < stop and start < end for (first, end), (start, stop) in pairs)
