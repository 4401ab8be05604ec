"""The simulated step of a plan with many equal layers: four of each run of them, then the others.

Equal layers do the same one after another. After the first ones each starts as long after the one
before it as that one after its own. So each layer that is left out takes the time from the second
to the third of a run: in forward, in backward, and in the updates. Example, of a run in which 70
layers are left out: the third starts 9 ms after the second in forward, 22 ms before it in backward,
and is updated 1 ms after it. The 70 layers take 70 times 32 ms.

Sums of gradients that run during backward may queue up over many layers, or wait for memory that
fewer layers leave free. With these the time is near that of the whole step, and not equal.

Sums, of bytes, operations and seconds, count the second layer for all that are left out. The peak
is that of `accounting`. Only the layers that are simulated have events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import mean

from msgspec import structs

from primepar.operators.step import lower_step
from primepar.passes import PASSES, apply
from primepar.plan.accounting.account import UNIFORM, account_of, step_options
from primepar.plan.accounting.equal_layers import Shortened, ShortRun
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline_layout import layer_of
from primepar.plan.plan import Plan
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import simulate_step
from primepar.plan.simulator.work import Work
from primepar.schedule.events import Event
from primepar.schedule.hidden_time import Repeat
from primepar.schedule.program import Compute
from primepar.without_cycles import without_cycles

MOST_WHOLE = 256
"""Layers times devices that are simulated whole: their program is there within seconds."""
Times = dict[int | None, int]
"""Layer of a short plan -> how often it counts, if not once."""
Starts = dict[tuple[str, int], float]
"""When each phase of a layer starts, for its first, second and further times."""


def is_large(plan: Plan) -> bool:
    """Whether the step of a plan is simulated without many of its equal layers."""
    return plan.model.layers * plan.ranks > MOST_WHOLE and bool(Shortened.of(plan).runs)


def simulate_equal_layers(
    plan: Plan, batch: int, positions: int, cluster: Cluster, dtype: str,
    tick: Callable[[str], object] = str,
) -> Simulation:  # fmt: skip
    """Simulate a step as `simulate_step` does, but few of many equal layers.

    `tick` is called with the name of the next part of the work. Raises what `simulate_step` raises.
    """
    short = Shortened.of(plan)
    times: Times = {run.alike[0]: 1 + run.left_out for run in short.runs}
    with without_cycles():
        tick("program of a step")
        options = step_options(dtype)
        program = lower_step(short.plan, batch, positions, options=options, passes=UNIFORM)
        tick("memory")
        account, _ = account_of(short, program, dtype)
        tick("passes")
        program = apply(program, PASSES.keys() - set(UNIFORM))
        tick("simulation")
        run = simulate_step(short.plan, batch, positions, cluster, dtype, program=program,
                            times=lambda block: times.get(layer_of(block), 1))  # fmt: skip
    repeats = tuple(_repeats(run.events, short.runs, plan.ranks))
    sums = [_seconds_of_sums(run.work, rank, times) for rank in range(plan.ranks)]
    later = [sum(repeat.times * (repeat.end - repeat.start) for repeat in repeats
                 if repeat.rank == rank) for rank in range(plan.ranks)]  # fmt: skip
    return replace(
        run,
        seconds=run.seconds + mean(later) + max(sums),
        computing=[before + more for before, more in zip(run.computing, sums, strict=True)],
        peak=[*account.held],
        repeats=repeats,
        left_out=sum(run.left_out for run in short.runs),
    )


def _seconds_of_sums(work: Work, rank: int, times: Times) -> float:
    """Seconds that sums over all layers, as that of squared gradients, take for those left out."""
    seconds = 0.0
    for node in work.program.programs[rank]:
        if isinstance(node, Compute) and layer_of(node.accumulates) is None:
            more = tuple(block for block in node.reads
                         for _ in range(times.get(layer_of(block), 1) - 1))  # fmt: skip
            if more:
                longer = structs.replace(node, reads=node.reads + more)
                seconds += work.seconds(longer) - work.seconds(node)
    return seconds


def _repeats(events: Iterable[Event], runs: Iterable[ShortRun], ranks: int) -> Iterator[Repeat]:
    """Yield the time from the second to the third layer of every run, on every rank and way."""
    by_rank: list[dict[int, list[Event]]] = [{} for _ in range(ranks)]
    for event in events:
        layer = layer_of(event.phase)
        if layer is not None:
            by_rank[event.rank].setdefault(layer, []).append(event)
    for run in runs:
        for rank, layers in enumerate(by_rank):
            second, third = (_starts(layers.get(layer, ())) for layer in run.alike)
            for start, seconds in _ways(second, third):
                yield Repeat(rank, start, start + seconds, run.left_out)


def _starts(events: Iterable[Event]) -> Starts:
    """When every phase of a layer starts, in order."""
    starts, counts = Starts(), Counter[str]()
    for event in events:
        phase = event.phase.split(".", 2)[2]
        starts[phase, counts[phase]] = event.start
        counts[phase] += 1
    return starts


def _ways(second: Starts, third: Starts) -> Iterator[tuple[float, float]]:
    """Yield the start of each way through two layers, and the mean seconds between them.

    Ways are forward, backward, and the updates of the norms and of the rest. In backward the third
    layer comes before the second. A way ends where a phase of both is after the one before it.
    """
    ways: list[list[tuple[float, float]]] = []
    for place, start in second.items():
        if place in third:
            between = tuple(sorted((start, third[place])))
            if not ways or between[0] >= ways[-1][-1][1]:
                ways.append([])
            ways[-1].append((between[0], between[1]))
    for way in ways:
        yield way[0][0], mean(after - before for before, after in way)
