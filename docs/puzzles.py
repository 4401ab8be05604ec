"""The puzzles of the page that moves: broken schedules, and what one change makes of each.

A schedule that hangs in a cycle, and ends once some lines are moved, is judged by the page itself,
in any order of its lines. Of every other one the changes are tried here and judged by the library.
For example, of a gradient that is divided before its sum is there:

    0: all_reduce grad, posted   0: add mean += 1/2 * grad   0: wait sum

the page knows the orders that moving one line makes, each program without a line, and the repair on
one device, on the other, and on both.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from difflib import SequenceMatcher
from itertools import chain, combinations
from typing import Any

from msgspec.structs import replace

from primepar.api.target import resolve
from primepar.commands.exercise_catalog import exercises
from primepar.preflight.cases import CASES
from primepar.schedule import Program
from primepar.schedule.effects import Post, effects
from primepar.schedule.matching import Matches
from primepar.schedule.program import Collective, Instruction, ISend, Send
from primepar.schedule.program_file import instruction_line
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.schedule.words import ranks_text
from primepar.verify.program import verify_program
from primepar.verify.repair.repair import repair, repair_lines

MOST_LINES = 50
"""Of a program that is a puzzle: what is longer is left to `primepar exercise`."""
MOST_MOVED = 8
"""Lines of a device of which each is moved to every other place."""
Programs = tuple[tuple[Instruction, ...], ...]


def puzzles(names: Container[str] | None = None) -> Iterator[dict[str, Any]]:
    """The broken programs of `primepar exercise`, and the public cases; or those of some names."""
    for exercise in exercises():
        if names is not None and exercise.path.stem not in names:
            continue
        if isinstance(exercise.schedule, Program):
            fixed = resolve(str(exercise.solution))
            assert isinstance(fixed, Program)
            yield from puzzle(exercise.path.stem, exercise.title, exercise.symptom, exercise.hint,
                              exercise.schedule, fixed)  # fmt: skip
    for case in CASES.values():
        if names is not None and case.name not in names:
            continue
        story = f"{' '.join(case.story)} ({', '.join(case.threads)})"
        yield from puzzle(case.name, case.title, story, case.lesson, case.wrong, case.fixed)


def puzzle(
    name: str, title: str, story: str, hint: str, program: Program, fixed: Program
) -> Iterator[dict[str, Any]]:
    """The puzzle of a program, if it is short enough."""
    matches = Matches(program)
    hangs = not matches.faults and cycle_of(WaitGraph(matches)) is not None
    repaired = repair(program) if hangs else None
    about = {"name": name, "title": title, "story": story, "hint": hint}
    if repaired is not None:
        about["hint"] = hint or next(iter(repair_lines(program, repaired)))
        orders = [
            [nodes.index(node) for node in moved]
            for nodes, moved in zip(program.programs, repaired.program.programs, strict=True)
        ]
        lines = [[line(node, rank) for node in nodes]
                 for rank, nodes in enumerate(program.programs)]  # fmt: skip
        yield {**about, "answer": orders, "ranks": lines}
    elif sum(map(len, program.programs)) <= MOST_LINES:
        yield {**about, **judged(program, fixed)}


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
    lines: list[list[str]] = [[] for _ in program.programs]
    boards: dict[str, dict[str, Any]] = {}
    for programs, change in changes(program.programs, fixed.programs):
        orders = [numbered(nodes, lines[rank]) for rank, nodes in enumerate(programs)]
        if str(orders) in boards:
            continue
        report = verify_program(replace(program, programs=programs), "puzzle")
        # Nothing is wrong with work that is not done.
        is_less = report.verdict == "proved" and "without" in change and programs != fixed.programs
        if report.verdict != "unknown" and not is_less:
            boards[str(orders)] = {"orders": orders, "change": change, **verdict(report, orders)}
    answer = [numbered(nodes, lines[rank]) for rank, nodes in enumerate(fixed.programs)]
    return {"ranks": [[{"text": text} for text in texts] for texts in lines],
            "boards": [*boards.values()], "answer": answer}  # fmt: skip


def numbered(nodes: tuple[Instruction, ...], lines: list[str]) -> list[int]:
    """Instructions by their places in the lines of their device, which get those that are new.

    A line that is there twice has two places.
    """
    taken: list[int] = []
    for text in map(instruction_line, nodes):
        free = [line for line, known in enumerate(lines) if known == text and line not in taken]
        if not free:
            lines.append(text)
        taken.append(free[0] if free else len(lines) - 1)
    return taken


def verdict(report: Any, orders: list[list[int]]) -> dict[str, Any]:
    """What the judge finds in a program, in one sentence, and the lines where it is."""
    refuted = next((result for result in report.properties if result.verdict == "refuted"), None)
    if refuted is None:
        names = ", ".join(one.name for one in report.properties if one.verdict == "proved")
        return {"kind": "ends", "text": f"Proved: {names}.", "places": []}
    sentence = (refuted.counterexample or "").partition("\n")[0]
    events = refuted.details.events if refuted.details else ()
    places = [(event.rank, orders[event.rank][event.index]) for event in events
              if event.wrong and event.index is not None]  # fmt: skip
    return {"kind": "refuted", "text": f"{refuted.name} is refuted: {sentence}", "places": places}


def changes(wrong: Programs, fixed: Programs) -> Iterator[tuple[Programs, str]]:
    """The wrong program, and what a change makes of it, with the change in words, "" of moves."""
    yield wrong, ""
    ranks = [rank for rank, nodes in enumerate(wrong) if nodes != fixed[rank]]
    for count in range(1, len(ranks) + 1):
        for some in combinations(ranks, count):
            before, after = (
                chain(*(programs[rank] for rank in some)) for programs in (wrong, fixed)
            )
            moves = sorted(map(instruction_line, before)) == sorted(map(instruction_line, after))
            yield (
                tuple((fixed if rank in some else wrong)[rank] for rank in range(len(wrong))),
                "" if moves else in_words(some, wrong[some[0]], fixed[some[0]]),
            )
    for rank, nodes in enumerate(wrong):
        for place, node in enumerate(nodes):
            rest = nodes[:place] + nodes[place + 1 :]
            there = range(len(nodes)) if len(nodes) <= MOST_MOVED else (place - 1, place + 1)
            for target in there:
                if 0 <= target < len(nodes):
                    yield changed(wrong, rank, (*rest[:target], node, *rest[target:])), ""
            yield changed(wrong, rank, rest), in_words((rank,), nodes, rest)


def changed(programs: Programs, rank: int, nodes: tuple[Instruction, ...]) -> Programs:
    """The programs with other instructions on one device."""
    return (*programs[:rank], nodes, *programs[rank + 1 :])


def in_words(
    ranks: tuple[int, ...], before: tuple[Instruction, ...], after: tuple[Instruction, ...]
) -> str:
    """A change of the lines of some devices, of which the first is described."""
    texts = [list(map(instruction_line, nodes)) for nodes in (before, after)]
    parts = []
    for kind, i, j, k, m in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        old, new = "; ".join(texts[0][i:j]), "; ".join(texts[1][k:m])
        if kind == "replace":
            parts.append(f"{new} for {old}")
        elif kind != "equal":
            parts.append(f"without {old}" if kind == "delete" else f"with {new}")
    return f"device{'s' * (len(ranks) > 1)} {ranks_text(ranks)}: {', '.join(parts)}"
