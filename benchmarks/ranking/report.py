"""Rows of a run: the plans of every model, the fastest first, and scores next to yardsticks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.ranking.results import (
    LARGEST_REGRET,
    LEAST_TAU,
    MEGATRON,
    PLANNED,
    ModelRanking,
    RankingRun,
)

PLAN_HEADER = ("plan", "predicted ms", "#", "simulated ms", "#", "measured ms", "#", "CPU ms")
SCORE_HEADER = ("model", "tau, 95% interval", "the simulator's", "of CPU", "repeated", "regret",
                "of the planner's plan", "repeated", "blind", "error", "a constant's",
                "targets")  # fmt: skip


def ranks(values: Sequence[float]) -> list[int]:
    """The rank of each value among all, 1 for the least."""
    order = sorted(values)
    return [1 + order.index(value) for value in values]


def plan_rows(model: ModelRanking) -> list[list[str]]:
    """A row for each plan, the fastest first, with its rank by each of the three times."""
    plans = [*model.named, *model.drawn]
    columns = [[getattr(plan, name) for plan in plans]
               for name in ("predicted", "simulated", "measured")]  # fmt: skip
    ranked = [ranks(values) for values in columns]
    rows = []
    for number in sorted(range(len(plans)), key=columns[-1].__getitem__):
        cells = [cell for values, order in zip(columns, ranked, strict=True)
                 for cell in (f"{1e3 * values[number]:,.1f}", str(order[number]))]  # fmt: skip
        rows.append([plans[number].name, *cells, f"{1e3 * plans[number].cpu:,.1f}"])
    return rows


def score_row(model: ModelRanking) -> list[str]:
    """The scores of a model."""
    scores = model.scores
    shares = (scores.regret, scores.overall_regret, scores.repeated_regret, scores.blind_regret,
              scores.error, scores.constant_error)  # fmt: skip
    taus = (str(scores.tau), str(scores.simulated_tau), f"{scores.cpu_tau:+.2f}",
            f"{scores.repeated_tau:+.2f}")  # fmt: skip
    cells = (f"{share:.0%}" for share in shares)
    return [model.model, *taus, *cells, "met" if scores.is_met else "missed"]


def megatron_line(model: ModelRanking) -> str:
    """How the planner's own plan compares with Megatron's, as measured and as predicted."""
    times = {plan.name: plan for plan in model.named}
    ours, plain = times[PLANNED], times[MEGATRON]
    return (
        f"{model.model}: the planner's plan takes {ours.measured / plain.measured:.2f} of plain "
        f"Megatron's time; predicted was {ours.predicted / plain.predicted:.2f}."
    )


def headline(run: RankingRun) -> str:
    """What was run, where, and under which load."""
    load = run.load
    versions = ", ".join(f"{name} {version}" for name, version in load.versions.items())
    source = "the machine profiled in the same run" if run.profiled else "a given cluster file"
    return (
        f"{load.date}, {load.machine}, {versions}; {source}; seed {run.seed}, {run.rounds} rounds; "
        f"load {load.load_before:.1f} before, {load}"
    )


def text_lines(run: RankingRun) -> Iterator[str]:
    """The whole report as plain text."""
    yield headline(run)
    for model in run.models:
        yield ""
        yield f"{model.model}: {model.parameters:,} parameters, {model.tokens:,} tokens a step"
        yield from _aligned([PLAN_HEADER, *plan_rows(model)])
    yield ""
    yield from _aligned([SCORE_HEADER, *map(score_row, run.models)])
    yield f"Targets: tau at least {LEAST_TAU}, both regrets at most {LARGEST_REGRET:.0%}."
    yield from map(megatron_line, run.models)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells])
