"""The puzzles of the page that moves: broken schedules, and what one change makes of each.

A schedule that hangs in a cycle, and ends once some lines are moved, is judged by the page itself,
in any order of its lines. Of every other one the changes are tried here and judged by the library.
For example, of a gradient that is divided before its sum is there:

    0: all_reduce grad, posted   0: add mean += 1/2 * grad   0: wait sum

the page knows the orders that moving one line makes, each program without a line, and the repair on
one device, on the other, and on both. What else a reader makes of the lines is judged by the
library in the page (`primepar.verify.program.judgement`), where a server has it. A map is edited.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain, combinations
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from primepar.api.page_data import map_data
from primepar.api.target import resolve
from primepar.commands.exercise_catalog import PRIMITIVE, exercises
from primepar.preflight.cases import CASES
from primepar.schedule import Primitive, Program
from primepar.schedule.effects import Post, effects
from primepar.schedule.matching import Matches
from primepar.schedule.program import Collective, Instruction, ISend, Send
from primepar.schedule.program_file import instruction_line
from primepar.schedule.tracing import map_equations
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.verify.program import judgement
from primepar.verify.repair.repair import repair

MOST_LINES = 70
"""Of a program whose changes are tried."""
MOST_MOVED = 8
"""Lines of a device of which each is moved to every other place."""
Programs = tuple[tuple[Instruction, ...], ...]


def puzzles(names: Container[str] | None = None) -> Iterator[dict[str, Any]]:
    """The broken schedules of `primepar exercise`, and the public cases; or those of some names."""
    for one in exercises():
        about = {"name": one.path.stem, "title": one.title, "story": one.symptom, "hint": one.hint}
        if one.schedule is None or (names is not None and about["name"] not in names):
            continue
        fixed = resolve(str(one.solution) + f":{PRIMITIVE}" * (one.path.suffix == ".py"))
        if isinstance(one.schedule, Program) and isinstance(fixed, Program):
            yield {**about, **puzzle(one.schedule, fixed)}
        elif isinstance(one.schedule, Primitive) and isinstance(fixed, Primitive):
            maps = map_equations(one.schedule).items() ^ map_equations(fixed).items()
            lines = [f"{phase}: {text}" for phase, text in map_equations(fixed).items()
                     if (phase, text) in maps]  # fmt: skip
            yield {**about, "map": map_data(about["name"], one.schedule, runs=False),
                   "repaired": "; ".join(lines), "ranks": [], "answer": []}  # fmt: skip
    for case in CASES.values():
        if names is None or case.name in names:
            story = f"{' '.join(case.story)} ({', '.join(case.threads)})"
            about = {"name": case.name, "title": case.title, "story": story, "hint": case.lesson}
            yield {**about, **puzzle(case.wrong, case.fixed)}


def puzzle(program: Program, fixed: Program) -> dict[str, Any]:
    """The lines of a program; how its waits are ordered, or the boards that were judged."""
    matches = Matches(program)
    hangs = not matches.faults and cycle_of(WaitGraph(matches)) is not None
    repaired = repair(program) if hangs else None
    if repaired is None:
        return judged(program, fixed)
    orders = [
        [nodes.index(node) for node in moved]
        for nodes, moved in zip(program.programs, repaired.program.programs, strict=True)
    ]
    lines = [[line(node, rank) for node in nodes] for rank, nodes in enumerate(program.programs)]
    return {"answer": orders, "ranks": lines}


def line(node: Instruction, rank: int) -> dict[str, Any]:
    """One instruction: its text, and what it starts, awaits, reads and writes."""
    of = effects(node, rank)
    return {
        "text": instruction_line(node), "posts": [end(post, rank) for post in of.posts],
        "request": of.request, "awaits": of.awaits, "reads": of.reads,
        "writes": (*of.writes, *of.frees),
    }  # fmt: skip


def end(post: Post, rank: int) -> tuple[str, str]:
    """One end of a message, or a call, and the channel or the group where it takes its turn."""
    if isinstance(post, Collective):
        members = ",".join(map(str, sorted(post.group)))
        return "call", f"{{{members}}} {post.communicator}"
    sends = isinstance(post, Send | ISend)
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return "send" if sends else "recv", f"{ends[0]}>{ends[1]} {post.communicator}"


def judged(program: Program, fixed: Program) -> dict[str, Any]:
    """The lines of every device, and the programs of them that were judged, the wrong one first."""
    lines: list[list[Instruction]] = [[] for _ in program.programs]
    boards: dict[str, dict[str, Any]] = {}
    for programs in changes(program.programs, fixed.programs):
        orders = [numbered(nodes, lines[rank]) for rank, nodes in enumerate(programs)]
        if str(orders) in boards:
            continue
        known = judgement(replace(program, programs=programs))
        if known["kind"] != "open":
            boards[str(orders)] = {"orders": orders, **known}
    answer = [numbered(nodes, lines[rank]) for rank, nodes in enumerate(fixed.programs)]
    ranks = [[{"text": instruction_line(node), "node": node} for node in of] for of in lines]
    return {"ranks": to_builtins(ranks), "boards": [*boards.values()], "answer": answer,
            "program": {key: value for key, value in to_builtins(program).items()
                        if key != "programs"}}  # fmt: skip


def numbered(nodes: tuple[Instruction, ...], lines: list[Instruction]) -> list[int]:
    """Instructions by their places in the lines of their device, which get those that are new.

    A line that is there twice has two places.
    """
    taken: list[int] = []
    for node in nodes:
        free = [line for line, known in enumerate(lines) if known == node and line not in taken]
        if not free:
            lines.append(node)
        taken.append(free[0] if free else len(lines) - 1)
    return taken


def changes(wrong: Programs, fixed: Programs) -> Iterator[Programs]:
    """The wrong program, the repair on some devices, and what one line that goes elsewhere makes.

    Of a long program that is too much: then the repair on all devices alone.
    """
    yield wrong
    yield fixed
    if sum(map(len, wrong)) > MOST_LINES:
        return
    ranks = [rank for rank, nodes in enumerate(wrong) if nodes != fixed[rank]]
    for some in chain(*(combinations(ranks, count) for count in range(1, len(ranks)))):
        yield tuple((fixed if rank in some else wrong)[rank] for rank in range(len(wrong)))
    for rank, nodes in enumerate(wrong):
        for place, node in enumerate(nodes):
            rest = nodes[:place] + nodes[place + 1 :]
            there = range(len(nodes)) if len(nodes) <= MOST_MOVED else (place - 1, place + 1)
            moved = [(*rest[:target], node, *rest[target:]) for target in there
                     if 0 <= target < len(nodes)]  # fmt: skip
            for now in (*moved, rest):
                yield (*wrong[:rank], now, *wrong[rank + 1 :])
