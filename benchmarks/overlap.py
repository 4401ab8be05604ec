"""Prints what chunks of transfers save in a simulated step, and how their number is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.transfer_pairs import TRANSFERS, Choice, PairCase, chosen, generated
from primepar.api.drawings import in_readable_unit
from primepar.files import write_text
from primepar.models.sizes import find_model
from primepar.pictures.timeline import timeline_svg
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.step import AskedChunks, simulate_step
from primepar.schedule.events import communication

DEVICES = 8
METHODS = ("megatron", "megatron-sp")
CHUNKS: tuple[AskedChunks, ...] = (None, 1, 4, "auto")
DRAWN = {"whole": 0, "chunks": 1}
"""Name of a picture -> chunks of the part of one device; 0 is the whole all-gather."""


class SimulatedStep(NamedTuple):
    """One simulated step: milliseconds, and the hidden share of the communication of rank 0."""

    method: str
    chunks: str
    step: float
    computing: float
    communicating: float
    hidden: float


def steps(model: str, cluster: str, batch: int) -> Iterator[SimulatedStep]:
    """Simulate a step of a published model under each method, in several numbers of chunks."""
    config, machine = find_model(model), load_cluster(cluster)
    dtype = next(iter(machine.rates))
    for method in METHODS:
        plan = preset_plan(method, config, DEVICES)
        for chunks in CHUNKS:
            run = simulate_step(plan, batch, config.context, machine, dtype, chunks=chunks)
            first = communication(run.events)[0]
            yield SimulatedStep(
                method,
                "whole" if chunks is None else str(chunks),
                1e3 * float(run.seconds),
                1e3 * float(run.computing[0]),
                1e3 * first.total,
                first.share,
            )


def step_lines(rows: list[SimulatedStep]) -> Iterator[str]:
    """The rows as a table; `saved` is the time of whole transfers over this one."""
    yield "method       chunks  step, ms  computing, ms  communicating, ms  hidden  times faster"
    whole = {row.method: row.step for row in rows if row.chunks == "whole"}
    for row in rows:
        yield (
            f"{row.method:11}  {row.chunks:>6}  {row.step:8.1f}  {row.computing:13.1f}"
            f"  {row.communicating:17.1f}  {row.hidden:6.1%}  {whole[row.method] / row.step:12.3f}"
        )


def choice_lines(choices: list[Choice]) -> Iterator[str]:
    """A line for each transfer: how often the choice is the fastest, and the mean slow-downs."""
    yield "transfer        pairs  fastest chosen  chosen  at most  whole  always 1  always 4"
    for transfer in TRANSFERS:
        rows = [choice for choice in choices if choice.case.transfer == transfer]
        ratios = [row.ratio(row.chosen) for row in rows]
        fastest = sum(ratio < 1 + 1e-9 for ratio in ratios)
        constant = "".join(
            f"{mean(row.ratio(chunks) for row in rows):>{width}.3f}"
            for chunks, width in ((0, 7), (1, 10), (4, 10))
        )
        yield (
            f"{transfer:14}  {len(rows):5}  {fastest:14}  {mean(ratios):6.4f}  {max(ratios):7.4f}"
            f"{constant}"
        )


def draw(folder: Path) -> dict[Path, float]:
    """Draw an all-gather and its product on four devices, whole and as a ring.

    Returns the files, each with the simulated microseconds.

    The product is a quarter of fc1 of OPT-6.7B, for 8,192 tokens on four of eight H200.
    """
    case = PairCase("all_gather", 4, 8192, 4096, 4096, load_cluster("h200-8"))
    paths = {}
    for name, chunks in DRAWN.items():
        run = case.run(chunks)
        events, unit = in_readable_unit(run.events, float(run.seconds))
        path = folder / f"overlap-{name}.svg"
        paths[path] = 1e6 * float(run.seconds)
        write_text(path, timeline_svg(events, unit=unit))
    return paths


def main() -> None:
    """Print both tables, and draw the pictures where a folder is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="opt-6.7b", help="a published model")
    parser.add_argument("--cluster", default="h200-8", help="a cluster of at least 8 devices")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="sequences of a step")
    parser.add_argument("--pairs", type=int, default=300, metavar="N", help="generated pairs")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw two pictures there")
    options = parser.parse_args()
    if options.pictures is not None:
        for path, time in draw(options.pictures).items():
            print(f"wrote {path}: {time:.0f} us")
        return
    print("\n".join(step_lines(list(steps(options.model, options.cluster, options.batch)))))
    print("\n".join(["", *choice_lines([chosen(case) for case in generated(options.pairs)])]))


if __name__ == "__main__":
    main()
