"""How a public case is written: one definition of a small program, wrong and fixed.

A case is a function of whether the bug is fixed. Its docstring is what readers see: the first line
is the title, the paragraphs after it are what happened, the last one is the lesson.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cached_property

from msgspec import Struct

from primepar.schedule import Program
from primepar.schedule.program import Compute, Instruction
from primepar.schedule.signature import Bound, Coefficient, Reduction, Signature, Tensor

Build = Callable[[bool], Program]
Lists = Iterable[Iterable[Instruction]]
Blocks = Iterable[Iterable[str]]


class PublicCase(Struct, frozen=True, dict=True):
    """A published bug as a program of our own, wrong and fixed."""

    name: str
    threads: tuple[str, ...]
    """Where it was reported: `owner/repository#number`, or `owner/repository:file`."""
    refuted: str
    """The property that the prover refutes of the wrong program."""
    build: Build
    """Builds the fixed program if its argument is true, else the wrong one."""

    @cached_property
    def wrong(self) -> Program:
        """The program with the bug."""
        return self.build(False)

    @cached_property
    def fixed(self) -> Program:
        """The program without it: the same definition, with one difference."""
        return self.build(True)

    @property
    def title(self) -> str:
        """What goes wrong, in one line."""
        return self._paragraphs[0].removesuffix(".")

    @property
    def story(self) -> tuple[str, ...]:
        """What happened, and how the program shows it, in paragraphs."""
        return self._paragraphs[1:-1]

    @property
    def lesson(self) -> str:
        """What to learn from it, in two sentences."""
        return self._paragraphs[-1]

    @cached_property
    def _paragraphs(self) -> tuple[str, ...]:
        text = inspect.getdoc(self.build) or ""
        return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


CASES: dict[str, PublicCase] = {}
"""Name -> case, grouped by what goes wrong: `cases` imports the file of each group."""
PAIR = (0, 1)


def public_case(refuted: str, *threads: str) -> Callable[[Build], Build]:
    """Add the case of a function; its name is that of the function."""

    def add(build: Build) -> Build:
        name = build.__name__.replace("_", "-")
        CASES[name] = PublicCase(name, threads, refuted, build)
        return build

    return add


class PhaseOf(Struct, frozen=True):
    """A phase of a case: its signature and its grid. A call makes a compute of it."""

    name: str
    signature: Signature
    slices: dict[str, int]

    def __call__(
        self, scale: Coefficient = "1", again: bool = False, **sub_operator: int
    ) -> Compute:
        """The compute of one sub-operator; it reads the blocks of the signature, in order."""
        *reads, writes = (template.block(sub_operator) for template in self.signature.templates)
        return Compute(tuple(reads), writes, self.name, sub_operator, scale, again)


def phase(
    name: str,
    signature: str,
    reduction: Reduction = "sum",
    scale: Coefficient = "1",
    **slices: int,
) -> PhaseOf:
    """Make a phase of `"x[M] dy[M] -> dw[0]"`: what it reads, and the block that it adds to."""
    reads, _, writes = signature.partition(" -> ")
    return PhaseOf(name, Signature(tuple(reads.split()), writes, reduction, None, scale), slices)


def program(
    lists: Lists,
    phases: Iterable[PhaseOf] = (),
    initial: Blocks | None = None,
    final: Blocks | None = None,
    sizes: dict[str, Tensor] | None = None,
    memory: int | None = None,
    traffic: int | None = None,
) -> Program:
    """Make the program of these lists, one for each rank.

    `memory` bounds the elements that a rank holds, `traffic` is what each sends.
    """
    programs = tuple(map(tuple, lists))
    phases = tuple(phases)
    return Program(
        "primepar-program",
        1,
        len(programs),
        programs,
        grid={work.name: work.slices for work in phases} or None,
        initial=_blocks(initial),
        final=_blocks(final),
        phases={work.name: work.signature for work in phases} or None,
        tensors=sizes,
        memory=None if memory is None else Bound(device=memory),
        traffic=None if traffic is None else (traffic,) * len(programs),
    )


def _blocks(lists: Blocks | None) -> tuple[tuple[str, ...], ...] | None:
    return None if lists is None else tuple(map(tuple, lists))
