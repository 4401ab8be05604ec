"""Generated maps as Python source, for the prover to be wrong about: always the same for a seed.

Each is a right method, changed in ways that keep it right or seldom do; or a map outside the
language, which looks at types, keeps state or is no function.
"""

from __future__ import annotations

import re
from copy import deepcopy
from random import Random
from typing import NamedTuple

from attack_changes import RIGHT, WRONG, Change, switched
from attack_methods import METHODS, Draft
from attack_outside import outside

NAME = "Attack"
"""The class in every source."""
WEIGHTS: dict[str, float] = {
    **{name: 0.4 if name.startswith("mixed") else 1 for name in METHODS},
    "primepar": 4,
    "primepar-layers": 2,
    "summa": 3,
    "three-d": 2,
    "tesseract": 2,
}
"""How often a method is drawn."""
OFTEN = {"devices": 6, "slices": 6, "steps": 4, "token": 4, "open digits": 1, "kept copies": 1}
"""How often a change is tried, if not twice."""


class Map(NamedTuple):
    """One generated map."""

    seed: int
    method: str
    ways: tuple[str, ...]
    """What was done to the method, in order."""
    source: str
    in_language: bool
    is_right: bool | None
    """True where every way keeps the method right, False where a map is no function of its
    arguments; None where the oracle decides."""

    @property
    def has_threshold(self) -> bool:
        """Whether it compares more than PrimePar does, which asks for the last step."""
        rest = re.sub(r"where\(t == [sq] - 1, 1, 0\)|tensor ==", "", self.source)
        return re.search(r"[<>]|==", rest) is not None

    @property
    def template(self) -> str:
        """What it counts under: its last way, and a threshold if it has one."""
        return self.ways[-1] if self.ways else "unchanged"


def generated(seed: int) -> Map:
    """The map of a seed."""
    random = Random(f"attack {seed}")
    kind = random.random()
    if kind < 0.1:
        way, source, is_right = outside(random, NAME)
        return Map(seed, "outside", (way,), source, False, is_right)
    names = list(METHODS)
    weights = [WEIGHTS[name] for name in names]
    draft = deepcopy(METHODS[random.choices(names, weights)[0]])
    ways = right_ways(draft, random, least=kind < 0.45)
    if kind < 0.45:
        return Map(seed, draft.method, ways, draft.source(NAME), True, True)
    ways = (*ways, *_tried(draft, random, WRONG))
    return Map(seed, draft.method, ways, draft.source(NAME), True, None)


def right_ways(draft: Draft, random: Random, *, least: int) -> tuple[str, ...]:
    """Change a draft so that it stays right, `least` times or more."""
    ways = ["switched"] if random.random() < 0.3 and switched(draft, random) else []
    for _ in range(random.randint(least, 2)):
        ways += _tried(draft, random, RIGHT)
    return tuple(ways)


def _tried(draft: Draft, random: Random, changes: dict[str, Change]) -> list[str]:
    """Make one change that can be made."""
    while True:
        way = random.choices(list(changes), [OFTEN.get(way, 2) for way in changes])[0]
        if changes[way](draft, random):
            return [way]
