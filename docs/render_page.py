"""The page that moves, of the whole library, as one file of the site.

Run by `make docs` before mkdocs. Writes docs/schedules.html, which is made anew and not kept in
git. It draws the events of emulated runs, so it takes some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from primepar.api.page_data import library_data
from primepar.commands.exercise_catalog import exercises
from primepar.files import write_text
from primepar.pictures.page_html import page_html
from primepar.preflight.cases import CASES
from primepar.schedule import Program
from primepar.schedule.effects import Post, effects
from primepar.schedule.matching import Matches
from primepar.schedule.program import Collective, ISend, Send
from primepar.schedule.program_file import instruction_line
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.verify.repair.repair import repair, repair_lines

DOCS = Path(__file__).resolve().parent
MOST = 1_000_000
"""Characters of the page; with more, `primepar.api.page_data` packs fewer meshes."""
PAGE, PROVER = DOCS / "schedules.html", DOCS / "prover"


def puzzles() -> Iterator[dict[str, Any]]:
    """Schedules that hang in a cycle, and that end if some lines are moved."""
    for exercise in exercises():
        if isinstance(exercise.schedule, Program):
            yield from puzzle(exercise.path.stem, exercise.title, exercise.symptom, exercise.hint,
                              exercise.schedule)  # fmt: skip
    for case in CASES.values():
        story = f"{' '.join(case.story)} ({', '.join(case.threads)})"
        yield from puzzle(case.name, case.title, story, case.lesson, case.wrong)


def puzzle(
    name: str, title: str, story: str, hint: str, program: Program
) -> Iterator[dict[str, Any]]:
    """The puzzle of a program, if it is one: its lines with what the page's judge asks of them."""
    matches = Matches(program)
    if matches.faults or cycle_of(WaitGraph(matches)) is None:
        return
    repaired = repair(program)
    if repaired is None:
        return
    answer = [
        [nodes.index(node) for node in moved]
        for nodes, moved in zip(program.programs, repaired.program.programs, strict=True)
    ]
    yield {
        "name": name, "title": title, "story": story, "answer": answer,
        "hint": hint or next(iter(repair_lines(program, repaired))),
        "ranks": [[line(node, rank) for node in nodes]
                  for rank, nodes in enumerate(program.programs)],
    }  # fmt: skip


def line(node: Any, rank: int) -> dict[str, Any]:
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


def main() -> None:
    """Write the page."""
    data = library_data()
    data["puzzles"] = list(puzzles())
    if PROVER.exists():
        data["prover"] = PROVER.name
    page = page_html("primepar: schedules that move", data)
    if len(page) > MOST:
        raise SystemExit(f"{PAGE.name}: expected at most {MOST} characters, got {len(page)}")
    write_text(PAGE, page)


if __name__ == "__main__":
    main()
