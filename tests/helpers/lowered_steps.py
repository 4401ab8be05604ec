"""Programs of training steps and linear operators for tests, each lowered once in a pytest run.

Lowering takes ten times as long as reading what was lowered, and each of four ranks would do it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from primepar import operators
from primepar.operators import Until
from primepar.operators.single_operator import LinearPrograms
from primepar.operators.single_operator import lower_linear as lower_linear_uncached
from primepar.operators.step_options import DEFAULT, StepOptions
from primepar.passes import PASSES
from primepar.plan import Plan
from primepar.schedule import Program, Sequence

lower_uncached = operators.lower_step

SHARED = "PRIMEPAR_TEST_RANKS"
"""Names the folder that the workers of a pytest run, and the ranks that they fork, share."""


CARRIED = "PRIMEPAR_TEST_ANSWERS"
"""Names the folder in which `make gpu` carries answers from one machine to another."""


def shared(asked: bytes, answer: Callable[[], Any], *, carried: bool = False) -> Any:
    """What `answer` returns to the first process of a pytest run that asks this.

    What may be `carried` is kept for other runs of the same code.
    """
    folder = os.environ.get(CARRIED) if carried else None
    folder = folder or os.environ.get(SHARED)
    if folder is None:
        return answer()
    file = Path(folder, sha256(asked).hexdigest())
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            made = answer()
            if isinstance(made, RuntimeError) and folder != os.environ.get(SHARED):
                return made
            file.write_bytes(pickle.dumps(made))
    return pickle.loads(file.read_bytes())


def shared_folder(name: str, fill: Callable[[Path], Any]) -> tuple[Path, Any]:
    """A folder, and what `fill` returned that wrote it: once in a pytest run, for all workers.

    A fixture of a module runs once in every worker that has a test of the module.
    """

    def filled() -> tuple[Path, Any]:
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=os.environ[SHARED]))
        return path, fill(path)

    answer: tuple[Path, Any] = shared(f"folder {name}".encode(), filled)
    return answer


class _Asked:
    """A plan as a key: its sequences are a dict, which has no hash."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.text = plan, msgspec.json.encode(plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=32)
def _lowered(
    asked: _Asked,
    batch: int,
    positions: int,
    until: Until,
    options: StepOptions,
    passes: tuple[str, ...],
) -> Program:
    given = batch, positions, until, options, passes
    program: Program = shared(
        asked.text + repr(given).encode(),
        lambda: lower_uncached(asked.plan, *given),
        carried=True,
    )
    return program


def lower_step(
    plan: Plan,
    batch: int,
    positions: int,
    until: Until = "update",
    options: StepOptions = DEFAULT,
    passes: Iterable[str] = tuple(PASSES),
) -> Program:
    """The program of `primepar.operators.lower_step`, kept for the tests that ask for it again."""
    return _lowered(_Asked(plan), batch, positions, until, options, tuple(passes))


_linears: dict[str, LinearPrograms] = {}


def lower_linear(sequence: Sequence, *given: Any) -> LinearPrograms:
    """The programs of `primepar.operators.single_operator.lower_linear`, kept as well."""
    asked = f"{sequence} {given}"
    if asked not in _linears:
        _linears[asked] = shared(
            asked.encode(), lambda: lower_linear_uncached(sequence, *given), carried=True
        )
    return _linears[asked]
