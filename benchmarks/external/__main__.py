"""Published iteration times and memory next to the planner's: `python -m benchmarks.external`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean

from benchmarks.external.memory import LayerMemory, layer_memory
from benchmarks.external.predicted import predicted
from benchmarks.external.published import PEAK, RUNS, TrainingRun
from primepar.plan.search.splits import Pipeline


def main() -> None:
    """Print both tables, with mean and worst errors."""
    priced = [(run, predicted(run)) for run in RUNS]
    print("\n".join([*time_lines(priced), "", *memory_lines(layer_memory())]))


def time_lines(priced: Sequence[tuple[TrainingRun, Pipeline]]) -> Iterator[str]:
    """Seconds of an iteration, and the errors of the planner and of two constants."""
    yield (f"{'paper':12} {'run':14} {'t':>2} {'p':>3} {'d':>3} {'b':>2} {'v':>2} "
           f"{'bubble':>7} {'published s':>12} {'predicted s':>12} {'error':>7}")  # fmt: skip
    for run, pipeline in priced:
        stages, replicas, parts = pipeline.split
        yield (
            f"{run.paper:12} {run.name:14} {parts:>2} {stages:>3} {replicas:>3} "
            f"{pipeline.size:>2} {pipeline.options.chunks:>2} {pipeline.bubble:>7.1%} "
            f"{run.seconds:>12.2f} {pipeline.seconds:>12.2f} "
            f"{pipeline.seconds / run.seconds - 1:>+7.1%}"
        )
    yield ""
    errors = [pipeline.seconds / run.seconds - 1 for run, pipeline in priced]
    yield _summary("predicted", errors)
    for paper in dict.fromkeys(run.paper for run, _ in priced):
        of_paper = [error for error, (run, _) in zip(errors, priced, strict=True)
                    if run.paper == paper]  # fmt: skip
        yield _summary(f"  {paper}", of_paper)
    runs = [run for run, _ in priced]
    for name, operations in CONSTANTS.items():
        part, constant = best_constant(runs, operations)
        yield _summary(f"a constant {part:.1%} of the peak, {name}", constant)


CONSTANTS: dict[str, Callable[[TrainingRun], float]] = {
    "operations of the model": lambda run: run.operations,
    "operations executed": lambda run: run.executed,
}
"""What a constant predictor divides by a part of the peak."""


def best_constant(
    runs: Sequence[TrainingRun], operations: Callable[[TrainingRun], float]
) -> tuple[float, list[float]]:
    """The part of the peak with the least mean error over these very runs, and the errors."""
    parts = [operations(run) / (run.seconds * run.devices * PEAK) for run in runs]
    tried = {
        part: [run.seconds_at(operations(run), part) / run.seconds - 1 for run in runs]
        for part in parts
    }
    return min(tried.items(), key=lambda known: mean(map(abs, known[1])))


def _summary(name: str, errors: Sequence[float]) -> str:
    worst = max(errors, key=abs)
    return f"{name}: {mean(map(abs, errors)):.1%} in the mean, {worst:+.1%} at worst"


def memory_lines(rows: Sequence[LayerMemory]) -> Iterator[str]:
    """Bytes of a layer's activations over s b h."""
    yield (f"{'model':6} {'configuration':28} {'formula':>8} {'masks':>7} {'norms':>7} "
           f"{'planner':>8} {'error':>7} {'rest':>7}")  # fmt: skip
    for row in rows:
        rest = row.counted / (row.formula - row.masks + row.norms) - 1
        yield (
            f"{row.name:6} {row.configuration:28} {row.formula:>8.3f} {-row.masks:>7.3f} "
            f"{row.norms:>+7.3f} {row.counted:>8.3f} {row.counted / row.formula - 1:>+7.1%} "
            f"{rest:>+7.2%}"
        )


if __name__ == "__main__":
    main()
