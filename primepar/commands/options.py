"""What the commands share: their common options, the meshes of targets, and plans as targets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from primepar.api.target import (
    COMMAND_LINE,
    Target,
    TrainingStep,
    of_every_length,
    preset_of,
    resolve,
)
from primepar.api.target import MOST_DEVICES as MOST_DEVICES
from primepar.errors import TargetError
from primepar.plan import Plan
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting


def file_option(text: str, *names: str, metavar: str | None = None) -> typer.models.OptionInfo:
    """An option that names a file, with its help."""
    option: typer.models.OptionInfo = typer.Option(
        *names, metavar=metavar, help=text, show_default=False
    )
    return option


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
        metavar="MODEL",
        help="Make the preset plan TARGET, as megatron or M2,summa: a config.json, or a name.",
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


def likely_cause(target: object, side: str | None) -> list[str]:
    """A line with the likeliest mistake in the maps of a primitive, or no line."""
    from primepar.verify.primitive.likely_cause import cause_at

    cause = cause_at(target, side)
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
        if self.model is not None or self.devices is not None:
            resolved: Target = preset_of(target, self.model, self.devices, COMMAND_LINE, self.batch)
        else:
            resolved = resolve(target)
        if not (isinstance(resolved, Plan) and step):
            instead = ", or write --program" if isinstance(resolved, Plan) else ""
            batch = None if self.model else self.batch  # else it is that of the preset
            for option, value in (("--positions", self.positions), ("--batch", batch)):
                if value is not None:
                    raise TargetError(
                        f"{target}: expected no {option}, which the step of a plan has, got "
                        f"{option} {value}: leave it out{instead}"
                    )
        return resolved

    def step(self, plan: Plan) -> TrainingStep:
        """The step that is meant: of the plan's batch or the smallest, and of whole contexts."""
        return TrainingStep.of(plan, self.batch, self.positions)

    def replay(self, target: str) -> str:
        """The commands that run the step on emulated devices."""
        given = "".join(f" --{field.name} {value}" for field in fields(self)
                        if (value := getattr(self, field.name)) is not None)  # fmt: skip
        write = f"primepar show {target}{given} --program -o step.json"
        return f"{write} && primepar check step.json"
