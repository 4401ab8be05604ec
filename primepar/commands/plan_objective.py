"""What `primepar plan` is asked, and its answers: a plan is priced, or one is searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import ceil, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace as changed

from primepar.api.target import COMMAND_LINE, SEQUENCES, priced_plan
from primepar.commands.amounts import aligned
from primepar.errors import ConfigError, PlanError, UndecidedError
from primepar.plan.plan import is_plan, save_plan
from primepar.plan.presets import names_preset

if TYPE_CHECKING:
    from primepar.models.config import ModelConfig
    from primepar.plan.cluster import Cluster
    from primepar.plan.redundancy import Solution
    from primepar.plan.search.explain import TableRow
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.result import SearchResult
    from primepar.plan.search.row import PlanRow
    from primepar.plan.search.sequence_space import Axes

Goal = Literal["time", "memory", "redundancy", "splits", "pareto"]
Mode = Literal["plan", "time", "memory", "redundancy", "splits"]
Space = Literal["paper", "all", "grids"]
Shard = Literal["none", "optimizer", "gradients", "parameters"]
Recompute = Literal["none", "selective", "full"]
Tick = Callable[[str], object]
OF_STAGES = ("--shard", "--recompute")
_WITHOUT_EFFECT: dict[Mode, tuple[tuple[str, ...], str]] = {
    "plan": (("--memory", "--within", "--explain", "--output", "--positions",
              "--objective", "--tp", "--pp", "--dp", "--cp", "--ep", *OF_STAGES),
             "that is a plan, which is priced"),
    "time": (("--within",), "time itself is least"),
    "memory": (("--memory", "--pp", *OF_STAGES), "memory itself is least"),
    "redundancy": (("--pp", *OF_STAGES), "redundancy itself is least"),
    "splits": (("--within", "--explain", "--tokens"), "it lists the fastest of each split"),
}  # fmt: skip
"""Options without effect on an answer, and why."""
USUAL_POSITIONS = 8192
"""Tokens of a sequence where a model has a longer context: what many are trained with first."""
SOLVER_SECONDS = 60.0
"""Time limit of the integer program for the least redundancy."""
SECONDS_OF_A_DAY = 86400


class Printed(NamedTuple):
    """What is printed: data for JSON, or text. `code` is the exit code."""

    data: object
    text: str
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of `primepar plan`, option by option.

    Raises `ConfigError` for options without effect, and for values that mean nothing.
    """

    target: str
    cluster: str
    model: str | None = None
    nodes: int | None = None
    devices: int | None = None
    batch: int | None = None
    positions: int | None = None
    dtype: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    shard: Shard | None = None
    recompute: Recompute | None = None
    space: Space = "paper"
    goal: Goal = "time"
    memory: float | None = None
    within: float | None = None
    explain: bool = False
    tokens: float | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        if self.goal == "pareto":
            raise ConfigError(
                "--objective pareto: expected time, memory, redundancy or splits, got pareto, "
                "which is no longer listed: write --memory BYTES for each memory"
            )
        bounds = {"--memory": (self.memory, "bytes"), "--within": (self.within, "seconds")}
        for name, (bound, unit) in bounds.items():
            if bound is not None and not (isfinite(bound) and bound > 0):
                raise ConfigError(f"{name}: expected more than 0 {unit}, got {bound:g}")
        if self.mode == "memory" and self.within is None:
            raise ConfigError(
                "--objective memory: expected the seconds that a step may take, got none: "
                "write --within SECONDS"
            )
        options, because = _WITHOUT_EFFECT[self.mode]
        given = {f"--{field.name}" for field in fields(self)
                 if getattr(self, field.name) != field.default}  # fmt: skip
        given |= {"--objective"} if self.goal != "time" else set()
        with_ = f"--objective {self.goal}"
        if self.mode == "plan":
            with_ = self.target
        for option in (option for option in options if option in given):
            raise ConfigError(
                f"{option}: expected none together with {with_}, as {because}: leave it out"
            )

    @cached_property
    def mode(self) -> Mode:
        """What kind of answer is asked: the price of a plan, or a search."""
        is_file = self.target.endswith(".json") and is_plan(Path(self.target))
        if self.model or is_file or names_preset(self.target):
            return "plan"
        assert self.goal != "pareto"
        return self.goal

    def answer(self, tick: Tick) -> Printed:
        """The answer. Raises `PlanError` and `UndecidedError` where there is none."""
        from primepar.plan.search.explain import TableRow, explain, price_of, words

        solution = None
        if self.mode == "plan":
            from primepar.plan.cluster import load_cluster

            given = priced_plan(self.target, self.model, self.devices, COMMAND_LINE)
            machine, batch = load_cluster(self.cluster, self.nodes), self.batch or given.batch
            explanation = price_of(given, machine, batch or SEQUENCES, self.dtype, self.space, tick)
        else:
            if self.mode == "redundancy":
                result, solution = self._least_redundant(self.planner(tick, posted=False))
                rows: Several[PlanRow] = [result]
            else:
                rows = self.rows(tick)
            if self.output is not None:
                save_plan(rows[0].plan, self.output)
            if self.mode == "splits":
                table = [*map(TableRow.of, rows)]
                return Printed(table, table_words(table))
            tick("what every device sends and holds")
            explanation = explain(rows, neighbours=self.explain)
        if self.tokens is not None:
            days = self.tokens / explanation.tokens_per_second / SECONDS_OF_A_DAY
            explanation = replace(explanation, days=days)
        if solution is None:
            return Printed(explanation, words(explanation))
        data = {known.name: getattr(explanation, known.name) for known in fields(explanation)}
        data["redundancy"] = {"redundant": result.cost, "bound": solution.bound,
                              "proved": solution.proved, "variables": solution.columns}  # fmt: skip
        text = words(explanation) + redundancy_words(result.cost, solution)
        return Printed(data, text, 0 if solution.proved else UndecidedError.exit_code)

    def rows(self, tick: Tick) -> Several[PlanRow]:
        """The plans that are compared, the best first. Raises `PlanError` where none fits."""
        from primepar.plan.search.ranked import ranked
        from primepar.plan.search.splits import Splits
        from primepar.plan.search.stage_cost import EVERY_CHOICE, OptionChoices
        from primepar.plan.search.within import smallest_within

        if self.mode == "memory":
            assert self.within is not None, "refused before"
            return [smallest_within(self.planner(tick), self.within)]
        model, machine = self.read
        choices = OptionChoices(
            (self.shard,) if self.shard else EVERY_CHOICE.shards,
            (self.recompute,) if self.recompute else EVERY_CHOICE.recomputes,
            interleaves=True,
        )
        splits = Splits(
            model, changed(machine, memory=self.bound), self.devices or machine.devices,
            self.batch or SEQUENCES, self.dtype or next(iter(machine.rates)), self.space,
            choices=choices, tick=tick, posted=True, axes=self.axes,
        )  # fmt: skip
        splits.refuse_what_cannot_fit(self._of_whom)
        rows = ranked(splits)
        if not rows[0].fits:
            raise self._too_large(rows)
        return rows

    @property
    def bound(self) -> float:
        """Bytes that a device may hold."""
        return self.memory or self.read[1].memory

    @property
    def _of_whom(self) -> str:
        """What bounds the bytes of a device."""
        return "--memory" if self.memory else f"a device of the cluster {self.read[1].name}"

    def _too_large(self, rows: Iterable[PlanRow]) -> PlanError:
        """The error for plans none of which is within the bound."""
        least = ceil(min(row.memory for row in rows))
        fewer = self.mode == "time" and self.shard not in (None, "parameters")
        instead = ", a smaller --batch or --shard parameters" if fewer else " or a smaller --batch"
        return PlanError(
            f"expected a plan within the {self.bound:,.0f} bytes of {self._of_whom}, got none: the "
            f"smallest takes {least:,} bytes, {least - self.bound:,.0f} too many: take more "
            f"--devices{instead}"
        )

    @cached_property
    def read(self) -> tuple[ModelConfig, Cluster]:
        """The model and the cluster. Raises `ConfigError` and `ClusterError`."""
        from primepar.models.sizes import find_model
        from primepar.plan.cluster import load_cluster

        model = find_model(self.target)
        positions = min(model.context, USUAL_POSITIONS) if not self.positions else self.positions
        if positions > model.context:
            raise ConfigError(
                f"--positions: expected 1 to {model.context} tokens, the context of {self.target}, "
                f"got {positions}: write --positions {model.context}"
            )
        cluster = load_cluster(self.cluster, self.nodes)
        if self.ep is not None:
            model = self._with_experts_over(model, self.devices or cluster.devices)
        return replace(model, context=positions), cluster

    def _with_experts_over(self, model: ModelConfig, devices: int) -> ModelConfig:
        """The model with its experts over `--ep` of some devices. Raises `ConfigError`."""
        from primepar.plan.search.search import EXACT

        if model.priced is None or model.priced.experts is None:
            raise ConfigError(
                f"--ep: expected none for {self.target}, which has no routed experts, got "
                f"{self.ep}: leave it out"
            )
        experts, most = model.priced.experts, min(devices, EXACT)
        allowed = [1 << bit for bit in range(most.bit_length()) if not experts.count % (1 << bit)]
        if self.ep not in allowed:
            raise ConfigError(
                f"--ep: expected {', '.join(map(str, allowed))}, powers of two that divide the "
                f"{experts.count} experts, for stages of at most {most} devices, got {self.ep}: "
                f"write --ep {allowed[-1]}"
            )
        spread = changed(experts, spread=self.ep)
        return replace(model, priced=changed(model.priced, experts=spread))

    @property
    def axes(self) -> Axes:
        """The degrees of parallelism that are fixed."""
        from primepar.plan.search.sequence_space import Axes

        return Axes(self.tp, self.pp, self.dp, self.cp)

    @property
    def asked_devices(self) -> int:
        """The devices of the plan: where none are given, the most of the cluster that can be."""
        cluster = self.read[1]
        return self.devices or 1 << cluster.devices.bit_length() - 1

    def planner(self, tick: Tick, posted: bool = True) -> Planner:
        """The planner of what is asked."""
        from primepar.plan.search.planner import Planner

        return Planner.of(
            *self.read, self.asked_devices, self.batch or SEQUENCES, self.dtype, self.space,
            tick=tick, posted=posted, axes=self.axes,
        )  # fmt: skip

    def _least_redundant(self, planner: Planner) -> tuple[SearchResult, Solution]:
        """The plan with the least redundancy within the bounds, and how sure that is."""
        from primepar.plan.redundancy import MOST_COLUMNS, least_redundancy
        from primepar.plan.search.within import WithinLimits, smallest_within

        made = planner.like(planner, tradeoffs=True)
        result, solution = least_redundancy(made, self.bound, self.within or inf, SOLVER_SECONDS)
        if result is not None:
            return result, solution
        if solution.columns > MOST_COLUMNS:
            raise UndecidedError(
                f"expected an integer program of at most {MOST_COLUMNS:,} variables, got "
                f"{solution.columns:,}: plan fewer devices or layers, or leave --within out"
            )
        if not solution.proved:
            raise UndecidedError(
                f"expected a plan within {SOLVER_SECONDS:g} seconds, got none yet: plan fewer "
                "devices or layers, or leave --within out"
            )
        if self.within is not None:  # raises where one bound alone leaves no plan
            smallest_within(planner, self.within)
        limits = WithinLimits(planner)
        fastest = limits.fastest(self.bound)
        if fastest is None:
            smallest = limits.fastest(limits.least_memory)
            raise self._too_large([smallest] if smallest else [])
        raise PlanError(
            f"expected a plan with a step within the {self.within:g} seconds of --within and "
            f"within the memory of a device, got none: the fastest within the memory takes "
            f"{fastest.seconds:.6g} seconds: give more of one"
        )


def redundancy_words(redundant: float, solution: Solution) -> str:
    """The redundant bytes of a device, and how sure it is that no plan has less."""
    start = f"\n{redundant / 2**20:,.1f} MiB of a device are redundant: "
    if solution.proved:
        return (
            f"{start}no plan of the space within the bounds has less, proved by the integer "
            f"program, {solution.columns:,} variables\n"
        )
    return (
        f"{start}not proved to be the least, stopped after {SOLVER_SECONDS:g} seconds, when none "
        f"had less than {solution.bound / 2**20:,.1f} MiB\n"
    )


def table_words(rows: list[TableRow]) -> str:
    """The rows of an answer as a table."""
    heads = ("stages", "replicas", "devices", "microbatches", "chunks", "shards", "again", "ms",
             "bubble", "MiB", "")  # fmt: skip
    cells = [heads]
    for row in rows:
        remarks = [row.name] if row.name != str(row.split) else []
        if row.gap is not None:
            remarks.append(f"certified {ceil(1e4 * row.gap) / 100:.2f}%")
        if row.only_priced is not None:
            remarks.append("only priced")
        elif not row.simulated and any(known.simulated for known in rows):
            remarks.append("by price")
        remarks += [] if row.fits else ["too much"]
        cells.append((
            f"{row.stages}", f"{row.replicas}", f"{row.parts}",
            f"{row.microbatches} of {row.microbatch}", f"{row.chunks}", row.shard, row.recompute,
            f"{1e3 * row.seconds:,.1f}", f"{row.bubble:.0%}", f"{row.memory / 2**20:,.1f}",
            ", ".join(remarks),
        ))  # fmt: skip
    return "\n".join(aligned(cells)) + "\n"
