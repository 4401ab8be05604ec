"""The page of public cases, made from the cases themselves.

Run by `make docs` before mkdocs. Titles, stories and lessons are those of the cases; the
reports and pictures are what the prover finds. Writes docs/cases/, which is made anew and is not
kept in git.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import fill

from primepar.pictures.counterexample import CounterexamplePanel, counterexample_svg
from primepar.preflight.cases import CASES, FIXED, PREFIX, PublicCase
from primepar.verify import verify_program
from primepar.verify.repair.repair import repair, repair_lines

PAGES = Path(__file__).resolve().parent / "cases"
HEAD = f"""---
description: >-
  Published bugs of distributed training as small programs, wrong and fixed, each with its proof.
---

# Public cases

Each case shows one published bug by a small program of our own, wrong and fixed. Both programs are
one text and differ in one place. The wrong one is refuted by the named property, and
the fixed one is proved. The explorer agrees on both, and emulated devices compute right numbers
with the fixed one alone. Only the case of traffic has right numbers in both.

We have read what each thread reports, not every comment below it, and run none of its code. A
program has the structure of the bug and nothing else of its framework. Where it differs from the
thread, its text states so.

```console
$ primepar list --cases
$ primepar verify {PREFIX}norm-averaged  # exit 1
$ primepar verify {PREFIX}norm-averaged{FIXED}
```

`verify`, `check`, `explore`, `show` and `simulate` take `{PREFIX}NAME` and `{PREFIX}NAME{FIXED}`.
"""
OUT_OF_REACH = (
    ("pytorch/PiPPy#969", "A batch of messages to two stages hangs, though all calls match.",
     "Here the messages of a group make progress by themselves, so this program is proved. "
     "Do not rely on it: NCCL gives no such promise (NVIDIA/nccl#1279)."),
    ("NVIDIA/Megatron-LM#1464", "Gradients of attention differ under context parallelism.",
     "The report names wrong values, and no cause that a program could show."),
    ("NVIDIA/Megatron-LM#5240", "Communicators made at first use are entered in different orders.",
     "The creation of a communicator is no instruction."),
    ("NVIDIA/nccl#2385", "The library hangs while it starts on nodes of unequal size.",
     "It happens before the first instruction."),
    ("tenstorrent/tt-metal#50272", "The note of arrival takes another route than the data.",
     "Routes of one message are below the level of a program."),
    ("fla-org/flash-linear-attention#1115", "A kernel reads its gate without an offset.",
     "What a kernel does inside its blocks is not part of a program."),
)  # fmt: skip
"""Thread, what goes wrong, and why no program shows it."""


def main() -> None:
    """Write the page and the pictures of all counterexamples."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    (PAGES / "index.md").write_text("\n".join(page(PAGES)) + "\n", encoding="utf-8")


def page(folder: Path) -> Iterator[str]:
    """The lines of the page; the pictures are drawn into `folder`."""
    yield HEAD
    yield "| case | what goes wrong | refuted |"
    yield "|---|---|---|"
    for name, case in CASES.items():
        yield f"| [`{name}`](#{name}) | {case.title} | {case.refuted} |"
    for group, cases in groupby(CASES.values(), key=lambda case: case.group):
        heading, _, detail = group.partition(": ")
        yield f"\n## {heading}\n\n{detail[:1].upper()}{detail[1:]}\n"
        for case in cases:
            yield from section(case, folder)
    yield "\n## Out of reach\n"
    yield "What we looked at and cannot show as a program:\n"
    yield "| thread | what goes wrong | why it is no case |"
    yield "|---|---|---|"
    yield from (f"| {link(thread)} | {what} | {why} |" for thread, what, why in OUT_OF_REACH)


def section(case: PublicCase, folder: Path) -> Iterator[str]:
    """One case: its story, its lesson, the report of the wrong program, and its picture."""
    report = verify_program(case.wrong, PREFIX + case.name)
    result = report[case.refuted]
    if result.counterexample is None or result.details is None:
        raise SystemExit(f"{case.name}: expected {case.refuted} refuted, got {result.verdict}")
    yield f"### {case.title} {{ #{case.name} }}\n"
    yield from (f"{fill(paragraph, 100)}\n" for paragraph in case.story)
    yield f'!!! tip "Lesson"\n    {case.lesson}\n'
    yield f"Thread: {', '.join(map(link, case.threads))}. Refuted: {case.refuted}.\n"
    yield f"```text\n{report}\n```\n"
    yield from repaired(case)
    panel = CounterexamplePanel(result.name, result.counterexample, result.details)
    picture = counterexample_svg(f"{report.target}: refuted", [panel])
    (folder / f"{case.name}.svg").write_text(picture, encoding="utf-8")
    yield f"![{case.title}]({case.name}.svg){{ .schedule }}\n"


def repaired(case: PublicCase) -> Iterator[str]:
    """The smallest reordering that makes the program pass, where there is one."""
    repair_of_case = repair(case.wrong) if case.refuted == "deadlock-freedom" else None
    if repair_of_case is not None:
        moves = "\n".join(repair_lines(case.wrong, repair_of_case))
        yield f"The smallest reordering that makes it pass:\n\n```text\n{moves}\n```\n"


def link(thread: str) -> str:
    """The thread as a link. GitHub redirects the number of a pull request to its page."""
    repository, number = thread.split("#") if "#" in thread else ("", "")
    path = f"{repository}/issues/{number}"
    if not number:
        repository, _, file = thread.partition(":")
        path = f"{repository}/blob/main/{file}"
    return f"[{thread}](https://github.com/{path})"


if __name__ == "__main__":
    main()
