"""`primepar simulate`: how long a program takes on a cluster, and what its devices do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from primepar.api.drawings import in_readable_unit, timeline_drawing
from primepar.api.questions import simulate_target
from primepar.api.target import COMMAND_LINE, OF_A_PLAN, AskedTarget, TrainingStep
from primepar.commands.amounts import amount, amounts
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    ShapeOption,
    SideOption,
    file_option,
    json_text,
)
from primepar.commands.progress import progress
from primepar.errors import ConfigError, TargetError
from primepar.files import check_ending, write_bytes, write_text
from primepar.passes.chunk_transfers import MOST_CHUNKS
from primepar.pictures.timeline import chrome_trace, timeline_svg, timeline_text
from primepar.plan import Plan
from primepar.plan.cluster import Cluster, load_cluster, shipped_clusters
from primepar.plan.simulator.chakra import chakra_trace
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import AskedChunks, PeriodSimulation, simulate_period


def simulate(
    target: PlanTargetArgument,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help=f"Cluster file (TOML), or a preset: {', '.join(shipped_clusters())}.",
        ),
    ],
    side: SideOption = None,
    shape: ShapeOption = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of all elements.",
            show_default="the cluster's first",
        ),
    ] = None,
    model: ModelOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = None,
    positions: PositionsOption = None,
    average_every: Annotated[
        int | None,
        typer.Option(
            metavar="H",
            help="Replicas of a plan step by themselves, averaged after every H-th step.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Cut the transfers of a plan's step, and the products next to them, into chunks.",
            show_default="whole transfers",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        file_option(
            "Write the timeline (.svg, .txt), a Chrome trace (.json) or Chakra traces (.et).",
            "--output",
            "-o",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate a program on a cluster: time, memory, bytes on each link, and a timeline.

    The program is the one that `primepar verify` proves and `primepar train` executes. Of a plan it
    is a whole training step.
    """
    check_ending("--output", output, svg="the picture", json="the trace", txt="the text",
                 et="a Chakra trace for each rank")  # fmt: skip
    making = Making(model, devices, batch, positions)
    resolved, machine = making.resolved(target, step=True), load_cluster(cluster)
    kind, asked = dtype or next(iter(machine.rates)), AskedTarget(target, resolved, COMMAND_LINE)
    machine.rate(kind)
    if average_every is not None:
        if not isinstance(resolved, Plan):
            raise TargetError(
                f"--average-every: expected a plan, whose replicas are averaged, got {target}: "
                "leave --average-every out"
            )
        if output is not None:
            raise TargetError(
                "--output: expected none together with --average-every, which simulates two "
                f"programs, got {output}: leave one of the two out"
            )
        asked.refuse(OF_A_PLAN, side=side, shape=shape)
        whole = making.step(resolved)
        averaged = simulate_period(
            resolved, whole.batch, whole.positions, machine, kind, average_every, _chunks(chunks)
        )
        summary = _period_summary(target, machine, kind, averaged, whole)
        text = "\n".join(_period_lines(target, machine, kind, averaged, whole)) + "\n"
        typer.echo(json_text(summary) if json else text, nl=False)
        return
    count = _chunks(chunks)
    all_layers = output is not None and output.suffix == ".et"
    with progress() as tick:
        run, step = simulate_target(
            asked, machine, kind, side, shape, batch, positions, count, all_layers, tick
        )
    summary = _summary(target, machine, kind, run, step)
    written = [] if output is None else _write(run, output)
    if json:
        typer.echo(json_text(summary), nl=False)
        return
    typer.echo("\n".join(_lines(target, machine, kind, run, step)))
    for path in written:
        typer.echo(f"wrote {path}")
    if output is None:
        drawing = timeline_drawing(*in_readable_unit(run.events, float(run.seconds)))
        typer.echo("\n" + drawing.text, nl=False)


def _chunks(text: str | None) -> AskedChunks:
    """Read `--chunks`. Raises `ConfigError`."""
    if text is None or text == "auto":
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit() and 0 < int(text) <= MOST_CHUNKS:
        return int(text)
    raise ConfigError(
        f"--chunks: expected auto or a number from 1 to {MOST_CHUNKS}, got {text!r}: "
        "write --chunks auto"
    )


def _write(run: Simulation, output: Path) -> list[Path]:
    """Write the output, or `name.0.et` and so on for every rank; returns the files."""
    if output.suffix != ".et":
        write_text(output, _drawn(run, output.suffix))
        return [output]
    traces = {
        output.with_suffix(f".{rank}.et"): chakra_trace(run.work, rank)
        for rank in range(len(run.peak))
    }
    for path, trace in traces.items():
        write_bytes(path, trace)
    return [*traces]


def _drawn(run: Simulation, suffix: str) -> str:
    if suffix == ".json":
        return json_text(chrome_trace(run.events))
    events, unit = in_readable_unit(run.events, float(run.seconds))
    return timeline_svg(events, unit=unit) if suffix == ".svg" else timeline_text(events, 160, unit)


def _summary(
    target: str, cluster: Cluster, dtype: str, run: Simulation, step: TrainingStep | None
) -> dict[str, object]:
    """What `--json` prints; bytes, seconds and operations."""
    summary: dict[str, object] = {"target": target, "cluster": cluster.name, "dtype": dtype}
    if step is not None:
        tokens = step.batch * step.positions
        summary["step"] = {"batch": step.batch, "positions": step.positions,
                        "tokens_per_second": tokens / run.seconds,
                        "layers_left_out": run.left_out}  # fmt: skip
    return {
        **summary,
        "ranks": len(run.peak),
        "seconds": run.seconds,
        "operations": run.operations,
        "computing": run.computing,
        "communicating": [float(rank.total) for rank in run.communication],
        "hidden": [rank.share for rank in run.communication],
        "sent": [float(count) for count in run.sent],
        "peak": run.peak,
        "fits": max(run.peak) <= cluster.memory,
        "traffic": [
            {"level": way.level, "first": way.first, "devices": way.devices,
             "way": "out" if way.out else "in", "bytes": float(way.bytes), "busy": way.busy}
            for way in run.traffic
        ],
    }  # fmt: skip


def _lines(
    target: str, cluster: Cluster, dtype: str, run: Simulation, step: TrainingStep | None
) -> Iterator[str]:
    devices = f"{len(run.peak)} device{'s' * (len(run.peak) != 1)}"
    what = f", {step}" if step else ""
    yield f"{target} on {devices} of {cluster.name}, {dtype}{what}"
    yield f"  time       {amount(run.seconds, 's')}"
    if run.left_out:
        yield (
            f"  layers     {run.left_out} are not simulated: their time follows from that of equal "
            "ones, and they are not in the timeline"
        )
    if step is not None:
        tokens = step.batch * step.positions / run.seconds
        yield f"  tokens     {tokens:.4g} per second"
    total = sum(run.operations)
    if total:
        rate = cluster.rate(dtype).achieved * len(run.peak)
        share = total / run.seconds / rate
        yield (f"  operations {amount(total, '')}, {amount(total / run.seconds, '')} per second, "
               f"{share:.1%} of what products achieve")  # fmt: skip
    yield f"  computing  {amounts(run.computing, 's')} per device"
    moving = run.communication
    if any(rank.total for rank in moving):
        shares = [rank.share for rank in moving]
        low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
        yield (f"  transfers  {amounts([float(rank.total) for rank in moving], 's')} per device, "
               f"{low if low == high else f'{low} to {high}'} hidden by computing")  # fmt: skip
    yield f"  sent       {amounts([float(count) for count in run.sent], 'B')} per device"
    yield f"  peak       {amounts(run.peak, 'B')} per device, {_fit(max(run.peak), cluster.memory)}"
    for level, link in enumerate(cluster.links):
        ways = [way for way in run.traffic if way.level == level]
        if ways:
            bytes_ = sum(way.bytes for way in ways if way.out)
            most = max(ways, key=lambda way: way.busy)
            yield (
                f"  links      {amount(float(bytes_), 'B')} within {link.joins} devices, the "
                f"busiest {_share(most.busy, run.seconds)} of the time"
            )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def _fit(peak: int, memory: float) -> str:
    if peak <= memory:
        return f"of {amount(memory, 'B')}"
    return f"{amount(peak - memory, 'B')} more than its {amount(memory, 'B')}"


def _period_summary(
    target: str, cluster: Cluster, dtype: str, run: PeriodSimulation, step: TrainingStep
) -> dict[str, object]:
    """What `--json` prints: seconds and bytes, of a step with its share of an average."""
    return {
        "target": target,
        "cluster": cluster.name,
        "dtype": dtype,
        "step": {"batch": step.batch, "positions": step.positions,
                 "tokens_per_second": step.batch * step.positions / run.seconds},
        "replicas": run.replicas,
        "period": run.period,
        "seconds": run.seconds,
        "sent": float(run.sent),
        "local_step": {"seconds": run.local.seconds, "sent": float(max(run.local.sent))},
        "average": {"seconds": run.average.seconds, "sent": float(max(run.average.sent))},
    }  # fmt: skip


def _period_lines(
    target: str, cluster: Cluster, dtype: str, run: PeriodSimulation, step: TrainingStep
) -> Iterator[str]:
    """The same as text."""
    devices = len(run.local.peak)
    yield f"{target} on {devices} devices of {cluster.name}, {dtype}, {step}"
    every = "step" if run.period == 1 else f"{run.period} steps"
    yield f"  {run.replicas} replicas, averaged after every {every}"
    for name, part in (("local step", run.local), ("average", run.average)):
        sent = amount(float(max(part.sent)), "B")
        yield f"  {name:10} {amount(part.seconds, 's')}, {sent} sent per device"
    yield f"  per step   {amount(run.seconds, 's')}, {amount(float(run.sent), 'B')} sent per device"
    yield f"  tokens     {step.batch * step.positions / run.seconds:.4g} per second"
