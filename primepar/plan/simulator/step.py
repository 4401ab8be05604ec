"""Simulation of a training step of a plan: of the same program that is verified and executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

from msgspec.structs import replace

from primepar.errors import ConfigError
from primepar.operators.step import lower_step
from primepar.plan.accounting.account import step_options
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.cost.chunks import MOST_CHUNKS, chunk_count
from primepar.plan.layouts import ends
from primepar.plan.operator_layouts import sequence_lines
from primepar.plan.plan import Plan
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule.program import (
    Broadcast,
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Reduce,
    Send,
)

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
    times: Callable[[str], int] | None = None,
) -> Simulation:
    """Simulate a step of `batch` sequences of `positions` tokens, as `lower_step` lowers it.

    With `chunks` transfers and the products next to them are cut into this many; "auto" takes the
    number with the least predicted time. With `program` that one is simulated, the step after
    further passes. Several `copies` run it at the same time, each on the next devices of the
    cluster. `times` is as in `simulate`. Raises what `lower_step` and `simulate` raise, and
    `ConfigError` for another number of chunks.
    """
    if chunks is not None and chunks != "auto" and not 1 <= chunks <= MOST_CHUNKS:
        raise ConfigError(
            f"chunks: expected auto or a number from 1 to {MOST_CHUNKS}, got {chunks}: write auto"
        )
    if program is None:
        chosen = chunk_count(cluster, dtype) if chunks == "auto" else chunks
        options = replace(step_options(dtype), chunks=chosen)
        program = lower_step(plan, batch, positions, options=options)
    fused = cluster.rate(dtype).attention is not None
    operations = attention_operations(plan, batch, positions, causal=fused)
    passing: Mapping[str, Passing] = {}
    if cluster.operators:
        from primepar.plan.simulator.operator_kinds import phases_passing

        passing = phases_passing(plan, program, (batch, positions), cluster, dtype)
    together = copied_to_next_ranks(program, copies)
    return simulate(together, cluster, dtype, operations, fractions, passing, positions, times)


def copied_to_next_ranks(program: Program, copies: int) -> Program:
    """Return a program in which `copies` of one run, each on the next ranks.

    Blocks keep their names, so it has a meaning only where the data of blocks is not looked at.
    """
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
    match node:
        case Send() | Recv() | ISend() | IRecv():
            return replace(node, peer=node.peer + first)
        case Group(body=body):
            return replace(node, body=tuple(_shifted(message, first) for message in body))
        case _ if isinstance(node, Collective):
            root = {"root": node.root + first} if isinstance(node, Reduce | Broadcast) else {}
            return replace(node, group=tuple(rank + first for rank in node.group), **root)
        case _:
            return node


def attention_operations(
    plan: Plan, batch: int, positions: int, causal: bool
) -> dict[str, Fraction]:
    """Operations of the phases of attention, per element that they write.

    Forward has two products, scores and values. Backward has five, one of which recomputes the
    scores. Only a fused kernel skips what the `causal` mask hides.
    """
    model, per_element = plan.model, {}
    product = 2 * Fraction(plan.model.attended(positions, causal))
    for operator in plan.operators:
        if operator.kind != "attention":
            continue
        name, per_input = operator.name, Fraction(operator.K, operator.N)
        parts = len(sequence_lines(ends(plan, name).output, batch)[0])
        per_element[f"{name}.forward"] = Fraction(2 * product)
        if parts == 1:
            per_element[f"{name}.backward"] = 5 * product * per_input
        else:
            # The gradient of the queries alone; the other four products are in backward.keys.
            per_element[f"{name}.backward"] = product * per_input
            keys = 2 * model.kv_heads * model.head_dim * parts
            per_element[f"{name}.backward.keys"] = Fraction(4 * product * operator.K, keys)
    return per_element
