"""What do chunks of transfers save in a simulated step, and how well is their number chosen?

First a step of a published model on `--cluster`, under each method, in several numbers of chunks;
then products and transfers of random sizes on random clusters (`transfer_pairs`), each simulated in
every number of chunks that the cost model compares. Last an all-gather and its product on four
devices, whole and as a ring, which the pictures show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from statistics import mean
from typing import Annotated

from benchmarks.bench import BenchRow, BenchRun, Case, Column, bench
from benchmarks.transfer_pairs import Choice, PairCase, chosen, generated
from primepar.api.drawings import in_readable_unit
from primepar.models import ModelConfig
from primepar.models.sizes import find_model
from primepar.pictures.timeline import timeline_svg
from primepar.plan import preset_plan
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import AskedChunks, simulate_step
from primepar.schedule.events import communication

DEVICES = 8
METHODS = ("megatron", "megatron-sp")
CHUNKS: tuple[AskedChunks, ...] = (None, 1, 4, "auto")
DRAWN = {"overlap-whole.svg": 0, "overlap-chunks.svg": 1}
"""Name of a picture -> chunks of the part of one device; 0 is the whole all-gather."""


class SimulatedStep(BenchRow, frozen=True):
    """One simulated step: milliseconds, and the hidden share of the communication of rank 0."""

    method: Annotated[str, Column("method")]
    chunks: Annotated[str, Column("chunks")]
    step: Annotated[float, Column("step, ms", ".1f")]
    computing: Annotated[float, Column("computing, ms", ".1f")]
    communicating: Annotated[float, Column("communicating, ms", ".1f")]
    hidden: Annotated[float, Column("hidden", ".1%")]
    faster: Annotated[float, Column("times faster", ".3f")]
    """The time with whole transfers over this one."""


class ChoiceRow(BenchRow, frozen=True):
    """How often the choice for a transfer is the fastest, and mean times over the fastest."""

    transfer: Annotated[str, Column("transfer")]
    pairs: Annotated[int, Column("pairs")]
    fastest: Annotated[int, Column("fastest chosen")]
    chosen: Annotated[float, Column("chosen", ".4f")]
    worst: Annotated[float, Column("at most", ".4f")]
    whole: Annotated[float, Column("whole", ".3f")]
    always_1: Annotated[float, Column("always 1", ".3f")]
    always_4: Annotated[float, Column("always 4", ".3f")]


class DrawnRow(BenchRow, frozen=True):
    """A picture, and the simulated microseconds that it shows."""

    picture: Annotated[str, Column("picture")]
    microseconds: Annotated[float, Column("us", ".0f")]


def steps(method: str, config: ModelConfig, machine: Cluster, batch: int) -> list[SimulatedStep]:
    """Simulate a step in several numbers of chunks, whole transfers first."""
    plan, dtype = preset_plan(method, config, DEVICES), next(iter(machine.rates))
    rows: list[SimulatedStep] = []
    for chunks in CHUNKS:
        run = simulate_step(plan, batch, config.context, machine, dtype, chunks=chunks)
        first, step = communication(run.events)[0], 1e3 * float(run.seconds)
        rows.append(SimulatedStep(
            method, "whole" if chunks is None else str(chunks), step,
            1e3 * float(run.computing[0]), 1e3 * first.total, first.share,
            rows[0].step / step if rows else 1.0,
        ))  # fmt: skip
    return rows


def choice_rows(choices: Iterable[Choice]) -> list[ChoiceRow]:
    """Compare the chosen numbers of chunks with all others, by kind of transfer."""
    by_transfer: dict[str, list[Choice]] = {}
    for choice in choices:
        by_transfer.setdefault(choice.case.transfer, []).append(choice)
    rows = []
    for transfer, some in by_transfer.items():
        ratios = [choice.ratio(choice.chosen) for choice in some]
        always = (mean(choice.ratio(chunks) for choice in some) for chunks in (0, 1, 4))
        fastest = sum(ratio < 1 + 1e-9 for ratio in ratios)
        rows.append(ChoiceRow(transfer, len(some), fastest, mean(ratios), max(ratios), *always))
    return rows


def drawn(chunks: int) -> Simulation:
    """A quarter of fc1 of OPT-6.7B, for 8,192 tokens on four of eight H200."""
    return PairCase("all_gather", 4, 8192, 4096, 4096, load_cluster("h200-8")).run(chunks)


def pictures(run: BenchRun[BenchRow] | None = None) -> dict[str, str]:
    """The timelines of the all-gather, whole and as a ring."""
    made = {}
    for name, chunks in DRAWN.items():
        simulated = drawn(chunks)
        events, unit = in_readable_unit(simulated.events, float(simulated.seconds))
        made[name] = timeline_svg(events, unit=unit)
    return made


def overlap(
    model: str = "opt-6.7b", cluster: str = "h200-8", batch: int = 4, pairs: int = 300
) -> Iterator[Case]:
    config, machine = find_model(model), load_cluster(cluster)
    for method in METHODS:
        yield method, partial(steps, method, config, machine, batch)
    yield f"{pairs} pairs", lambda: choice_rows(map(chosen, generated(pairs)))
    yield (
        "pictures",
        lambda: [
            DrawnRow(name, 1e6 * float(drawn(chunks).seconds)) for name, chunks in DRAWN.items()
        ],
    )


if __name__ == "__main__":
    bench(overlap, pictures=pictures)
