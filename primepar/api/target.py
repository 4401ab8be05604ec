"""What a question is asked about: text or an object, resolved once, then put on a mesh.

    text -> resolve -> Target: a primitive, a sequence, a method, a program or a plan
    anything a caller has at hand -> AskedTarget.of -> on_mesh, program

The command line and Python ask the same, and spell options in their own way: `--side 2`, `side=2`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Protocol, runtime_checkable

from primepar.errors import SequenceError, ShapeError, TargetError, nearest
from primepar.models.config import ModelConfig
from primepar.models.sizes import find_model
from primepar.operators import lower_step
from primepar.partition import METHODS, PRIMITIVES, parse_method, parse_sequence
from primepar.partition.primitive_file import load_primitive as load_primitive
from primepar.partition.primitive_file import primitive_of as primitive_of
from primepar.partition.registry import labelled
from primepar.plan.plan import Plan, is_plan, load_plan
from primepar.plan.presets import PRESETS, names_preset, preset_plan
from primepar.schedule import Linear, Primitive, Program, Sequence, load_program, lower
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting

_TOKEN = re.compile(r"[A-Z][a-z]?\d*(x\d+)*$|\w+\d+[xX;+ ]")
"""What looks like a primitive of a sequence, maybe misspelt."""
MOST_DEVICES = 4096
"""Largest mesh that is unrolled device by device."""
SEQUENCES = 8
"""Sequences of a step where neither the plan nor the caller states them."""
Side = int | str | tuple[int, ...]
"""Length of a mesh's side; one for each side where there are several: `(2, 3)` or `"2,3"`."""
Shape = Linear | str | tuple[int, ...]
"""Elements of an operator's dims: `(M, N, K)`, `(B, M, N, K)`, or the same as text."""
Target = Primitive | Sequence | ProgramMethod | Program | Plan
EveryTarget = Target | Nesting | type[ProgramMethod]
"""A target, or one for every size: a sequence without lengths, a method without sizes."""

OF_A_PLAN = "as a plan has its own sequences"
OF_A_STEP = "which only the training step of a plan has"
OF_A_PROGRAM = "as a program is read as given"
OF_A_METHOD = "as a method has its own sizes"


def resolve(text: str) -> Target:
    """Find what `text` names: a registered name, `file.py:Class`, a `.json` file or `K,P2x2`.

    `case:NAME` is the program of a public case, `case:NAME:fixed` the fixed one.
    The name of a method can have sizes, `gpipe:stages=4`. A file whose `format` is that of plans is
    one, any other a program. Raises `TargetError`, `PrimitiveError`, `MethodError`, `ProgramError`
    or `PlanError`.
    """
    if text in PRIMITIVES:
        return PRIMITIVES[text]()
    if text.startswith("case:"):
        from primepar.preflight.cases import case_program

        return case_program(text)
    if text.endswith(".json"):
        path = Path(text)
        return load_plan(path) if is_plan(path) else load_program(path)
    if ".py" in text:
        return _of_file(text)
    if names_preset(text):
        raise TargetError(
            f"{text}: expected a model and a number of devices for a preset plan, got neither: "
            f"write {text} --model config.json --devices 4, to show it or to verify it"
        )
    method = parse_method(text)
    if method is not None:
        return method
    if Path(text).is_dir() and text:
        raise TargetError(
            f"{text}: expected a file, got a directory: write file.py:Class, or the name of a file "
            "in it that ends with .json"
        )
    try:
        return parse_sequence(text)
    except SequenceError as error:
        raise _unknown(text, error) from None


def _of_file(text: str) -> Primitive | Sequence:
    """The primitive of `file.py:Class`, or the sequence of `M2,file.py:Class2x2`."""
    try:
        return load_primitive(text)
    except TargetError:
        try:
            return parse_sequence(text)
        except (SequenceError, TargetError):
            pass
        raise


def _unknown(text: str, error: SequenceError) -> TargetError:
    """The error for a text that names nothing: what it is near to, or what is wrong with it."""
    module, _, name = re.sub(r"[:.]+", ":", text).rpartition(":")
    for stem, kind in ((module, f":{name}"), (text, "")):
        if stem and Path(f"{stem}.py").is_file():
            return TargetError(f"{text}: expected file.py:Class, got no .py: write {stem}.py{kind}")
    known = {known.lower(): known for known in (*PRIMITIVES, *METHODS, *PRESETS)}
    near = known.get(text.lower(), "") or (
        "" if ": write" in str(error) else nearest(text, known.values()).removeprefix(": write ")
    )
    if near:
        return TargetError(f"expected the name of a primitive, got {text!r}: write {near}")
    if any(_TOKEN.match(token.strip()) for token in text.split(",")):
        return TargetError(str(error))
    return TargetError(
        "expected the name of a primitive, file.py:Class, program.json, or a sequence like K,P2x2, "
        f"got {text!r}: primepar list prints the names"
    )


def without_lengths(text: str) -> Nesting | None:
    """The sequence for every length that `text` names, like `M,P`; None if it names another target.

    Its members are labels without lengths, registered names and `file.py:Class`. Raises what
    `load_primitive` does.
    """
    tokens, file = [token.strip() for token in text.split(",")], text.partition(":")[0]
    alone = len(tokens) == 1 and (text in PRIMITIVES or ".py" in text)
    if alone or tokens[-1].partition(":")[0] in PRESETS or ("," in file and Path(file).is_file()):
        return None
    if not all(".py" in token or labelled(token) for token in tokens):
        return None
    members = (labelled(token) or load_primitive(token) for token in tokens)
    return Nesting(tuple(members), tuple(tokens))


@dataclass(frozen=True)
class Spelling:
    """How messages write an option and its value: `--side 2,3`, or `side=(2, 3)`."""

    command_line: bool

    def name(self, option: str) -> str:
        """The option alone, `--side` or `side`."""
        return f"--{option}" if self.command_line else option

    def given(self, option: str, value: object) -> str:
        """The option with a value; on the command line a flag is alone."""
        if not self.command_line:
            return f"{option}={value!r}"
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return self.name(option) if value is True else f"{self.name(option)} {text}"


COMMAND_LINE, PYTHON = Spelling(command_line=True), Spelling(command_line=False)


@dataclass(frozen=True)
class TrainingStep:
    """One training step of a plan."""

    plan: Plan
    batch: int
    positions: int

    @classmethod
    def of(cls, plan: Plan, batch: int | None = None, positions: int | None = None) -> TrainingStep:
        """The step of these sizes: by default of the plan's batch, or of the smallest that fits.

        `batch` counts sequences and `positions` tokens of each, by default the model's context.
        """
        positions = positions or plan.model.context
        return cls(plan, batch or plan.batch or plan.row_cuts.smallest_batch(positions), positions)

    def __str__(self) -> str:
        sequences = f"{self.batch} sequence{'s' * (self.batch != 1)}"
        return f"a step of {sequences} of {self.positions} token{'s' * (self.positions != 1)}"

    @property
    def program(self) -> Program:
        """Its program. Raises `PlanError` for sizes that do not fit."""
        return lower_step(self.plan, self.batch, self.positions)


@runtime_checkable
class HasPlan(Protocol):
    """What a search found, and whatever else holds a plan."""

    @property
    def plan(self) -> Plan:
        """The plan."""
        ...


AnyTarget = str | Path | type[Primitive] | type[ProgramMethod] | Nesting | Target | HasPlan
"""A class or an object of a primitive or a method, a sequence, a program, a plan; or its name."""


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
        """Put a primitive on a mesh; a sequence or a program is as it is, a method its program.

        Raises `TargetError` if the side is missing, is no length, or does not apply, and for a
        plan or a sequence without lengths.
        """
        name, target = self.name, self.target
        assert not isinstance(target, type), "a method for every size has no program"
        if isinstance(target, Nesting):
            example = target.of((2,) * len(target.side_names))
            raise TargetError(
                f"{self.name}: expected a length for each primitive, got none: write them like "
                f"{example}"
            )
        if isinstance(target, Plan):
            raise TargetError(f"{name}: expected a primitive, a sequence or a program, got a plan")
        if isinstance(target, Primitive):
            placed: Sequence | Program = Sequence.of(target, *self._lengths(target, side))
        else:
            kind = "program" if isinstance(target, Program) else "method"
            kind = "sequence" if isinstance(target, Sequence) else kind
            self.refuse(f"as a {kind} has its own mesh", side=side)
            placed = target.program() if isinstance(target, ProgramMethod) else target
        if isinstance(placed, Sequence) and prod(placed.axis_lengths) > MOST_DEVICES:
            raise TargetError(
                f"{name}: expected at most {MOST_DEVICES} devices to unroll, got "
                f"{prod(placed.axis_lengths)}: take a smaller mesh"
            )
        return placed

    def _lengths(self, primitive: Primitive, side: Side | None) -> tuple[int, ...]:
        name, spelling, names = self.name, self.spelling, primitive.side_names
        option = spelling.name("side")
        if not names:
            expected, example = f"no length, as {name} has no side", f"leave {option} out"
        else:
            several = len(names) > 1
            expected = (
                f"the length{'s' * several} of side{'s' * several} {', '.join(names)}, "
                f"{'each ' * several}1 or more"
            )
            lengths = tuple(2 + place for place in range(len(names)))
            example = f"write {spelling.given('side', lengths if several else 2)}"
        if side is None and names:
            raise TargetError(f"{name}: expected {expected}, got none: {example}")
        given = side.split(",") if isinstance(side, str) else side
        parts = [] if given is None else given if isinstance(given, tuple | list) else [given]
        parts = [str(part).strip() for part in parts]
        if len(parts) != len(names) or not all(map(_is_length, parts)):
            raise TargetError(f"{option}: expected {expected}, got {side!r}: {example}")
        return tuple(map(int, parts))

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
            given = self.spelling.given("shape", shape)
            raise TargetError(
                f"{self.name}: expected no {self.spelling.name('shape')}, as a program names its "
                f'own, got {given}: write it into the file, "shape": {{"M": 4, "N": 4, "K": 4}}'
            )
        self.refuse(OF_A_PROGRAM, phase=phase)
        return placed

    def refuse(self, reason: str, **options: object) -> None:
        """Raise `TargetError` if an option is given that does not apply to the target."""
        for option, value in options.items():
            if value is not None:
                raise TargetError(
                    f"{self.name}: expected no {self.spelling.name(option)}, {reason}, got "
                    f"{self.spelling.given(option, value)}: leave it out"
                )


def of_every_length(text: str) -> Nesting | type[ProgramMethod] | None:
    """The sequence for every length, or the method for every size, that text names; or None."""
    return METHODS.get(text) or without_lengths(text)


def phases_of(phase: Phase | None) -> tuple[Phase, ...]:
    """All phases, or the one that is named. Raises `TargetError` for another name."""
    if phase is not None and phase not in PHASES:
        raise TargetError(f"phase: expected one of {', '.join(PHASES)}, got {phase!r}")
    return PHASES if phase is None else (phase,)


def operator_of(shape: Shape, spelling: Spelling = PYTHON) -> Linear:
    """The operator of a shape. Raises `ShapeError`."""
    if isinstance(shape, Linear):
        return shape
    parts = shape.split(",") if isinstance(shape, str) else list(map(str, shape))
    parts = [part.strip() for part in parts]
    if len(parts) not in (3, 4) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ShapeError(
            f"{spelling.name('shape')}: expected M,N,K or B,M,N,K, got {shape!r}: write it like "
            f"{spelling.given('shape', (8, 8, 8))}"
        )
    *batch, M, N, K = map(int, parts)
    return Linear(M, N, K, *batch)


def _is_length(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0


def priced_plan(
    target: AnyTarget,
    model: str | Path | ModelConfig | None,
    devices: int | None,
    spelling: Spelling = PYTHON,
) -> Plan:
    """The plan that a target names; a preset needs a `model` and `devices`.

    Raises `TargetError`, and what reading a file or making a preset raises.
    """
    text = str(target) if isinstance(target, str | Path) else ""
    if text and not text.endswith(".json") and (names_preset(text) or model or devices):
        return preset_of(text, model, devices, spelling)
    asked = replace(AskedTarget.of(target), spelling=spelling)
    if not isinstance(asked.target, Plan):
        raise TargetError(
            f"{asked.name}: expected a plan, which has a price, got a "
            f"{type(asked.target).__name__.lower()}: write plan.json, or a preset as megatron"
        )
    asked.refuse("as a plan names its own", model=model, devices=devices)
    return asked.target


def preset_of(
    name: str,
    model: str | Path | ModelConfig | None,
    devices: int | None,
    spelling: Spelling,
    batch: int | None = None,
) -> Plan:
    """The preset plan of a name. Raises `TargetError`, and what `preset_plan` raises."""
    if model is None or devices is None:
        option, example = ("model", "opt-6.7b") if model is None else ("devices", 8)
        raise TargetError(
            f"{name}: expected the model and the devices of a preset, got no "
            f"{spelling.name(option)}: write {spelling.given(option, example)}"
        )
    sizes = find_model(str(model)) if isinstance(model, str | Path) else model
    return preset_plan(name, sizes, devices, batch)
