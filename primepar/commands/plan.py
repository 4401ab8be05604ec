"""Plans as targets: a plan file, or a ready plan made for a model and a mesh; and their steps."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import typer

from primepar.api.resolve_target import Target, resolve, without_lengths
from primepar.api.training_step import TrainingStep as TrainingStep
from primepar.commands.options import json_text
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.plan import Plan, ready_plan, save_plan
from primepar.plan.description import describe, words
from primepar.plan.picture import plan_svg
from primepar.schedule.nesting import Nesting


@dataclass(frozen=True)
class Making:
    """The options that make a ready plan of a target, and those of a plan's step."""

    model: Path | None
    ranks: int | None
    batch: int | None
    depth: int | None
    positions: int | None

    def nesting(self, target: str) -> Nesting | None:
        """The sequence for every length that a target names, where no option makes it a plan."""
        given = (getattr(self, each.name) for each in fields(self))
        return without_lengths(target) if all(value is None for value in given) else None

    def resolved(self, target: str, step: bool) -> Target:
        """What a target names: a ready plan where it is asked for, else what there is.

        Of a plan whose `step` is meant, a batch and positions are its sizes. Raises `TargetError`
        for options that say nothing of the target, and `PlanError` and `ConfigError`.
        """
        if any(value is not None for value in (self.model, self.ranks, self.depth)):
            found: Target = self._made(target)
        else:
            found = resolve(target)
            if self.batch is not None and not (isinstance(found, Plan) and step):
                found = self._made(target)
        if self.positions is not None and not (isinstance(found, Plan) and step):
            mend = ", or write --program" if isinstance(found, Plan) else ""
            raise TargetError(
                f"{target}: expected no --positions, which the step of a plan has, got "
                f"--positions {self.positions}: leave it out{mend}"
            )
        return found

    def _made(self, target: str) -> Plan:
        given = {"--ranks": self.ranks, "--batch": self.batch, "--depth": self.depth}
        if self.model is None:
            option = next(name for name, value in given.items() if value is not None)
            raise TargetError(
                f"{option}: expected --model config.json beside it, which makes a ready plan, got "
                "none: name the model"
            )
        if self.ranks is None:
            raise TargetError(
                f"{target}: expected the number of devices of the plan, got none: write --ranks 4"
            )
        from primepar.models.config_json import load_config

        return ready_plan(target, load_config(self.model), self.ranks, self.batch, self.depth)

    def step(self, plan: Plan) -> TrainingStep:
        """The step that is meant: of the plan's batch or the smallest, and of whole contexts."""
        return TrainingStep.of(plan, self.batch, self.positions)

    def replay(self, target: str) -> str:
        """The commands that run the step on emulated devices."""
        given = "".join(f" --{each.name} {value}" for each in fields(self)
                        if (value := getattr(self, each.name)) is not None)  # fmt: skip
        write = f"primepar show {target}{given} --program -o step.json"
        return f"{write} && primepar check step.json"


def show_plan(plan: Plan, output: Path | None, json: bool) -> None:
    """Tell a plan in words and pictures, or write it or its picture into a file."""
    if output is None:
        told = describe(plan)
        columns = shutil.get_terminal_size((100, 24)).columns
        typer.echo(json_text(told) if json else words(told, columns), nl=False)
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
    """Raise `TargetError` if an option is given that says nothing of a plan."""
    for option, value in options.items():
        if value:
            given = option if value is True else f"{option} {value}"
            raise TargetError(
                f"{target}: expected no {option}, as a plan has its own sequences, got {given}: "
                "leave it out"
            )
