"""Small programs, right and wrong, made at random from a seed; and a memory to run them on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from primepar.partition import parse_sequence
from primepar.schedule import Program, lower
from primepar.schedule.operators import PHASES

Json = dict[str, Any]

SEQUENCES = ("K", "N", "M", "P2x2", "K,N", "N,M", "Ks", "Ns", "S2x2", "M,Ks")


class Ones(dict[str, NDArray[np.float64]]):
    """A memory in which every block lies, with one element."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return np.ones((1, 1))


def mutant(seed: int) -> Program:
    """A lowered program with one to three random changes, or a random program."""
    random = Random(seed)
    while True:
        fields = random_program(random) if seed % 3 == 0 else lowered(random)
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            random.choice(MUTATIONS)(random, fields)
        try:
            return msgspec.convert(fields, Program)
        except msgspec.ValidationError:
            continue


def lowered(random: Random) -> Json:
    """One or all phases of a sequence."""
    phases = random.choice([PHASES, *((phase,) for phase in PHASES)])
    program = lower(parse_sequence(random.choice(SEQUENCES)), phases=phases)
    fields: Json = msgspec.json.decode(msgspec.json.encode(program))
    if random.random() < 0.2:
        fields.pop("initial")
    if random.random() < 0.2:
        fields.pop("final")
    return fields


def random_program(random: Random) -> Json:
    """Messages, collectives and sums between two or three ranks, mostly with partners."""
    ranks = random.choice((2, 3))
    programs: list[list[Json]] = [[] for _ in range(ranks)]
    for number in range(random.randint(1, 6)):
        random.choice((_message, _message, _exchange, _collective, _local))(
            random, programs, str(number)
        )
    fields: Json = {"format": "primepar-program", "version": 1, "ranks": ranks}
    fields["programs"] = programs
    if random.random() < 0.3:
        fields["initial"] = [["X", "Y", "I[0]"]] * ranks
    if random.random() < 0.3:
        fields["final"] = [[random.choice(("X", "Y", "I[0]"))] for _ in range(ranks)]
    return fields


def _block(random: Random) -> str:
    return random.choice(("X", "Y", "I[0]", "I[1]"))


def _message(random: Random, programs: list[list[Json]], number: str) -> None:
    source, target = random.sample(range(len(programs)), 2)
    for rank, peer, op in ((source, target, "send"), (target, source, "recv")):
        block = _block(random)
        if random.random() < 0.6:
            programs[rank].append({"op": f"i{op}", "peer": peer, "block": block, "request": number})
            late = random.randint(len(programs[rank]), len(programs[rank]) + 2)
            programs[rank].insert(late, {"op": "wait", "request": number})
        else:
            programs[rank].append({"op": op, "peer": peer, "block": block})


def _exchange(random: Random, programs: list[list[Json]], number: str) -> None:
    one, other = random.sample(range(len(programs)), 2)
    for rank, peer in ((one, other), (other, one)):
        body = [
            {"op": "send", "peer": peer, "block": _block(random)},
            {"op": "recv", "peer": peer, "block": _block(random)},
        ]
        programs[rank].append({"op": "group", "body": body})


def _collective(random: Random, programs: list[list[Json]], number: str) -> None:
    group = random.sample(range(len(programs)), random.randint(1, len(programs)))
    op = random.choice(
        ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
         "barrier")
    )  # fmt: skip
    node: Json = {"op": op, "group": group}
    if op in ("reduce", "broadcast"):
        node["root"] = random.choice(group)
    if op in ("all_reduce", "reduce", "reduce_scatter"):
        node["reduction"] = random.choice(("sum", "sum", "max"))
    posted = random.random() < 0.4
    for rank in group:
        own = dict(node)
        if op != "barrier" and op != "all_to_all":
            own["block"] = _block(random)
        if op in ("all_gather", "reduce_scatter", "all_to_all"):
            own["blocks"] = [_block(random) for _ in group]
        if op == "all_to_all":
            own["into"] = [_block(random) for _ in group]
        programs[rank].append(own)
        if posted:
            own["request"] = number
            late = random.randint(len(programs[rank]), len(programs[rank]) + 2)
            programs[rank].insert(late, {"op": "wait", "request": number})


def _local(random: Random, programs: list[list[Json]], number: str) -> None:
    op = random.choice(("compute", "alloc", "free", "evict", "fetch"))
    node: Json = {"op": op, "block": _block(random)}
    if op == "compute":
        node = {"op": op, "reads": [_block(random)], "accumulates": _block(random)}
    random.choice(programs).append(node)


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
    elif key in ("blocks", "into", "reads"):
        node[key] = [random.choice((old, random.choice(blocks))) for old in node[key]]
    elif key == "request":
        node[key] = random.choice(requests)
    elif key == "reduction":
        node[key] = random.choice(("sum", "max", "min"))
    elif key == "sub_operator":
        dim = random.choice(list(node[key]))
        node[key] = {**node[key], dim: random.randint(0, 2)}
    elif key == "group":
        node[key] = random.sample(range(fields["ranks"]), random.randint(1, fields["ranks"]))


def _change_ends(random: Random, fields: Json) -> None:
    """Another block in `initial` or `final`, or one fewer."""
    key = random.choice(("initial", "final"))
    lists = [list(blocks) for blocks in fields.get(key, [])]
    filled = [blocks for blocks in lists if blocks]
    if filled:
        blocks, names = random.choice(filled), [name for own in lists for name in own]
        place = random.randrange(len(blocks))
        blocks[place : place + 1] = random.choice(([], [random.choice(names)]))
        fields[key] = lists


MUTATIONS: tuple[Callable[[Random, Json], None], ...] = (
    _drop, _drop, _repeat, _move, _move, _give_away, _change, _change, _change, _change_ends,
)  # fmt: skip
