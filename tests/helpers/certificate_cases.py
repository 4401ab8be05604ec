"""Certificates to tamper with: every whole number in one can be changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from primepar.certify.certificate_file import Certificate
from primepar.certify.program import ProgramCertificate
from primepar.commands.exercise_catalog import exercises
from primepar.partition import PRIMITIVES
from primepar.schedule import Program, Sequence, load_program, lower
from primepar.schedule.transport import Transport
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program
from primepar.verify.report import Report

HERE = Path(__file__).resolve().parents[1]
FILES = [
    *sorted(HERE.glob("wrong/*.json")),
    *sorted(HERE.glob("fixed/*.json")),
    *(path for path in sorted((HERE.parent / "docs" / "examples").glob("*.json"))
      if path.name != "config.json"),
    *(exercise.path for exercise in exercises() if exercise.path.suffix == ".json"),
]  # fmt: skip


@cache
def lowered(name: str) -> Program:
    """A registered primitive on sides of 2."""
    primitive = PRIMITIVES[name]()
    return lower(Sequence.of(primitive, *(2,) * len(primitive.side_names)))


@cache
def program(name: str) -> Program:
    """A lowered primitive, or a program file."""
    return lowered(name) if name in PRIMITIVES else load_program(Path(name))


@cache
def proved(name: str, buffered: bool = False) -> tuple[Report, ProgramCertificate]:
    """The report of a program and its certificate."""
    report = verify_program(program(name), name, buffered)
    return report, certificate(program(name), report, Transport(None if buffered else 0))


def numbers(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all whole numbers of a JSON value."""
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from numbers(value, (*path, key))
    elif isinstance(tree, int) and not isinstance(tree, bool) and path != ("version",):
        yield path


def altered(given: Certificate, random: Random) -> tuple[tuple[Any, ...], Certificate]:
    """A certificate with one number changed, and the way to it."""
    tree = msgspec.json.decode(msgspec.json.encode(given))
    way = random.choice(list(numbers(tree)))
    inner = tree
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] += random.choice((-2, -1, 1, 2, 7))
    changed: Certificate = msgspec.convert(tree, type=Certificate)
    return way, changed
