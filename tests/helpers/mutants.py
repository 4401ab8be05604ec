"""Small programs, right and wrong, made at random from a seed; and a memory to run them on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import numpy as np
from noise import noise
from numpy.typing import NDArray
from phased import phased

from primepar.errors import ProgramError
from primepar.partition import parse_sequence
from primepar.schedule import Program, lower
from primepar.schedule.operators import PHASES, Linear
from primepar.schedule.program_file import check_blocks

Json = dict[str, Any]

SEQUENCES = ("K", "N", "M", "P2x2", "K,N", "N,M", "Ks", "Ns", "S2x2", "M,Ks")


class Ones(dict[str, NDArray[np.float64]]):
    """A memory that holds every block, with one element each."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return np.ones((1, 1))


def mutant(seed: int) -> Program:
    """A lowered program, a step or noise, as `seed` is 0, 1 or 2 modulo 3, with some changes."""
    random, make = Random(seed), (lowered, phased, noise)[seed % 3]
    while True:
        fields = make(random)
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            random.choice(MUTATIONS)(random, fields)
        try:
            program = msgspec.convert(fields, Program)
            check_blocks(program)
        except (msgspec.ValidationError, ProgramError):
            continue
        return program


def lowered(random: Random) -> Json:
    """One or all phases of a sequence."""
    phases = random.choice([PHASES, PHASES, *((phase,) for phase in PHASES)])
    sequence = parse_sequence(random.choice(SEQUENCES))
    operator = Linear.smallest(sequence.grid) if random.random() < 0.5 else None
    program = lower(sequence, operator, phases=phases)
    fields: Json = msgspec.json.decode(msgspec.json.encode(program))
    if random.random() < 0.2:
        fields.pop("initial")
    if random.random() < 0.2:
        fields.pop("final")
    return fields


def _some_rank(random: Random, fields: Json) -> list[Json]:
    filled = [rank for rank in fields["programs"] if rank]
    chosen: list[Json] = random.choice(filled) if filled else []
    return chosen


def _drop(random: Random, fields: Json) -> None:
    rank = _some_rank(random, fields)
    if rank:
        rank.pop(random.randrange(len(rank)))


def _repeat(random: Random, fields: Json) -> None:
    rank = _some_rank(random, fields)
    if rank:
        rank.insert(random.randrange(len(rank)), dict(random.choice(rank)))


def _move(random: Random, fields: Json) -> None:
    rank = _some_rank(random, fields)
    if rank:
        node = rank.pop(random.randrange(len(rank)))
        rank.insert(random.randint(0, len(rank)), node)


def _give_away(random: Random, fields: Json) -> None:
    rank = _some_rank(random, fields)
    if rank:
        node = rank.pop(random.randrange(len(rank)))
        other = random.choice(fields["programs"])
        other.insert(random.randint(0, len(other)), node)


def _change(random: Random, fields: Json) -> None:
    """Another peer, tag, block, root, slice or request somewhere."""
    rank = _some_rank(random, fields)
    if not rank:
        return
    place = random.randrange(len(rank))
    node = rank[place] = dict(rank[place])
    blocks = [other["block"] for other in rank if "block" in other] + ["X"]
    requests = [other["request"] for other in rank if "request" in other] + ["other"]
    key = random.choice([key for key in node if key not in ("op", "phase")] or ["op"])
    if key in ("peer", "root"):
        node[key] = random.randrange(fields["ranks"])
    elif key == "tag":
        node[key] = random.randint(0, 5)
    elif key in ("block", "accumulates"):
        node[key] = random.choice(blocks)
    elif key in ("blocks", "into", "reads", "also"):
        node[key] = _other_blocks(random, key, node[key], blocks)
    elif key == "request":
        node[key] = random.choice(requests)
    elif key == "reduction":
        node[key] = random.choice(("sum", "max", "min"))
    elif key == "sub_operator":
        dim = random.choice(list(node[key]))
        node[key] = {**node[key], dim: random.randint(0, 2)}
    elif key == "group":
        node[key] = random.sample(range(fields["ranks"]), random.randint(1, fields["ranks"]))


def _other_blocks(random: Random, key: str, given: list[str], blocks: list[str]) -> list[str]:
    """Some blocks exchanged for others; of those that a call reduces besides, perhaps one less."""
    names = [random.choice((old, random.choice(blocks))) for old in given]
    return names[1:] if key == "also" and random.random() < 0.5 else names


def _change_ends(random: Random, fields: Json) -> None:
    """Another block in `initial` or `final`, or one fewer."""
    key = random.choice(("initial", "final"))
    lists = [list(blocks) for blocks in fields.get(key, [])]
    filled = [blocks for blocks in lists if blocks]
    if filled:
        blocks, names = random.choice(filled), [name for listed in lists for name in listed]
        place = random.randrange(len(blocks))
        blocks[place : place + 1] = random.choice(([], [random.choice(names)]))
        fields[key] = lists


def _change_amounts(random: Random, fields: Json) -> None:
    """Another bound of memory, or other amounts that are sent, or one that was not stated."""
    amount = random.choice((0, 2, 4, 12, 36, 100))
    if random.random() < 0.65:
        limit = (fields.get("memory") or {}).get("device")
        bound = amount if limit is None else max(0, limit + random.choice((-4, -1, 1, 4)))
        fields["memory"] = {random.choice(("device", "device", "device", "host")): bound}
    elif fields.get("traffic"):
        fields["traffic"] = [*fields["traffic"][1:], amount]
    else:
        fields["traffic"] = [amount] * fields["ranks"]


MUTATIONS: tuple[Callable[[Random, Json], None], ...] = (
    _drop, _drop, _repeat, _move, _move, _give_away, _change, _change, _change, _change_ends,
    _change_amounts, _change_amounts,
)  # fmt: skip
