"""Steps with shards or with activations computed again that are wrong in one place are refuted.

Prover, explorer and emulator are asked. What is harmless is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from agreement import disagreement
from msgspec.structs import replace
from oracle.explore import explore
from step_cases import SMALL, refuted, spoilt

from primepar.errors import PrimeParError
from primepar.operators import lower_step
from primepar.plan import preset_plan
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Compute,
    Free,
    Instruction,
    ReduceScatter,
)
from primepar.verify import verify_program

Nodes = list[Instruction]
Spoil = Callable[[int, Nodes], None]


@cache
def recomputed() -> Program:
    """A step of two devices whose layer is computed again."""
    plan = preset_plan("megatron", SMALL["llama"], 2)
    return lower_step(replace(plan, recompute="full"), 1, 2, passes=["free-early"])


@cache
def sharded() -> Program:
    """A step of two devices whose optimizer is in shards."""
    plan = preset_plan("data", SMALL["llama"], 2)
    return lower_step(replace(plan, sharded_optimizer=True), 2, 2, passes=["free-early"])


def repeated(nodes: Nodes, phase: str) -> int:
    """The position of the product of a phase that is computed again."""
    (position,) = [
        position
        for position, node in enumerate(nodes)
        if isinstance(node, Compute) and node.again and node.phase == phase
    ]
    return position


def computed(nodes: Nodes, position: int) -> Compute:
    """The product at a position."""
    node = nodes[position]
    assert isinstance(node, Compute)
    return node


def unmarked(rank: int, nodes: Nodes) -> None:
    """Do not mark a product that is computed again."""
    position = repeated(nodes, "blocks.0.act.forward")
    nodes[position] = replace(computed(nodes, position), again=False)


def left_out(rank: int, nodes: Nodes) -> None:
    """Do not compute the activation again, which was freed."""
    del nodes[repeated(nodes, "blocks.0.act.forward")]


def of_another_block(rank: int, nodes: Nodes) -> None:
    """Compute the second norm of the rows of the first one, not of the residual stream."""
    position = repeated(nodes, "blocks.0.norm2.normalize")
    node = computed(nodes, position)
    nodes[position] = replace(node, reads=("blocks.0.norm1/normed[0,0]", *node.reads[1:]))


def not_freed(rank: int, nodes: Nodes) -> None:
    """Keep the activation of forward, so that the second is added to it."""
    position = repeated(nodes, "blocks.0.act.forward")
    freed = Free(computed(nodes, position).accumulates)
    del nodes[nodes.index(freed)]


def added_twice(rank: int, nodes: Nodes) -> None:
    """Compute the activation again two times."""
    position = repeated(nodes, "blocks.0.act.forward")
    nodes.insert(position, nodes[position])


def partial(rank: int, nodes: Nodes) -> None:
    """Do not reduce the output of proj again."""
    position = repeated(nodes, "blocks.0.proj.forward")
    block = computed(nodes, position).accumulates
    reduce = next(
        place
        for place in range(position, len(nodes))
        if isinstance(node := nodes[place], AllReduce) and node.block == block
    )
    del nodes[reduce]


def once_more(rank: int, nodes: Nodes) -> None:
    """Compute the activation a third time and free it: needless, and right."""
    position = repeated(nodes, "blocks.0.act.forward")
    nodes[position:position] = [nodes[position], Free(computed(nodes, position).accumulates)]


def scattered(nodes: Nodes) -> int:
    """The position of the reduce-scatter of a weight's gradient."""
    return next(
        place
        for place, node in enumerate(nodes)
        if isinstance(node, ReduceScatter) and "qkv.weight" in node.block
    )


def gathered(nodes: Nodes) -> int:
    """The position of the all-gather of the new weight."""
    return next(
        place
        for place, node in enumerate(nodes)
        if isinstance(node, AllGather) and "qkv.weight" in node.block
    )


def not_reduced(rank: int, nodes: Nodes) -> None:
    """Update with the gradient of one's own rows."""
    del nodes[scattered(nodes)]


def scattered_to_others(rank: int, nodes: Nodes) -> None:
    """Give every rank the sum of the other one's part."""
    position = scattered(nodes)
    node = nodes[position]
    assert isinstance(node, ReduceScatter)
    nodes[position] = replace(node, blocks=node.blocks[::-1])


def not_gathered(rank: int, nodes: Nodes) -> None:
    """Keep the other part of the new weight as it was not sent."""
    del nodes[gathered(nodes)]


def gathered_elsewhere(rank: int, nodes: Nodes) -> None:
    """Exchange the parts of the new weight."""
    position = gathered(nodes)
    node = nodes[position]
    assert isinstance(node, AllGather)
    nodes[position] = replace(node, blocks=node.blocks[::-1])


@pytest.mark.parametrize(
    ("make", "spoil", "properties"),
    [
        (recomputed, unmarked, {"coverage"}),
        (recomputed, left_out, {"alignment"}),
        (recomputed, of_another_block, {"alignment"}),
        (recomputed, not_freed, {"completion"}),
        (recomputed, added_twice, {"completion"}),
        (recomputed, partial, {"completion"}),
        (recomputed, once_more, set()),
        (sharded, not_reduced, {"completion"}),
        (sharded, scattered_to_others, {"alignment"}),
        (sharded, not_gathered, {"completion", "placement"}),
        (sharded, gathered_elsewhere, {"completion", "placement"}),
    ],
)
def test_a_step_that_is_wrong_is_refuted(
    make: Callable[[], Program], spoil: Spoil, properties: set[str]
) -> None:
    program = spoilt(make(), spoil)
    assert set(refuted(program)) == properties
    report = verify_program(program)
    assert disagreement(report, explore(program)) == ""
    if not properties:
        emulate(program, memories(program))
        return
    with pytest.raises(PrimeParError):
        emulate(program, memories(program))


def test_what_is_computed_again_was_computed_before() -> None:
    def forward_only(rank: int, nodes: Nodes) -> None:
        position = next(
            place
            for place, node in enumerate(nodes)
            if isinstance(node, Compute) and node.phase == "blocks.0.act.forward"
        )
        nodes[position] = replace(computed(nodes, position), again=True)

    with pytest.raises(ValueError) as caught:
        spoilt(recomputed(), forward_only)
    assert str(caught.value) == (
        "expected blocks.0.act.forward sub-operator (M=0, K=0) to be computed before it is "
        "computed again, got it never before: leave again out in programs[0][23]"
    )
