"""Plans as targets: a plan file, or a preset plan made for a model and a mesh; and their steps."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import typer

from primepar.api.asked_target import of_every_length
from primepar.api.resolve_target import Target, resolve
from primepar.api.training_step import TrainingStep as TrainingStep
from primepar.commands.options import json_text
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.plan import Plan, preset_plan, save_plan
from primepar.plan.description import describe, words
from primepar.plan.picture import plan_svg
from primepar.schedule.nesting import Nesting
from primepar.schedule.program_method import ProgramMethod


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
