"""A whole training step on emulated devices: every tensor of it is that of one device."""

from __future__ import annotations

from itertools import cycle

import msgspec
import pytest
from partitioned_cases import ON_FOUR
from profiles import few
from step_cases import SMALL, lowered

from primepar.reference import check_program
from primepar.schedule.program import AllReduce

EACH = list(zip(ON_FOUR, cycle(SMALL), strict=False))
"""Every plan once and every family at least once."""


@few
@pytest.mark.parametrize(("name", "family"), EACH)
def test_a_step_on_four_devices_is_that_of_one(name: str, family: str) -> None:
    report = check_program(lowered(name, 4, family), name)
    assert report.message is None
    assert set(report.outputs.values()) == {True}
    parameters = SMALL[family].parameter_shapes
    assert {f"{known}{suffix}.new" for known in parameters for suffix in ("", ".m", ".v")} <= set(
        report.outputs
    )


def test_a_gradient_that_is_not_summed_is_refused_where_it_is_read() -> None:
    program = lowered("megatron-sp", 4, "gpt2")
    broken = msgspec.structs.replace(
        program,
        programs=tuple(
            tuple(
                node
                for node in nodes
                if not isinstance(node, AllReduce) or "norm1.weight.grad" not in node.block
            )
            for nodes in program.programs
        ),
    )
    assert check_program(broken).message == (
        "device 0, programs[0][301], gradient.2.squares: expected the 4 terms of "
        "blocks.0.norm1.weight.grad[0], got it without blocks.0.norm1.weight.gradient M=1 K=0: "
        "finish the sum before this instruction"
    )
