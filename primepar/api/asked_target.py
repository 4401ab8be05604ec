"""What a caller in Python has at hand, as a target that the questions are asked of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from primepar.api.placement import (
    PYTHON,
    Shape,
    Side,
    Spelling,
    no_shape,
    on_mesh,
    operator_of,
    refused,
)
from primepar.api.resolve_target import Target, primitive_of, resolve, without_lengths
from primepar.api.training_step import TrainingStep
from primepar.errors import TargetError
from primepar.partition import METHODS
from primepar.plan.plan import Plan
from primepar.schedule import Primitive, Program, Sequence, lower
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting


@runtime_checkable
class HasPlan(Protocol):
    """What a search found, and whatever else holds a plan."""

    @property
    def plan(self) -> Plan:
        """The plan."""
        ...


AnyTarget = str | Path | type[Primitive] | type[ProgramMethod] | Nesting | Target | HasPlan
"""A class or an object of a primitive or a method, a sequence, a program, a plan; or its name."""
EveryTarget = Target | Nesting | type[ProgramMethod]
"""A target, or one for every size: a sequence without lengths, a method without sizes."""

OF_A_PLAN = "as a plan has its own sequences"
OF_A_STEP = "which only the training step of a plan has"
OF_A_PROGRAM = "as a program is read as given"
OF_A_METHOD = "as a method has its own sizes"


@dataclass(frozen=True)
class AskedTarget:
    """A target, how messages name it, and how they spell options."""

    name: str
    target: EveryTarget
    spelling: Spelling = PYTHON

    @classmethod
    def of(cls, given: AnyTarget, every_length: bool = False) -> AskedTarget:
        """Resolve a target. Raises `TargetError`, and what reading a file raises.

        With `every_length` text like `K,P` names the sequence for every length of its members, and
        a method without sizes is the one for every size.
        """
        if isinstance(given, str | Path):
            text = str(given)
            return cls(text, (of_every_length(text) if every_length else None) or resolve(text))
        if isinstance(given, type) and issubclass(given, ProgramMethod):
            return cls(given.name or given.__name__, given if every_length else given())
        if isinstance(given, ProgramMethod):
            return cls(given.text, given)
        if isinstance(given, type) and issubclass(given, Primitive):
            return cls(given.__name__, primitive_of(given.__name__, given))
        if isinstance(given, Primitive):
            return cls(type(given).__name__, given)
        if isinstance(given, Sequence):
            return cls(str(given) or "one device", given)
        if isinstance(given, Nesting):
            return cls(",".join(given.names), given)
        if isinstance(given, Program | Plan):
            return cls(type(given).__name__.lower(), given)
        if isinstance(given, HasPlan):
            return cls("plan", given.plan)
        raise TargetError(
            "expected a primitive, a sequence, a program, a plan, or text that names one, like "
            f"'primepar', 'K,P2x2' or 'mine.py:Mine', got {type(given).__name__} {given!r}"
        )

    def on_mesh(self, side: Side | None) -> Sequence | Program:
        """The target on a mesh; it is no plan. Raises `TargetError`."""
        assert not isinstance(self.target, type), "a method for every size has no program"
        if isinstance(self.target, Nesting):
            example = self.target.of((2,) * len(self.target.side_names))
            raise TargetError(
                f"{self.name}: expected a length for each primitive, got none: write them like "
                f"{example}"
            )
        return on_mesh(self.name, self.target, side, self.spelling)

    def program(
        self,
        side: Side | None,
        shape: Shape | None,
        phase: Phase | None,
        batch: int | None,
        positions: int | None,
    ) -> Program:
        """The program of the target, of a plan that of a training step."""
        if isinstance(self.target, Plan):
            self.refuse(OF_A_PLAN, side=side, shape=shape, phase=phase)
            return TrainingStep.of(self.target, batch, positions).program
        self.refuse(OF_A_STEP, batch=batch, positions=positions)
        placed = self.on_mesh(side)
        if isinstance(placed, Sequence):
            operator = None if shape is None else operator_of(shape, self.spelling)
            return lower(placed, operator, phases_of(phase))
        if shape is not None:
            raise no_shape(self.name, shape, self.spelling)
        self.refuse(OF_A_PROGRAM, phase=phase)
        return placed

    def refuse(self, reason: str, **options: object) -> None:
        """Raise `TargetError` if an option is given that does not apply to the target."""
        for option, value in options.items():
            if value is not None:
                raise refused(self.name, reason, option, value, self.spelling)


def of_every_length(text: str) -> Nesting | type[ProgramMethod] | None:
    """The sequence for every length, or the method for every size, that text names; or None."""
    return METHODS.get(text) or without_lengths(text)


def phases_of(phase: Phase | None) -> tuple[Phase, ...]:
    """All phases, or the one that is named. Raises `TargetError` for another name."""
    if phase is not None and phase not in PHASES:
        raise TargetError(f"phase: expected one of {', '.join(PHASES)}, got {phase!r}")
    return PHASES if phase is None else (phase,)
