"""The integer program in `python -m benchmarks plan`: the least redundancy of a block."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.searches import BATCH, PAPER, cluster_of, in_rounds
from primepar.commands.progress import Tick
from primepar.models.sizes import MODELS

MOST = 32
"""Most devices of a block whose program is measured."""


class RedundancyRow(Struct, frozen=True):
    """One integer program over the paper's space: for the redundant memory of one block."""

    model: str
    devices: int
    seconds: float
    """Of costs, of options that are left out, and of the solver, median."""
    variables: int
    """Of the program that the solver gets."""
    redundant: float
    """Bytes of a device."""
    proved: bool
    """Whether the solver proved that no plan has less."""
    gap: float
    """What may be saved at most, as a share."""


def measure_redundancy(devices: list[int], tick: Tick) -> list[RedundancyRow]:
    """Seconds to find the least redundancy of a block of each model, in rounds."""
    cases = [(model, count) for count in devices for model in PAPER]
    taken = in_rounds(cases, _solve, tick)
    return [replace(row, seconds=seconds) for row, seconds in taken.values()]


def _solve(name: str, devices: int) -> tuple[RedundancyRow, float]:
    from primepar.plan.redundancy.least_redundancy import least_of_block

    start = perf_counter()
    found = least_of_block(MODELS[name], cluster_of(devices), devices, BATCH)
    taken = perf_counter() - start
    row = RedundancyRow(name, devices, taken, found.columns, found.redundant, found.proved,
                        found.gap)  # fmt: skip
    return row, taken


def redundancy_lines(rows: list[RedundancyRow]) -> Iterator[str]:
    """The table."""
    yield "block        devices  seconds  variables  MiB redundant  proved    gap"
    for row in rows:
        proved = "yes" if row.proved else "no"
        yield (
            f"{row.model:11}  {row.devices:7,}  {row.seconds:7.3f}  {row.variables:9,}"
            f"  {row.redundant / 2**20:13,.1f}  {proved:>6}  {row.gap:5.2%}"
        )
