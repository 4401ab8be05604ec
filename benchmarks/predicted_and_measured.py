"""Predicted next to measured training steps of plans drawn at random, by rank and by seconds.

Four processes of this machine, which is profiled first unless --cluster names one. For each of
three models, plans are drawn by a rule that looks at no time (`ranking/draw.py`), and next to them
the planner's own choice and Megatron's are measured. The steps of all plans of a model alternate in
a random order, so that load on the machine affects all of them. The median of the steps counts.

    python -m benchmarks.predicted_and_measured [--out FILE] [--cluster FILE] [--plans N]
        [--rounds N] [--seed N]
    python -m docs.render_ranking FILE
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import msgspec

from benchmarks.executor.machine import LoadClock
from benchmarks.ranking.draw import MODELS, RANKS, DrawnPlan, RankedModel, drawn
from benchmarks.ranking.measure import StepTimes, measured, profiled
from benchmarks.ranking.report import text_lines
from benchmarks.ranking.results import NAMED, PLANNED, ModelRanking, RankedPlan, RankingRun
from primepar.errors import PrimeParError
from primepar.files import replace
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import Cluster, read_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given
from primepar.plan.search.search import search
from primepar.plan.simulator.step import simulate_step

SEED = 2024
"""Of the plans that are scored; no constant of the cost model was chosen by looking at them."""
DTYPE = "float32"


def planner_of(model: RankedModel, cluster: Cluster) -> Planner:
    """The planner whose space the plans are drawn from, and whose choice is scored."""
    return Planner.of(model.config, cluster, RANKS, model.batch, DTYPE, "all")


def named(model: RankedModel, planner: Planner) -> list[DrawnPlan]:
    """The planner's own choice, and Megatron's plans."""
    presets = [DrawnPlan(name, preset_plan(name, model.config, RANKS, model.batch))
               for name in NAMED[1:]]  # fmt: skip
    return [DrawnPlan(PLANNED, search(planner).plan), *presets]


def ranked(planner: Planner, given: DrawnPlan, times: StepTimes) -> RankedPlan:
    """A plan with its times by the cost model and by the simulator, and as measured."""
    plan = given.plan
    seconds = Given.with_sequences(planner, plan.sequences).result.seconds
    return RankedPlan(given.name, plan.sequences, seconds, _simulated(planner, plan), times)


def _simulated(planner: Planner, plan: Plan) -> float:
    training = planner.training
    step = simulate_step(plan, training.batch, training.positions, training.cluster, DTYPE)
    return float(step.seconds)


def run(cluster_text: str | None, plans: int, rounds: int, seed: int) -> RankingRun:
    """Profile the machine unless a cluster is given, draw plans, measure and predict them."""
    clock, text = LoadClock(), cluster_text or profiled()
    cluster = read_cluster(text)
    planners = [planner_of(model, cluster) for model in MODELS]
    groups = [
        (named(model, planner), drawn(model, planner, plans, seed))
        for model, planner in zip(MODELS, planners, strict=True)
    ]
    times = measured([[given.plan for given in (*few, *many)] for few, many in groups], rounds)
    used = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    load = clock.stop(used)
    rankings = []
    for model, planner, (few, many), taken in zip(MODELS, planners, groups, times, strict=True):
        rows = [ranked(planner, given, steps) for given, steps in
                zip((*few, *many), taken, strict=True)]  # fmt: skip
        rankings.append(ModelRanking(model.name, model.config.parameters,
                                     model.batch * model.config.context,
                                     rows[: len(few)], rows[len(few) :]))  # fmt: skip
    return RankingRun(load, text, cluster_text is None, seed, rounds, rankings)


def main() -> None:
    """Print the report, and write the run with --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the run as JSON")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="instead of a profile")
    parser.add_argument("--plans", type=int, default=30, metavar="N", help="drawn for each model")
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="steps of each plan")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="of the draw")
    options = parser.parse_args()
    for name, least in (("plans", 2), ("rounds", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: expected {least} or more, got {getattr(options, name)}")
    try:
        text = options.cluster and options.cluster.read_text(encoding="utf-8")
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
        result = run(text, options.plans, options.rounds, options.seed)
    except (PrimeParError, OSError) as error:
        parser.error(str(error))
    if options.out:
        replace(options.out, msgspec.json.format(msgspec.json.encode(result)))
    print("\n".join(text_lines(result)))


if __name__ == "__main__":
    main()
