"""A training step of a plan on a cluster: the program that is verified and executed, simulated."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from primepar.operators.step import lower_step
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.layouts import ends
from primepar.plan.operator_layouts import sequence_lines
from primepar.plan.plan import Plan
from primepar.plan.simulator.run import Simulation, simulate


def simulate_step(
    plan: Plan, batch: int, positions: int, cluster: Cluster, dtype: str, fractions: bool = False
) -> Simulation:
    """Simulate a step of `batch` sequences of `positions` tokens, as `lower_step` makes it.

    Raises what `lower_step` and `simulate` raise.
    """
    program = lower_step(plan, batch, positions)
    operations = attention_operations(plan, batch, positions)
    passing: Mapping[str, Passing] = {}
    if cluster.operators:
        from primepar.plan.simulator.operator_kinds import phases_passing

        passing = phases_passing(plan, program, (batch, positions), cluster, dtype)
    return simulate(program, cluster, dtype, operations, fractions, passing)


def attention_operations(plan: Plan, batch: int, positions: int) -> dict[str, Fraction]:
    """Operations of the phases of attention, for each element that they write.

    Forward multiplies twice, the scores and their values; backward does five times, the scores once
    more among them. The causal mask saves nothing.
    """
    model, found = plan.model, {}
    product = 2 * positions
    for operator in plan.operators:
        if operator.kind != "attention":
            continue
        name, per_input = operator.name, Fraction(operator.K, operator.N)
        parts = len(sequence_lines(ends(plan, name).output, batch)[0])
        found[f"{name}.forward"] = Fraction(2 * product)
        if parts == 1:
            found[f"{name}.backward"] = 5 * product * per_input
        else:
            # That of the queries alone; the rest is with the keys and values of whole sequences.
            found[f"{name}.backward"] = product * per_input
            keys = 2 * model.kv_heads * model.head_dim * parts
            found[f"{name}.backward.keys"] = Fraction(4 * product * operator.K, keys)
    return found
