"""Do predicted training steps rank plans as this machine does?

Four processes of this machine, which is profiled first unless `--cluster FILE` names one. For each
of three models, plans are drawn by a rule that looks at no time, and next to them the planner's own
choice and Megatron's are measured. The steps of all plans of a model alternate in a random order,
so that load on the machine affects all of them. The median of the steps counts.

A drawn plan starts as a preset on all devices, or as two copies of one, each as likely as any
other. Then a share is drawn out of `SHARES`. Every operator of every layer is changed with this
probability: it takes one of its sequences in the space `all`, each as likely. So does an operator
whose sequence in the preset is not in the space. The plans reach from presets as they are to those
in which no operator knows of its neighbours. A plan that is there already, or that its batch does
not allow, is drawn again. No plan is left out for its time.

    python -m benchmarks predicted_and_measured --out out/ranking.json
    python -m docs.render_ranking out/ranking.json
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Cells, Column, bench
from benchmarks.scores import (
    Score,
    blind_regret,
    constant_error,
    error,
    kendall,
    least,
    regret,
    tau_interval,
)
from benchmarks.world import on_ranks
from primepar.errors import PlanError
from primepar.models import ModelConfig
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.plan.cluster import Cluster, read_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given
from primepar.plan.search.search import search
from primepar.plan.simulator.step import simulate_step

if TYPE_CHECKING:
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.training.launch import World
    from primepar.distributed.training.trainer import Trainer

SEED = 2024
"""Of the plans that are scored; no constant of the cost model was chosen by looking at them."""
DTYPE = "float32"
PLANNED, MEGATRON = "the planner's", "megatron"
NAMED = (PLANNED, MEGATRON, "M2,megatron")
"""Measured in addition to the drawn plans; they are in no score of the drawn ones."""
LARGEST_REGRET, LEAST_TAU = 0.05, 0.8
"""The targets: at most, and at least."""
WARM: Final = 2
"""Steps of each plan before those that count."""
RANKS: Final = 4
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Probabilities with which an operator is changed; one of them is drawn for each plan."""


class RankedModel(Struct, frozen=True):
    """A model whose plans are ranked, and the number of sequences of its steps."""

    name: str
    config: ModelConfig
    batch: int


MODELS: Final = (
    RankedModel("GPT", ModelConfig.of(
        "gpt", layers=2, hidden=384, heads=8, context=64, vocabulary=256), 4),
    RankedModel("Llama", ModelConfig.of(
        "llama", layers=2, hidden=256, heads=8, kv_heads=4, ffn=704, context=128, vocabulary=256),
        8),
    RankedModel("BLOOM", ModelConfig.of(
        "bloom", layers=2, hidden=128, heads=4, context=128, vocabulary=256), 16),
)  # fmt: skip
"""One whose weights are most of what moves, one in between, one whose activations are."""


class DrawnPlan(Struct, frozen=True):
    """A plan, and how it was made: `megatron`, or `summa, 25% changed`."""

    name: str
    plan: Plan


def drawn(model: RankedModel, planner: Planner, count: int, seed: int) -> list[DrawnPlan]:
    """`count` different plans of a model; the same ones for the same seed and space."""
    random, plans = Random(f"{seed}/{model.name}"), dict[tuple[str, ...], DrawnPlan]()
    bases = dict(base_plans(model))
    while len(plans) < count:
        name, share = random.choice(list(bases)), random.choice(SHARES)
        sequences = _changed(random, planner, bases[name].sequences, share)
        try:
            plan = plan_of(model, sequences)
            plan.check_batch(model.batch, model.config.context)
        except PlanError:
            continue
        label = f"{name}, {share:.0%} changed" if share else name
        plans.setdefault(tuple(sequences.values()), DrawnPlan(label, plan))
    return list(plans.values())


def base_plans(model: RankedModel) -> Iterator[tuple[str, Plan]]:
    """Presets of a model on all devices, alone and as two copies."""
    for name in (*PRESETS, *(f"M2,{method}" for method in PRESETS if method != "data")):
        try:
            yield name, preset_plan(name, model.config, RANKS, model.batch)
        except PlanError:
            continue


def plan_of(model: RankedModel, sequences: Mapping[str, str]) -> Plan:
    """The plan of a model with these sequences. Raises `PlanError` where they do not fit it."""
    return Plan(model=model.config, ranks=RANKS, batch=model.batch, sequences=dict(sequences))


def _changed(
    random: Random, planner: Planner, sequences: Mapping[str, str], share: float
) -> dict[str, str]:
    """The sequences, with each replaced by one of the space with the probability `share`."""
    changed = {}
    for operator in planner.operators:
        options = [option.text for option in planner.catalogue.options(operator).candidates]
        text = sequences[operator.name]
        is_changed = random.random() < share or text not in options
        changed[operator.name] = random.choice(options) if is_changed else text
    return changed


# Measured steps


class StepTimes(Struct, frozen=True):
    """Every counted step of a plan: seconds of the slowest rank, CPU seconds of all ranks."""

    wall: list[float]
    cpu: list[float]


def profiled() -> str:
    """Measure this machine now; the text of its cluster file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.toml"
        words = ["-m", "primepar", "profile", "-o", str(path), "--device", "cpu"]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return path.read_text(encoding="utf-8")


def measure(plans: Sequence[Plan], rounds: int) -> list[StepTimes]:
    """Measure plans on this rank, in an initialised world, on one mesh; a collective call."""
    from torch import device
    from torch import distributed as dist
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    from primepar.distributed import Mesh
    from primepar.distributed.training.launch import World

    world = World(dist.get_rank(), dist.get_world_size(), device("cpu"), HashStore())
    mesh = Mesh(plans[0].sequence("head"), world.device)
    return alternating([_trainer(world, mesh, plan) for plan in plans], rounds)


def alternating(trainers: Sequence[Trainer], rounds: int) -> list[StepTimes]:
    """Every round makes one step of each plan, in an order of its own, the same on all ranks."""
    import torch
    from torch import distributed as dist

    from primepar.distributed.training.stopping import Stopping

    random, shape = Random(0), (len(trainers), WARM + rounds)
    wall, cpu = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    with Stopping() as stopping:
        for number in range(WARM + rounds):
            for index in random.sample(range(len(trainers)), len(trainers)):
                dist.barrier()
                start, used = time.perf_counter(), time.process_time()
                if trainers[index].step(stopping):
                    raise SystemExit(1)
                wall[index, number] = time.perf_counter() - start
                cpu[index, number] = time.process_time() - used
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    dist.all_reduce(cpu, dist.ReduceOp.SUM)
    return [StepTimes(*times) for times in
            zip(wall[:, WARM:].tolist(), cpu[:, WARM:].tolist(), strict=True)]  # fmt: skip


def _trainer(world: World, mesh: Mesh, plan: Plan) -> Trainer:
    """The trainer of `primepar train --plan`, without output, on a mesh that all plans share."""
    from primepar.distributed.runtime.training_state import TrainingState
    from primepar.distributed.training.data import load_text
    from primepar.distributed.training.launchers import Launch
    from primepar.distributed.training.log import Log
    from primepar.distributed.training.progress import Reporter
    from primepar.distributed.training.settings import Settings
    from primepar.distributed.training.trainer import Trainer

    assert plan.batch is not None, "a drawn plan has a batch"
    settings = Settings(plan="drawn")
    text = load_text(None, plan.batch, plan.model.context)
    state = TrainingState(plan, mesh, settings.seed)
    silent = Reporter(Launch("mpirun", rank=1, size=world.size), 0, settings.steps)
    return Trainer(settings, world, state, text, Log(None), silent)


# Predicted and measured


class RankedPlan(BenchRow, frozen=True):
    """One plan: seconds of a step by the cost model and by the simulator, and as measured."""

    model: str
    name: str
    sequences: dict[str, str]
    predicted: float
    simulated: float
    times: StepTimes
    places: tuple[int, ...] = ()
    """Its rank among all plans of the model by each of the three times, 1 for the least."""

    @property
    def title(self) -> str:
        return self.model

    @property
    def measured(self) -> float:
        """Median seconds of a step."""
        return median(self.times.wall)

    @property
    def cpu(self) -> float:
        """Median CPU seconds of a step, of all ranks."""
        return median(self.times.cpu)

    @property
    def cells(self) -> Cells:
        seconds = (self.predicted, self.simulated, self.measured)
        first, second, third = (
            f"{1e3 * one:,.1f} #{place}" for one, place in zip(seconds, self.places, strict=True)
        )
        return {
            "plan": self.name,
            "predicted ms": first,
            "simulated ms": second,
            "measured ms": third,
            "CPU ms": f"{1e3 * self.cpu:,.1f}",
        }


class RankingScores(BenchRow, frozen=True, kw_only=True):
    """Scores of one model: of the drawn plans, and of the planner's own choice among all."""

    model: Annotated[str, Column("model")]
    parameters: int
    tokens: int
    tau: Annotated[Score, Column("tau, 95% interval", "+.2f")]
    simulated_tau: Annotated[Score, Column("the simulator's", "+.2f")]
    cpu_tau: Annotated[float, Column("of CPU", "+.2f")]
    """With the CPU seconds of all ranks in the place of the measured time."""
    repeated_tau: Annotated[float, Column("repeated", "+.2f")]
    """Of the odd rounds as a prediction of the even ones: what noise leaves of a perfect one."""
    regret: Annotated[float, Column("regret", ".0%")]
    """Of the drawn plan that the cost model prefers, over the fastest drawn one."""
    overall_regret: Annotated[float, Column("of the planner's plan", ".0%")]
    """Of the plan that the search chooses, over the fastest of all that were measured."""
    repeated_regret: Annotated[float, Column("repeated regret", ".0%")]
    """Of the drawn plan that is fastest in the odd rounds, over the fastest in the even ones."""
    blind_regret: Annotated[float, Column("blind", ".0%")]
    """Of a drawn plan chosen blindly: what a constant prediction gives."""
    error: Annotated[float, Column("error", ".0%")]
    constant_error: Annotated[float, Column("a constant's", ".0%")]
    of_megatron: tuple[float, float]
    """The planner's plan over plain Megatron's, as measured and as predicted."""

    @property
    def targets(self) -> Annotated[str, Column("targets")]:
        """Whether tau and both regrets meet them."""
        worst = max(self.regret, self.overall_regret)
        is_met = worst <= LARGEST_REGRET and self.tau.value >= LEAST_TAU
        return "met" if is_met else "missed"

    @classmethod
    def notes(cls, rows: Sequence[RankingScores]) -> Iterator[str]:
        for row in rows:
            measured, predicted = row.of_megatron
            yield (
                f"{row.model}: the planner's plan takes {measured:.2f} of plain Megatron's time; "
                f"predicted was {predicted:.2f}."
            )


class ProfileRow(BenchRow, frozen=True):
    """The machine as a cluster file, measured in the same run unless it was given."""

    text: str
    profiled: bool

    @property
    def cells(self) -> Cells:
        return {"cluster": "profiled in this run" if self.profiled else "a given file"}


def planner_of(model: RankedModel, cluster: Cluster) -> Planner:
    """The planner whose space the plans are drawn from, and whose choice is scored."""
    return Planner.of(model.config, cluster, RANKS, model.batch, DTYPE, "all")


def named(model: RankedModel, planner: Planner) -> list[DrawnPlan]:
    """The planner's own choice, and Megatron's plans."""
    presets = [DrawnPlan(name, preset_plan(name, model.config, RANKS, model.batch))
               for name in NAMED[1:]]  # fmt: skip
    return [DrawnPlan(PLANNED, search(planner).plan), *presets]


def ranked(planner: Planner, model: str, given: DrawnPlan, times: StepTimes) -> RankedPlan:
    """A plan with its times by the cost model and by the simulator, and as measured."""
    plan, training = given.plan, planner.training
    predicted = Given.with_sequences(planner, plan.sequences).result.seconds
    step = simulate_step(plan, training.batch, training.positions, training.cluster, DTYPE)
    return RankedPlan(model, given.name, plan.sequences, predicted, float(step.seconds), times)


def scored(model: RankedModel, plans: Sequence[RankedPlan]) -> list[BenchRow]:
    """The plans, the fastest first, and their scores; the named ones come first in `plans`."""
    drawn_plans = plans[len(NAMED) :]
    predicted, simulated, measured, cpu = (
        [getattr(plan, name) for plan in drawn_plans]
        for name in ("predicted", "simulated", "measured", "cpu")
    )
    odd, even = ([median(plan.times.wall[half::2]) for plan in drawn_plans] for half in (0, 1))
    ours, plain = plans[0], plans[1]
    scores = RankingScores(
        model=model.name,
        parameters=model.config.parameters,
        tokens=model.batch * model.config.context,
        tau=tau_interval(predicted, measured),
        simulated_tau=tau_interval(simulated, measured),
        cpu_tau=kendall(predicted, cpu),
        repeated_tau=kendall(odd, even),
        regret=regret(least(predicted), measured),
        overall_regret=regret(0, [plan.measured for plan in plans]),
        repeated_regret=regret(least(odd), even),
        blind_regret=blind_regret(measured),
        error=error(predicted, measured),
        constant_error=constant_error(measured),
        of_megatron=(ours.measured / plain.measured, ours.predicted / plain.predicted),
    )
    columns = [sorted(getattr(plan, name) for plan in plans)
               for name in ("predicted", "simulated", "measured")]  # fmt: skip
    placed = [
        replace(plan, places=tuple(1 + column.index(value) for column, value in zip(
            columns, (plan.predicted, plan.simulated, plan.measured), strict=True)))
        for plan in sorted(plans, key=lambda plan: plan.measured)
    ]  # fmt: skip
    return [*placed, scores]


def all_models(cluster: str, plans: int, rounds: int, seed: int) -> Iterator[BenchRow]:
    """Profile the machine unless a cluster is given, draw plans, measure and predict them."""
    text = Path(cluster).read_text(encoding="utf-8") if cluster else profiled()
    machine = read_cluster(text)
    yield ProfileRow(text, not cluster)
    for model in MODELS:
        planner = planner_of(model, machine)
        given = [*named(model, planner), *drawn(model, planner, plans, seed)]
        asked = [one.plan for one in given]
        times = on_ranks(
            RANKS, "benchmarks.predicted_and_measured:measure", asked, rounds, as_batch=True
        )
        yield from scored(model, [ranked(planner, model.name, one, StepTimes(taken.wall, taken.cpu))
                                  for one, taken in zip(given, times, strict=True)])  # fmt: skip


def predicted_and_measured(
    cluster: str = "", plans: int = 30, rounds: int = 11, seed: int = SEED
) -> Iterator[Case]:
    for name, value in (("plans", plans), ("rounds", rounds)):
        if value < 2:
            raise ValueError(f"--{name}: expected 2 or more, got {value}")
    yield "all models", partial(all_models, cluster, plans, rounds, seed)


if __name__ == "__main__":
    bench(predicted_and_measured)
