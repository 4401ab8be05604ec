"""The proof of a program that is about to run, kept by content: the same program is proved once.

A proof is kept as an empty file, named after the program, the code that proves and its version, in
`$XDG_CACHE_HOME/primepar/proofs` (by default `~/.cache/primepar/proofs`). Only what is proved is
kept. Where the folder cannot be written the program is proved every time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from primepar.errors import RefutedError
from primepar.files import digest_of_code
from primepar.schedule import Program

PROVERS = ("schedule", "certify", "verify")
"""Packages that a verdict depends on."""


def prove(program: Program, name: str) -> str:
    """Prove a program, and return how: a line such as `proved in 0.3 s`.

    Raises `RefutedError` for one that is not proved, with the first property that is not.
    """
    kept = _folder() / _key(program)
    if kept.exists():
        return "proved before"
    from primepar.verify import verify_program

    report = verify_program(program, name)
    for result in report.properties:
        if result.verdict == report.verdict != "proved":
            words = (result.counterexample or result.reason or "").splitlines()[0]
            raise RefutedError(
                f"{name}: expected a program that is proved, got {result.name} {result.verdict}: "
                f"{words}; look at it with primepar verify, or add --set checks.verify=false to "
                "run it all the same"
            )
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
    return f"proved in {sum(result.seconds for result in report.properties):.1f} s"


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "primepar" / "proofs"


def _key(program: Program) -> str:
    return sha256(digest_of_code(*PROVERS) + msgspec.json.encode(program)).hexdigest()
