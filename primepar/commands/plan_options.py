"""What the commands that search plans share: their options, and the question that these put."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from primepar.commands.options import json_text
from primepar.errors import ConfigError
from primepar.plan.cluster import shipped_clusters

if TYPE_CHECKING:
    from primepar.models.config import ModelConfig
    from primepar.plan.cluster import Cluster
    from primepar.plan.search.explain import Explanation
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.ranked import ComparedPlan

Space = Literal["paper", "all", "grids"]
USUAL_POSITIONS = 8192
"""Tokens of a sequence where a model has a longer context: what many are trained with first."""

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A config.json of Hugging Face, or the name of a published model, as opt-175b.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help=f"Cluster file (TOML), or a preset: {', '.join(shipped_clusters())}.",
        show_default=False,
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", help="Nodes of the cluster.", show_default="those of the file"),
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices", help="Devices of the plan, a power of two.", show_default="all of the nodes"
    ),
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        "--positions",
        min=1,
        help="Tokens of a sequence.",
        show_default="the model's context, at most 8192",
    ),
]
BatchOption = Annotated[int, typer.Option("--batch", min=1, help="Sequences of a training step.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        help="Type of parameters and activations.",
        show_default="the cluster's first",
    ),
]
SpaceOption = Annotated[
    Space,
    typer.Option(
        "--space",
        help="Sequences to choose from: the paper's, all of the library but grids, or those too.",
    ),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory", metavar="BYTES", help="Device memory limit.", show_default="the cluster's"
    ),
]
WithinOption = Annotated[
    float | None,
    typer.Option("--within", metavar="SECONDS", help="Longest training step.", show_default=False),
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Price the nearest other sequences too.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the plan, plan.json.", show_default=False
    ),
]


@dataclass(frozen=True)
class Question:
    """What is planned, and for which devices; `alpha` is seconds per GiB of a device."""

    model: str
    cluster: str
    devices: int | None
    batch: int
    dtype: str | None
    space: Space
    alpha: float = 0.0
    nodes: int | None = None
    positions: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"--alpha: expected 0 or more seconds for a GiB, got {self.alpha}")

    @cached_property
    def read(self) -> tuple[ModelConfig, Cluster]:
        """The model and the cluster. Raises `ConfigError` and `ClusterError`."""
        from primepar.models.sizes import find_model
        from primepar.plan.cluster import load_cluster

        model = find_model(self.model)
        positions = min(model.context, USUAL_POSITIONS) if not self.positions else self.positions
        if positions > model.context:
            raise ConfigError(
                f"--positions: expected 1 to {model.context} tokens, the context of {self.model}, "
                f"got {positions}: write --positions {model.context}"
            )
        return replace(model, context=positions), load_cluster(self.cluster, self.nodes)

    @property
    def asked_devices(self) -> int:
        """The devices of the plan: where none are given, the most of the cluster that can be."""
        cluster = self.read[1]
        return self.devices or 1 << cluster.devices.bit_length() - 1

    def planner(self, tick: Callable[[str], object], posted: bool = True) -> Planner:
        """The planner of what is asked."""
        from primepar.plan.search.planner import Planner

        return Planner.of(
            *self.read, self.asked_devices, self.batch, self.dtype, self.space,
            self.alpha / 2**30, tick=tick, posted=posted,
        )  # fmt: skip


def explained(
    plans: list[ComparedPlan], neighbours: bool, output: Path | None, tick: Callable[[str], object]
) -> Explanation:
    """Explain the first of some plans next to the others, and write it into `output` if given."""
    from primepar.plan.plan_file import save_plan
    from primepar.plan.search.explain import explain

    tick("what every device sends and holds")
    explanation = explain(plans[0], plans[1:], neighbours=neighbours)
    if output is not None:
        save_plan(plans[0].result.plan, output)
    return explanation


def print_result(result: object, text: str, output: Path | None, json: bool) -> None:
    """Print a result as JSON, or as text with the name of the file that was written."""
    if json:
        typer.echo(json_text(result), nl=False)
        return
    typer.echo(text, nl=False)
    if output is not None:
        typer.echo(f"wrote {output}")
