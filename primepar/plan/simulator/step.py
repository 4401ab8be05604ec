"""Simulation of training steps of a plan: of the same program that is verified and executed.

Steps of many equal layers are simulated with few of them. All that a run of equal layers adds to a
step grows with their number by the same amount, once there are several. So a step with four of them
and one with two give that of any number. Example: 4 layers take 60 ms and 2 take 40 ms, so that 20
layers take 60 + 16 / 2 x (60 - 40) = 220 ms. Bytes and operations are exact. The time is so where
both are bound by the same, the links or the computations of backward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from msgspec.structs import replace

from primepar.errors import ConfigError
from primepar.operators.averaging import lower_average
from primepar.operators.pipeline import on_ranks
from primepar.operators.step import lower_step
from primepar.passes import PASSES, apply
from primepar.passes.chunk_transfers import MOST_CHUNKS
from primepar.plan.cluster import Cluster
from primepar.plan.kernels import attention_of, phases_passing, step_options
from primepar.plan.plan import Plan
from primepar.plan.replicas import replicas_of
from primepar.plan.simulator.account import UNIFORM, Shortened, account_of
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule.events import Communication
from primepar.schedule.program import Group, Instruction, Program
from primepar.schedule.sharing import sharing
from primepar.without_cycles import without_cycles

MOST_WHOLE = 256
"""Layers times devices that are simulated whole: their program is there within seconds."""
AskedChunks = int | Literal["auto"] | None
"""A number of chunks, the choice of the cost model, or whole transfers."""


def simulate_step(
    plan: Plan,
    batch: int,
    positions: int,
    cluster: Cluster,
    dtype: str,
    fractions: bool = False,
    chunks: AskedChunks = None,
    program: Program | None = None,
    copies: int = 1,
) -> Simulation:
    """Simulate a step of `batch` sequences of `positions` tokens, as `lower_step` lowers it.

    With `chunks` transfers and the products next to them are cut into this many; "auto" takes the
    number with the least predicted time. With `program` that one is simulated, the step after
    further passes. Several `copies` run it at the same time, each on the next devices of the
    cluster. Raises what `lower_step` and `simulate` raise, and `ConfigError` for another number of
    chunks.
    """
    if chunks is not None and chunks != "auto" and not 1 <= chunks <= MOST_CHUNKS:
        raise ConfigError(
            f"chunks: expected auto or a number from 1 to {MOST_CHUNKS}, got {chunks}: write auto"
        )
    if program is None:
        options = step_options(dtype)
        if chunks is not None:
            from primepar.plan.simulator.chunks import chunk_count  # NumPy is slow to import

            chosen = chunk_count(cluster, dtype) if chunks == "auto" else chunks
            options = replace(options, chunks=chosen)
        program = lower_step(plan, batch, positions, options=options)
    fused = cluster.rate(dtype).attention is not None
    attention = attention_of(plan, batch, positions, causal=fused)
    passing = phases_passing(plan, program, cluster)
    together = copied_to_next_ranks(program, copies)
    return simulate(together, cluster, dtype, attention, fractions, passing)


def copied_to_next_ranks(program: Program, copies: int) -> Program:
    """Return a program in which `copies` of one run, each on the next ranks.

    Blocks keep their names, so it has a meaning only where the data of blocks is not looked at.
    """
    if copies == 1:
        return program
    programs = tuple(
        tuple(_shifted(node, copy * program.ranks) for node in nodes)
        for copy in range(copies)
        for nodes in program.programs
    )
    names = ("initial", "final", "traffic")
    lists = {name: value * copies for name in names if (value := getattr(program, name))}
    return replace(program, ranks=copies * program.ranks, programs=programs, **lists)


def _shifted(node: Instruction, first: int) -> Instruction:
    """Return an instruction with ranks counted from `first` on."""
    if isinstance(node, Group):
        return replace(node, body=tuple(_shifted(message, first) for message in node.body))
    return replace(node, **on_ranks(node, first.__add__))


def is_large(plan: Plan) -> bool:
    """Whether the step of a plan is simulated without many of its equal layers."""
    is_many = plan.model.layers * plan.ranks > MOST_WHOLE
    return is_many and bool(Shortened.of(plan).runs)


def simulate_equal_layers(
    plan: Plan,
    batch: int,
    positions: int,
    cluster: Cluster,
    dtype: str,
    tick: Callable[[str], object] = str,
) -> Simulation:
    """Simulate a step as `simulate_step` does, but few of many equal layers.

    Only the layers that are simulated have events. The peak is that of `accounting`. `tick` is
    called with the name of the next part of the work. Raises what `simulate_step` raises.
    """
    longest = Shortened.of(plan)
    if not longest.runs:
        with without_cycles(), sharing():
            return simulate_step(plan, batch, positions, cluster, dtype)
    shorter = [Shortened.of(plan, number) for number in range(len(longest.runs))]
    simulated = []
    with without_cycles(), sharing():
        for short in (longest, *shorter):
            tick(f"step of {short.plan.model.layers} layers")
            options = step_options(dtype)
            program = lower_step(short.plan, batch, positions, options=options, passes=UNIFORM)
            if short is longest:
                account, _ = account_of(short, program, dtype)
            program = apply(program, PASSES.keys() - set(UNIFORM))
            run = simulate_step(short.plan, batch, positions, cluster, dtype, program=program)
            simulated.append(run)
    whole, *fewer = simulated
    pairs = [Fraction(run.left_out, 2) for run in longest.runs]

    def grown(amount: Any, *with_fewer: Any) -> Any:
        """An amount of the whole step, by those of the simulated ones."""
        return amount + sum(
            times * (amount - less) for times, less in zip(pairs, with_fewer, strict=True)
        )

    def of_ranks(name: str) -> list[Any]:
        lists = (getattr(run, name) for run in simulated)
        return [grown(*amounts) for amounts in zip(*lists, strict=True)]

    traffic = [
        dataclasses.replace(
            ways[0],
            bytes=grown(*(way.bytes for way in ways)),
            busy=float(grown(*(way.busy for way in ways))),
        )
        for ways in zip(*(run.traffic for run in simulated), strict=True)
    ]
    communication = [
        Communication(*(float(grown(*amounts)) for amounts in zip(*ranks, strict=True)))
        for ranks in zip(*(run.communication for run in simulated), strict=True)
    ]
    return dataclasses.replace(
        whole,
        seconds=float(grown(whole.seconds, *(run.seconds for run in fewer))),
        computing=[float(seconds) for seconds in of_ranks("computing")],
        operations=[int(count) for count in of_ranks("operations")],
        sent=of_ranks("sent"),
        peak=[*account.held],
        traffic=traffic,
        communication=communication,
        left_out=sum(run.left_out for run in longest.runs),
    )


@dataclass(frozen=True)
class PeriodSimulation:
    """A local step of every replica, and an average over all `replicas` after every `period`-th."""

    period: int
    replicas: int
    local: Simulation
    average: Simulation

    @property
    def seconds(self) -> float:
        """Seconds of a step, with its share of an average."""
        return float(self.local.seconds + self.average.seconds / self.period)

    @property
    def sent(self) -> Fraction:
        """Most bytes that a device sends in a step, with its share of an average."""
        return Fraction(max(self.local.sent)) + Fraction(max(self.average.sent)) / self.period


def simulate_period(
    plan: Plan,
    batch: int,
    positions: int,
    cluster: Cluster,
    dtype: str,
    period: int,
    chunks: AskedChunks = None,
) -> PeriodSimulation:
    """Simulate local SGD: a plan whose replicas are averaged after every `period`-th step.

    A step has `batch` sequences of `positions` tokens in all. The replicas step at the same time,
    each on the next devices of the cluster, and share its links. `chunks` are those of
    `simulate_step`. Raises `ConfigError` for a period below 1, and `PlanError` for a plan without
    replicas.
    """
    if period < 1:
        raise ConfigError(f"--average-every: expected 1 or more, got {period}")
    replicas = replicas_of(plan)
    share = replicas.share(batch)
    local = simulate_step(
        replicas.plan, share, positions, cluster, dtype, chunks=chunks, copies=replicas.count
    )
    average = simulate(lower_average(replicas), cluster, dtype)
    return PeriodSimulation(period, replicas.count, local, average)
