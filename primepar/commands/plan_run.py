"""What `primepar plan` prints, once its options are known to go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primepar.commands.options import json_text
from primepar.commands.plan_objective import Objective, front_words
from primepar.commands.plan_redundancy import Solving, comparison_words, with_comparison
from primepar.commands.progress import progress
from primepar.errors import ConfigError, UndecidedError

if TYPE_CHECKING:
    from primepar.models.config import ModelConfig
    from primepar.plan.cluster import Cluster
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.sequence_space import SpaceName


@dataclass(frozen=True)
class Question:
    """What is planned, and for which devices; `alpha` is seconds for a GiB."""

    model: str
    cluster: str
    devices: int
    batch: int
    dtype: str | None
    space: SpaceName
    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"--alpha: expected 0 or more seconds for a GiB, got {self.alpha}")

    @cached_property
    def read(self) -> tuple[ModelConfig, Cluster]:
        """The model and the cluster. Raises `ConfigError` and `ClusterError`."""
        from primepar.models.sizes import find_model
        from primepar.plan.cluster import load_cluster

        return find_model(self.model), load_cluster(self.cluster)

    def planner(self, tick: Callable[[str], object]) -> Callable[[bool], Planner]:
        """Makes planners, which keep what costs more and takes less memory where asked to."""
        from primepar.plan.search.planner import Planner

        return lambda tradeoffs: Planner.of(
            *self.read, self.devices, self.batch, self.dtype, self.space, self.alpha / 2**30,
            tradeoffs, tick=tick,
        )  # fmt: skip


def list_front(question: Question, objective: Objective, json: bool) -> None:
    """Print all plans that no other beats in time and memory."""
    with progress() as tick:
        front = objective.front(question.planner(tick)(True))
    typer.echo(json_text(front) if json else front_words(front), nl=False)


def list_pipelines(question: Question, json: bool) -> None:
    """Print all splits into stages, replicas and devices of a replica."""
    from primepar.commands.plan_pipeline import pipeline_words, pipelines

    with progress() as tick:
        rows = pipelines(*question.read, question.devices, question.batch, question.dtype,
                         question.space, tick)  # fmt: skip
    typer.echo(json_text(rows) if json else pipeline_words(rows), nl=False)


def choose(
    question: Question, solving: Solving, explain: bool, output: Path | None, json: bool
) -> int:
    """Print the best plan, write it where asked to, and return the exit code."""
    from primepar.plan.plan_file import save_plan
    from primepar.plan.search.explain import explain as explained
    from primepar.plan.search.explain import words

    with progress() as tick:
        found, beside = solving.best(question.planner(tick))
        tick("what every device sends and holds")
        told = explained(found, neighbours=explain)
    if output is not None:
        save_plan(found.plan, output)
    if json:
        typer.echo(json_text(told if beside is None else with_comparison(told, beside)), nl=False)
    else:
        typer.echo(words(told) + (comparison_words(beside) if beside else ""), nl=False)
        if output is not None:
            typer.echo(f"wrote {output}")
    return 0 if beside is None or beside.proved else UndecidedError.exit_code
