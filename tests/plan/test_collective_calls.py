"""The collectives that the cost model counts are those of the program, to the byte."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from msgspec.structs import replace
from planner_cases import byte_a_second
from test_cost_linear import candidate

from primepar.partition.registry import parse_sequence
from primepar.plan.cluster import Passing
from primepar.plan.cost.linear import Training, linear_cost
from primepar.plan.cost.sweeps import moving, sent
from primepar.schedule import Linear, lower
from primepar.schedule.program import AllGather, AllReduce, ReduceScatter

OPERATOR = Linear(M=32, N=64, K=96)
KINDS: dict[str, type[AllGather | AllReduce | ReduceScatter]] = {
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_reduce": AllReduce,
}


def priced(text: str) -> Counter[tuple[str, str]]:
    """Elements that a device sends in the collectives that the cost model counts."""
    (element,) = parse_sequence(text).elements
    moved, elements = moving(element), Counter[tuple[str, str]]()
    sizes = {"I": 32 * 64, "W": 64 * 96, "O": 32 * 96}
    levels = (0,) * (moved.devices.bit_length() - 1)
    for phases in moved.phases:
        for stage in moved.stages(phases, levels, (False,)):
            for call in (*stage.gathers, *stage.sums):
                size = sizes[call.tensor.removeprefix("d")]
                elements[call.name, call.tensor] += round(sent(call, size)[0])
    return elements


def executed(text: str) -> Counter[tuple[str, str]]:
    """Elements that a rank sends in the collectives of more than two ranks of the program."""
    program, elements = lower(parse_sequence(text), OPERATOR), Counter[tuple[str, str]]()
    assert program.grid is not None
    for node in program.programs[0]:
        for name, kind in KINDS.items():
            if isinstance(node, kind) and len(node.group) > 2:
                others = len(node.group) - 1
                rounds = 2 / len(node.group) if kind is AllReduce else 1
                tensor = node.block.partition("[")[0]
                grid = next(iter(program.grid.values()))
                dims = {"I": "MN", "W": "NK", "O": "MK"}[tensor.removeprefix("d")]
                size = prod(getattr(OPERATOR, dim) // grid.get(dim, 1) for dim in dims)
                elements[name, tensor] += round(others * rounds * size)
    return elements


@pytest.mark.parametrize(
    "text", ["Ks4", "Ns4", "Ks8", "C2x2x2", "D4x4x4", "S4x4", "P4x4", "Os4x4", "Ks2", "S2x2"]
)
def test_collectives_are_those_of_the_program(text: str) -> None:
    assert priced(text) == executed(text)
    assert bool(executed(text)) == (text in {"Ks4", "Ns4", "Ks8", "D4x4x4"})


def test_blocks_that_arrive_first_are_joined_at_a_price() -> None:
    plain = byte_a_second(1)
    cluster = replace(plain.cluster, operators={"join": Passing(10.0, 4.0)})
    joining = Training(type(plain.links)(cluster, 1), plain.dtype, plain.batch, plain.positions)
    for text in ("M2", "Ks2"):
        before, after = (linear_cost(training, OPERATOR, candidate(text)).seconds
                         for training in (plain, joining))  # fmt: skip
        assert (after > before) == (text == "Ks2")
