"""Programs under a limit of device memory, and ways to spoil their transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from primepar.models import GPTConfig
from primepar.operators import StepOptions, lower_step
from primepar.partition import parse_sequence
from primepar.partition.patrickstar import PatrickStar
from primepar.passes import PASSES
from primepar.passes.liveness import peaks
from primepar.passes.offload import least_limit, offload
from primepar.plan.presets import uniform_plan
from primepar.schedule.program import Evict, Fetch, Free, Instruction, Program
from primepar.schedule.signature import Bound

SMALL = GPTConfig(layers=1, hidden=8, heads=2, context=4, vocabulary=16)


@cache
def resident(sequence: str) -> Program:
    """A step of a small model with everything on the devices."""
    passes = [name for name in PASSES if name != "overlap"]
    plan = uniform_plan(SMALL, parse_sequence(sequence))
    return lower_step(plan, 2, 4, "update", StepOptions(clip=1.0), passes)


@cache
def limited(sequence: str) -> Program:
    """The same under the least limit."""
    return offload(resident(sequence), least_limit(resident(sequence)))


def random_sizes(random: Random) -> PatrickStar:
    """PatrickStar of some sizes that fit together."""
    hidden = random.randint(1, 3)
    sizes = {
        "layers": random.randint(1, 5), "hidden": hidden, "rows": random.randint(1, 3),
        "ranks": random.choice((1, 2, 2, 3)), "chunk": random.randint(1, 3) * hidden**2,
    }  # fmt: skip
    sizes["chunk"] += random.randint(0, hidden**2 - 1)
    least = PatrickStar(**sizes).least
    return PatrickStar(**sizes, device=least + random.choice((0, 0, 1, least // 2, 10 * least)))


MISPLACED = {"placement", "alignment", "completion"}
"""A block that is not there: alignment in the first step of a phase; a sum begins at zero."""


class Spoilt(NamedTuple):
    """A program with one thing wrong, and the properties of which one then fails."""

    way: str
    program: Program
    fails: set[str]


def spoilt(program: Program) -> Iterator[Spoilt]:
    """Every program with one transfer wrong, or a limit one element below what it needs."""
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if isinstance(node, Fetch):
                yield Spoilt("missing fetch", _with(program, rank, place, []), MISPLACED)
            if isinstance(node, Evict):
                lost = [Free(node.block)]
                yield Spoilt(
                    "evicted block lost",
                    _with(program, rank, place, lost),
                    MISPLACED,
                )
                early = _early(nodes, place, node.block)
                if early is not None:
                    moved = _with(program, rank, place, [])
                    nodes_left = list(moved.programs[rank])
                    nodes_left.insert(early, node)
                    yield Spoilt("early eviction", _listed(moved, rank, nodes_left), MISPLACED)
    less = replace(program, memory=Bound(max(peaks(program)) - 1))
    yield Spoilt("limit of one element less", less, {"memory"})


def _early(nodes: tuple[Instruction, ...], place: int, block: str) -> int | None:
    """The position before the last instruction that uses a block before its eviction."""
    for index in reversed(range(place)):
        node = nodes[index]
        if block in (*getattr(node, "reads", ()), getattr(node, "accumulates", "")):
            return index
        if isinstance(node, Fetch) and node.block == block:
            return None
    return None


def _with(program: Program, rank: int, place: int, instead: Sequence[Instruction]) -> Program:
    nodes = program.programs[rank]
    return _listed(program, rank, [*nodes[:place], *instead, *nodes[place + 1 :]])


def _listed(program: Program, rank: int, nodes: Sequence[Instruction]) -> Program:
    lists = [*program.programs]
    lists[rank] = tuple(nodes)
    return replace(program, programs=tuple(lists))
