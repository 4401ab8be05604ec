"""What the commands share: their common options, the meshes of targets, and plans as targets."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from primepar.api.target import (
    COMMAND_LINE,
    AskedTarget,
    Target,
    TrainingStep,
    of_every_length,
    resolve,
)
from primepar.api.target import MOST_DEVICES as MOST_DEVICES
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.plan import Plan, preset_plan, save_plan
from primepar.plan.description import describe, plan_svg, words
from primepar.schedule import Primitive, Program, Sequence
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting

PlanTargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A name that `primepar list` prints, file.py:Class, program.json, a sequence like "
        "K,P2x2, plan.json, or a preset plan with --model.",
        show_default=False,
    ),
]
SideOption = Annotated[
    str | None,
    typer.Option(
        "--side",
        metavar="S",
        help="Side of the mesh. Where it has several sides, one length each: 2,3.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="CONFIG.JSON",
        help="Make the preset plan TARGET, like megatron or M2,summa, for this model.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", help="Devices of the preset plan.", show_default=False),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        help="Sequences of a training step: of the preset plan, or of a plan that has no batch.",
        show_default=False,
    ),
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        "--positions",
        min=1,
        help="Tokens of each sequence of a plan's step. By default the model's context.",
        show_default=False,
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="M,N,K",
        help="Elements of the operator's dims, or B,M,N,K. By default two for each slice.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def on_mesh(name: str, target: Target, side: str | None) -> Sequence | Program:
    """Put a primitive on the mesh of `--side`; return a sequence or a program as it is.

    Raises `TargetError` if the side is missing, is no length, or does not apply to the target.
    """
    if isinstance(target, Plan):
        raise TargetError(
            f"{name}: expected a primitive, a sequence or a program, got a plan: only "
            "`primepar show`, `primepar check`, `primepar verify`, `primepar simulate` and "
            "`primepar train --plan` take one"
        )
    return AskedTarget(name, target, COMMAND_LINE).on_mesh(side)


def likely_cause(target: object, side: str | None) -> list[str]:
    """A line with the likeliest mistake in the maps of a primitive, or no line."""
    if not isinstance(target, Primitive):
        return []
    from primepar.verify.primitive.likely_cause import likely_cause

    cause = likely_cause(target, int(side) if side and side.isdecimal() and int(side) > 1 else 2)
    return [f"  likely cause: {cause}"] if cause else []


def json_text(value: object) -> str:
    """JSON for people and programs, with a newline at its end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


@dataclass(frozen=True)
class Making:
    """The options that make a preset plan of a target, and those of a plan's step."""

    model: Path | None
    devices: int | None
    batch: int | None
    positions: int | None

    def every_length(self, target: str) -> Nesting | type[ProgramMethod] | None:
        """The sequence for every length, or the method for every size, that a target names.

        None for another target, and where an option makes it a plan.
        """
        given = (getattr(self, field.name) for field in fields(self))
        return of_every_length(target) if all(value is None for value in given) else None

    def resolved(self, target: str, step: bool) -> Target:
        """What a target names: a preset plan where it is asked for, else what there is.

        Of a plan whose `step` is meant, a batch and positions are its sizes. Raises `TargetError`
        for options that have no effect on the target, and `PlanError` and `ConfigError`.
        """
        if any(value is not None for value in (self.model, self.devices)):
            resolved: Target = self._made(target)
        else:
            resolved = resolve(target)
            if self.batch is not None and not (isinstance(resolved, Plan) and step):
                resolved = self._made(target)
        if self.positions is not None and not (isinstance(resolved, Plan) and step):
            instead = ", or write --program" if isinstance(resolved, Plan) else ""
            raise TargetError(
                f"{target}: expected no --positions, which the step of a plan has, got "
                f"--positions {self.positions}: leave it out{instead}"
            )
        return resolved

    def _made(self, target: str) -> Plan:
        given = {"--devices": self.devices, "--batch": self.batch}
        if self.model is None:
            option = next(name for name, value in given.items() if value is not None)
            raise TargetError(
                f"{option}: expected --model config.json too, which makes a preset plan, got "
                "none: name the model"
            )
        if self.devices is None:
            raise TargetError(
                f"{target}: expected the number of devices of the plan, got none: write --devices 4"
            )
        from primepar.models.config_json import load_config

        return preset_plan(target, load_config(self.model), self.devices, self.batch)

    def step(self, plan: Plan) -> TrainingStep:
        """The step that is meant: of the plan's batch or the smallest, and of whole contexts."""
        return TrainingStep.of(plan, self.batch, self.positions)

    def replay(self, target: str) -> str:
        """The commands that run the step on emulated devices."""
        given = "".join(f" --{field.name} {value}" for field in fields(self)
                        if (value := getattr(self, field.name)) is not None)  # fmt: skip
        write = f"primepar show {target}{given} --program -o step.json"
        return f"{write} && primepar check step.json"


def show_plan(plan: Plan, output: Path | None, json: bool) -> None:
    """Print a plan operator by operator, or write it or its picture into a file."""
    if output is None:
        description = describe(plan)
        columns = shutil.get_terminal_size((100, 24)).columns
        typer.echo(json_text(description) if json else words(description, columns), nl=False)
        return
    if output.suffix == ".json":
        save_plan(plan, output)
    elif output.suffix == ".svg":
        write_text(output, plan_svg(describe(plan)))
    else:
        raise TargetError(
            f"--output: expected a name that ends with .json (the plan) or .svg (the picture), "
            f"got {output}"
        )
    typer.echo(f"wrote {output}")


def refuse_for_plan(target: str, options: dict[str, object]) -> None:
    """Raise `TargetError` if an option is given that has no effect on a plan."""
    for option, value in options.items():
        if value:
            given = option if value is True else f"{option} {value}"
            raise TargetError(
                f"{target}: expected no {option}, as a plan has its own sequences, got {given}: "
                "leave it out"
            )
