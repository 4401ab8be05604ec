"""Public cases: small programs of our own that show published bugs, each wrong and fixed.

`public_cases.txt` has them. A program there is one text for both: lines that begin with - are those
of the wrong one alone, lines with + those of the fixed one. For example a mean that must be a sum:

    === norm-averaged: completion
    thread EleutherAI/gpt-neox#1259

    The gradient of a norm is averaged over tensor-parallel ranks instead of summed.
    ...
      rank
    - {"op": "all_reduce", "group": [0, 1], "block": "norm.grad[0]", "scale": "1/2"}
    + {"op": "all_reduce", "group": [0, 1], "block": "norm.grad[0]"}
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from primepar.errors import TargetError, nearest
from primepar.schedule.program import AllReduce, Program

PREFIX, FIXED = "case:", ":fixed"


class PublicCase(Struct, frozen=True, dict=True):
    """A published bug as a program of our own, wrong and fixed."""

    name: str
    group: str
    """What goes wrong in the cases of its kind, `Cases of buffers: written while they are sent`."""
    refuted: str
    """The property that the prover refutes of the wrong program."""
    threads: tuple[str, ...]
    """Where it was reported: `owner/repository#number`, or `owner/repository:file`."""
    title: str
    """What goes wrong, in one line."""
    story: tuple[str, ...]
    """What happened, and how the program shows it, in paragraphs."""
    lesson: str
    """What to learn from it, in two sentences."""
    lines: tuple[str, ...]
    """The text of both programs."""

    @cached_property
    def wrong(self) -> Program:
        """The program with the bug."""
        return _program(self.lines, "-")

    @cached_property
    def fixed(self) -> Program:
        """The program without it."""
        return _program(self.lines, "+")


def _program(lines: tuple[str, ...], sign: str) -> Program:
    """The program of the lines that have a sign, or none."""
    fields: dict[str, Any] = {}
    programs: list[list[Any]] = []
    for text in (line[2:] for line in lines if line[0] in (" ", sign)):
        if text == "rank":
            programs.append([])
        elif programs:
            programs[-1].append(json.loads(text))
        else:
            fields |= json.loads(text)
    if "lowered" in fields:
        return _lowered(**fields, fixed=sign == "+")
    head = {"format": "primepar-program", "version": 1, "ranks": len(programs)}
    return msgspec.convert(head | fields | {"programs": programs}, Program)


def _lowered(lowered: str, sides: list[int], without: str, fixed: bool) -> Program:
    """The program of a method of the library; the wrong one lacks the sums of one kind of block."""
    from primepar.partition.registry import PRIMITIVES
    from primepar.schedule import Sequence, lower

    whole = lower(Sequence.of(PRIMITIVES[lowered](), *sides))
    kept = (
        tuple(
            node for node in nodes
            if fixed or not (isinstance(node, AllReduce) and node.block.startswith(without))
        )
        for nodes in whole.programs
    )  # fmt: skip
    return msgspec.structs.replace(whole, programs=tuple(kept))


def _cases() -> dict[str, PublicCase]:
    text = (Path(__file__).parent / "public_cases.txt").read_text(encoding="utf-8")
    cases: dict[str, PublicCase] = {}
    _, *groups = text.split("\n### ")
    for group in groups:
        heading, *sections = group.split("\n=== ")
        for section in sections:
            (first, *threads), *prose, lines = (
                part.strip("\n").split("\n") for part in section.rstrip("\n").split("\n\n")
            )
            name, refuted = first.split(": ")
            title, *story, lesson = map(" ".join, prose)
            cases[name] = PublicCase(
                name, heading.strip(), refuted,
                tuple(line.removeprefix("thread ") for line in threads),
                title.removesuffix("."), tuple(story), lesson, tuple(lines),
            )  # fmt: skip
    return cases


CASES = _cases()
"""Name -> case, grouped by what goes wrong."""


def case_program(target: str) -> Program:
    """The program of `case:NAME`, which is wrong, or of `case:NAME:fixed`.

    Raises `TargetError` if there is no such case.
    """
    name = target.removeprefix(PREFIX).removesuffix(FIXED)
    case = CASES.get(name)
    if case is None:
        near = nearest(name, CASES).removeprefix(": write ")
        fix = f"write {PREFIX}{near}" if near else "primepar list --cases prints them"
        raise TargetError(f"{target}: expected case:NAME of a public case, got {name!r}: {fix}")
    return case.fixed if target.endswith(FIXED) else case.wrong
