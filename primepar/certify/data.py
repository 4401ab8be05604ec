"""What blocks hold when a program is run in the order of its certificate.

Part of the checker of certificates: it knows the grammar of programs and nothing of the proofs. A
block holds regions, each a sum of tokens: a product's sub-operator, or the tensor that data is of;
with each token where the block would begin in the token's tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box, Meaning, Phase
from primepar.schedule.program import Compute, Cut, Join, Program

Told = tuple[str, tuple[tuple[str, int], ...]]
"""A phase and the slices that tell its sub-operators apart."""
Token = Told | tuple[str, str]
"""What a product is of, or ("own" or "before", tensor)."""
Value = frozenset[Any]
"""((token, where), times) of each term; a choice by max or min is a term too."""


class Region(NamedTuple):
    """A box of a block, counted from its first element, and the sum in it."""

    box: Box
    value: Value


Content = tuple[Region, ...]
ZERO: Content = ()


def meet(one: Box, other: Box) -> Box | None:
    """What two boxes have in common."""
    if len(one) != len(other):
        return None
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(first < end for first, end in box) else None


def further(box: Box, by: Iterable[int]) -> Box:
    """A box elsewhere."""
    return tuple((a + step, b + step) for (a, b), step in zip(box, by, strict=True))


def size(boxes: Iterable[Box]) -> int:
    """Elements in boxes that do not meet."""
    return sum(prod(b - a for a, b in box) for box in boxes)


def reduced(reduction: str, contents: list[Content], name: str) -> Content:
    """The reduction of what several blocks hold; where sizes differ, what fits no block."""
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    made = [(region.box, [region.value]) for region in given[0]]
    for content in given[1:]:
        pairs = product(made, content)
        both = [(meet(box, region.box), [*values, region.value])
                for (box, values), region in pairs]  # fmt: skip
        whole = size(box for box, _ in made)
        made = [(box, values) for box, values in both if box is not None]
        if not size(box for box, _ in made) == whole == size(r.box for r in content):
            return (Region(((-1, 0),), frozenset([((("of other sizes", name), ()), 1)])),)
    return tuple(Region(box, _joined(reduction, values)) for box, values in made)


def _joined(reduction: str, values: list[Value]) -> Value:
    if reduction == "sum":
        total = Counter[Any]()
        for value in values:
            total.update(dict(value))
        return frozenset(total.items())
    among: set[Value] = set()
    for value in values:
        terms = list(value)
        nested = len(terms) == 1 and terms[0][1] == 1 and terms[0][0][0] == reduction
        among |= terms[0][0][1] if nested else {value}
    return among.pop() if len(among) == 1 else frozenset([((reduction, frozenset(among)), 1)])


class Data:
    """The names of a program: what a block should hold."""

    def __init__(self, program: Program) -> None:
        self.program, self.meaning = program, Meaning(program)
        self.before: dict[str, set[Box]] = {}
        self._due: dict[str, dict[Box, set[Told]]] = {}
        for phase in self.meaning.phases.values():
            self._due[phase.name] = self._outputs(phase)

    def _outputs(self, phase: Phase) -> dict[Box, set[Told]]:
        """Output box -> the sub-operators that add to it."""
        found: dict[Box, set[Told]] = {}
        for cell in self.cells(phase):
            at = self.meaning.place(phase.writes.block(cell))
            if at is not None:
                found.setdefault(at.box, set()).add(self.told(phase.name, cell))
        return found

    def cells(self, phase: Phase) -> list[dict[str, int]]:
        """All sub-operators of a phase; without a grid those that the program has."""
        if phase.grid is not None:
            indices = product(*(range(count) for count in phase.grid.values()))
            return [dict(zip(phase.grid, index, strict=True)) for index in indices]
        return self._computed.get(phase.name, [])

    @cached_property
    def _computed(self) -> dict[str, list[dict[str, int]]]:
        """Phase -> the sub-operators that the program computes."""
        found: dict[str, list[dict[str, int]]] = {}
        for node in (node for own in self.program.programs for node in own):
            if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                found.setdefault(node.phase, []).append(node.sub_operator)
        return found

    def cells_of(self, phase: str) -> list[dict[str, int]]:
        """All sub-operators of a phase that is called so."""
        found = self.meaning.phases.get(phase)
        return self.cells(found) if found is not None and found.grid is not None else []

    def told(self, phase: str, cell: dict[str, int]) -> Told:
        """A sub-operator without the dims that count copies."""
        dims = self.meaning.phases[phase].dims
        return phase, tuple(sorted((dim, at) for dim, at in cell.items() if dim in dims))

    def maker(self, block: str) -> Phase | None:
        """The phase that makes a block."""
        at = self.meaning.place(block)
        return None if at is None else self.meaning.makers.get(at.tensor)

    def box(self, block: str) -> Box:
        """Where a block lies in its tensor."""
        at = self.meaning.place(block)
        return () if at is None else at.box

    def of(self, block: str, token: Token, bring: bool = False) -> Content:
        """One token all over a block."""
        at = self.meaning.place(block)
        if at is None:
            return (Region((), frozenset([(((token[0], block), ()), 1)])),)
        if bring and self.maker(block) is not None:
            self.before.setdefault(at.tensor, set()).add(at.box)
        corner = tuple(first for first, _ in at.box)
        box = further(at.box, (-first for first in corner))
        return (Region(box, frozenset([((token, corner), 1)])),)

    def own(self, block: str, bring: bool = False) -> Content:
        """The data of a block that the program did not make."""
        at = self.meaning.place(block)
        source = "own" if self.maker(block) is None else "before"
        return self.of(block, (source, at.tensor if at else block), bring)

    def is_right(self, content: Content, block: str) -> bool:
        """Whether a block of that name should hold this: its own data, or its finished sum."""
        phase, at = self.maker(block), self.meaning.place(block)
        if at is None:
            return set(content) == set(self.own(block))
        if size(region.box for region in content) != size([at.box]):
            return False
        corner = tuple(first for first, _ in at.box)
        return all(self._is_sum(region, phase, at.tensor, corner) for region in content)

    def _is_sum(
        self, region: Region, phase: Phase | None, tensor: str, corner: tuple[int, ...]
    ) -> bool:
        if len(region.box) != len(corner):
            return False
        due = self._sources(further(region.box, corner), phase, tensor)
        terms = list(region.value)
        if due is None:
            return False
        if phase is not None and phase.reduction != "sum" and len(due) > 1:
            ((kind, among), times), *more = terms or [((None, ()), 0)]
            if more or times != 1 or kind != phase.reduction or any(len(v) != 1 for v in among):
                return False
            terms = [next(iter(value)) for value in among]
        found = [token for (token, where), times in terms if times == 1 and where == corner]
        return len(found) == len(terms) == len(due) and set(found) == due

    def _sources(self, box: Box, phase: Phase | None, tensor: str) -> set[Any] | None:
        """What is due in a box of a tensor; None where no one sum is due in all of it."""
        if phase is None:
            return {("own", tensor)}
        outputs = self._due[phase.name]
        met = [box] if box in outputs else [at for at in outputs if meet(at, box)]
        if any(meet(at, box) != box for at in met):
            return None
        due: set[Any] = set().union(*(outputs[at] for at in met))
        found = any(meet(box, at) for at in self.before.get(tensor, ()))
        return due | {("before", tensor)} if found else due

    def is_one_kind(self, content: Content) -> bool:
        """Whether all regions of a block hold the same parts of the same tensors."""
        return len({self._kind(region.value) for region in content}) < 2

    def _kind(self, value: Value) -> Any:
        kinds: list[Any] = []
        for (token, where), times in value:
            if token in ("max", "min"):
                kinds.append((token, frozenset(map(self._kind, where)), times))
                continue
            name, told = token
            if isinstance(told, tuple):
                told = self.meaning.phases[name].key(dict(told))
            kinds.append((name, told, where, times))
        return frozenset(kinds)

    def parts(self, node: Cut | Join) -> list[tuple[str, Box]] | None:
        """The parts of a block and where they lie in it; None unless they fill it."""
        whole = self.meaning.place(node.block)
        places = [self.meaning.place(block) for block in node.blocks]
        if whole is None or None in places:
            return None
        away = [-first for first, _ in whole.box]
        boxes = [further(at.box, away) for at in places if at and len(at.box) == len(away)]
        own = further(whole.box, away)
        apart = not any(meet(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
        inside = all(meet(box, own) == box for box in boxes)
        if len(boxes) < len(places) or not (apart and inside and size(boxes) == size([own])):
            return None
        return list(zip(node.blocks, boxes, strict=True))


def fits(content: Content, box: Box) -> bool:
    """Whether regions fill a block that lies in a box of its tensor; what is zero fits any."""
    own = further(box, [-first for first, _ in box])
    inside = all(meet(region.box, own) == region.box for region in content)
    return not content or (inside and size(region.box for region in content) == size([own]))


def cut(content: Content, box: Box) -> Content:
    """The part of a block that lies in a box."""
    corner = [first for first, _ in box]
    back = [-first for first in corner]
    regions = [(meet(region.box, box), region.value) for region in content]
    return tuple(
        Region(further(at, back), _shifted(value, corner))
        for at, value in regions
        if at is not None
    )


def join(parts: Iterable[tuple[Content, Box]]) -> Content:
    """Blocks put together."""
    made: list[Region] = []
    for content, box in parts:
        corner = [first for first, _ in box]
        back = [-first for first in corner]
        made += [Region(further(at, corner), _shifted(value, back)) for at, value in content]
    return tuple(made)


def _shifted(value: Value, by: list[int]) -> Value:
    return frozenset(
        (
            (token, frozenset(_shifted(each, by) for each in where))
            if token in ("max", "min")
            else (token, tuple(a + b for a, b in zip(where, by, strict=True)) if where else where),
            times,
        )
        for (token, where), times in value
    )
