"""What the blocks of a program should hold, and the words for what they do hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from primepar.errors import ShapeError
from primepar.reference.emulator.provenance import Array, Block, ComputedProduct, Datum, Term, Terms
from primepar.schedule.meaning import Key, Meaning, Phase, Place
from primepar.schedule.program import Compute, Program


class Contents:
    """The terms that belong into the blocks of one program, and their names in messages."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.meaning = Meaning(program)
        self._homes: dict[str, Place | None] = {}
        self._due: dict[Place, Terms] = {}
        self._found: defaultdict[str, set[Place]] = defaultdict(set)

    def home(self, name: str) -> Place | None:
        """The place that a name speaks of, also for the scratch of its block.

        None for a name without meaning. Raises `ProgramError` for a block outside its tensor.
        """
        if name not in self._homes:
            self._homes[name] = self.meaning.place(name.removesuffix("'"))
        return self._homes[name]

    def maker(self, home: Place) -> Phase | None:
        """The phase that makes what lies there; None for data from outside."""
        return self.meaning.makers.get(home.tensor)

    def datum(self, name: str, rank: int, array: Array) -> Block:
        """Copy of an array that lies under `name` on `rank` before the program.

        Raises `ShapeError` if the cuts of its tensor give the block another shape.
        """
        home, shape = self.home(name), self.shape(name)
        if shape is not None and array.shape != shape:
            raise ShapeError(
                f"memories[{rank}]: expected an array of shape {shape} for {name}, "
                f"got {array.shape}"
            )
        if home is not None:
            self._found[home.tensor].add(home)
        term = Datum(home) if home is not None else Datum(None, name, rank)
        return Block(np.array(array), frozenset({term}))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a block of a tensor whose cuts are told; None for any other."""
        home = self.home(name)
        if home is None or name.rpartition("[")[0] not in (self.program.tensors or {}):
            return None
        return tuple(end - first for first, end in home.box)

    def product(self, phase: Phase, sub_operator: Mapping[str, int]) -> ComputedProduct:
        """The term that a sub-operator makes."""
        whole = Place(self.meaning.real(phase.writes.tensor), ())
        home = self.home(phase.writes.block(sub_operator)) or whole
        return ComputedProduct(home, phase.name, phase.key(sub_operator))

    def due(self, home: Place) -> Terms:
        """The terms of a finished block: its datum, or all products of it.

        What a block held before that the program makes stays in it.
        """
        if home not in self._due:
            self._due[home] = frozenset(self._terms(home))
        return self._due[home]

    def _terms(self, home: Place) -> Iterable[Term]:
        phase = self.maker(home)
        if phase is None or any(overlap(home, found) for found in self._found[home.tensor]):
            yield Datum(home)
        if phase is not None:
            keys = self._computed(phase, home) if phase.keys is None else phase.keys
            yield from (ComputedProduct(home, phase.name, key) for key in keys)

    def _computed(self, phase: Phase, home: Place) -> set[Key]:
        """Parts that the program computes, there or in a part of it."""
        made = self._parts.get(phase.name, {})
        if home in made:
            return made[home]
        return {key for own, keys in made.items() if overlap(own, home) for key in keys}

    @cached_property
    def _parts(self) -> dict[str, dict[Place, set[Key]]]:
        found: dict[str, dict[Place, set[Key]]] = {}
        for phase in self.meaning.phases.values():
            for slices in self.computed(phase):
                home, _, key = self.product(phase, slices)
                found.setdefault(phase.name, {}).setdefault(home, set()).add(key)
        return found

    def computed(self, phase: Phase) -> list[dict[str, int]]:
        """The sub-operators of a phase that the program computes, each once and without copies."""
        return list(self._sub_operators.get(phase.name, {}).values())

    @cached_property
    def _sub_operators(self) -> dict[str, dict[tuple[int, ...], dict[str, int]]]:
        found: dict[str, dict[tuple[int, ...], dict[str, int]]] = {}
        for instructions in self.program.programs:
            for node in instructions:
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    dims = sorted(self.meaning.phases[node.phase].dims)
                    if node.sub_operator.keys() >= set(dims):
                        slices = {dim: node.sub_operator[dim] for dim in dims}
                        found.setdefault(node.phase, {})[tuple(slices.values())] = slices
        return found

    def is_finished(self, block: Block) -> bool:
        """Whether a block holds the finished sum of its home, in a tensor that a phase makes."""
        if len(block.homes) != 1:
            return False
        (home,) = block.homes
        return self.maker(home) is not None and block.terms == self.due(home)

    def wanting(self, name: str, block: Block) -> str:
        """What is wrong with a block that should be finished; nothing if its name means nothing."""
        home = self.home(name)
        if home is None or name.endswith("'"):
            return ""
        due = self.due(home)
        if block.terms == due:
            return ""
        if self.maker(home) is None:
            return f"expected {name}, got {self.text(block.terms)} under that name"
        expected = f"expected the {len(due)} term{'s' * (len(due) != 1)} of {name}, got"
        missing = sorted(map(self._term, due - block.terms))
        strange = sorted(map(self._term, block.terms - due))
        return f"{expected} it without {missing[0]}" if missing else f"{expected} also {strange[0]}"

    def name(self, home: Place) -> str:
        """A name of what lies there."""
        return self.meaning.block_at(*home)

    def text(self, terms: Iterable[Term]) -> str:
        """How messages name the content of a block: at most four terms."""
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


def sub_operator_text(phase: str, slices: Mapping[str, int]) -> str:
    """How messages name a sub-operator, `forward M=0 N=1 K=0`."""
    return " ".join([phase, *(f"{dim}={index}" for dim, index in slices.items())])


def overlap(one: Place, other: Place) -> bool:
    """Whether two places have something in common."""
    if one.tensor != other.tensor or len(one.box) != len(other.box):
        return False
    pairs = zip(one.box, other.box, strict=True)
    return all(first < stop and start < end for (first, end), (start, stop) in pairs)
