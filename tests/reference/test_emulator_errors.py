"""A block in the wrong place or with the wrong data is refused where it is used."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_cases import GRID, OPERANDS, product, refusal, refused

from primepar.errors import (
    MeshError,
    MissingBlockError,
    WrongDataError,
)
from primepar.reference import emulate
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Evict,
    Fetch,
    Free,
    Program,
    Recv,
    Send,
)

# Placement


def test_a_product_of_a_block_that_is_elsewhere_is_refused() -> None:
    error = refusal((product(0),), (), initial=(("I[0,0]",), ("W[0,0]",)))
    refused(
        error,
        MissingBlockError,
        "device 0, programs[0][0], forward: expected W[0,0] in this device's memory, got I[0,0]: "
        "receive or compute it before this instruction",
    )


def test_a_block_is_gone_after_it_was_freed() -> None:
    error = refusal((Free("x"), Compute(("x",), "y")), initial=(("x",),))
    refused(
        error,
        MissingBlockError,
        "device 0, programs[0][1]: expected x in this device's memory, got nothing: "
        "receive or compute it before this instruction",
    )


def test_a_block_that_is_not_there_cannot_be_freed() -> None:
    refused(
        refusal((Free("x"),), initial=(("y",),)),
        MissingBlockError,
        "device 0, programs[0][0]: expected x in this device's memory to be freed, got y",
    )


def test_a_block_that_was_not_evicted_cannot_be_fetched() -> None:
    refused(
        refusal((Fetch("x"),), initial=((),)),
        MissingBlockError,
        "device 0, programs[0][0]: expected x in this device's host memory, got none there: "
        "evict it first",
    )


def test_an_evicted_block_cannot_be_read_on_the_device() -> None:
    refused(
        refusal((Evict("x"), Compute(("x",), "y")), initial=(("x",),)),
        MissingBlockError,
        "device 0, programs[0][1]: expected x in this device's memory, got nothing: "
        "receive or compute it before this instruction",
    )


def test_every_initial_block_needs_an_array() -> None:
    program = Program("primepar-program", 1, 1, ((),), initial=(("x",),))
    with pytest.raises(MissingBlockError) as caught:
        emulate(program, [{"y": np.ones(2)}])
    assert str(caught.value) == "memories[0]: expected an array for x, got none"


def test_every_rank_needs_a_memory() -> None:
    with pytest.raises(MeshError) as caught:
        emulate(Program("primepar-program", 1, 2, ((), ())), [{}])
    assert str(caught.value) == "expected one memory for each of 2 ranks, got 1"


# Data


def test_a_block_under_the_name_of_another_one_is_refused_where_it_is_read() -> None:
    error = refusal(
        (Recv(1, "W[0,0]"), product(0)),
        (Send(0, "W[1,0]"),),
        initial=(("I[0,0]",), ("W[1,0]",)),
    )
    refused(
        error,
        WrongDataError,
        "device 0, programs[0][1], forward: expected W[0,0] under the name W[0,0], got W[1,0]",
    )


def test_operands_of_another_sub_operator_are_refused() -> None:
    refused(
        refusal((product(0, "O[0,0]", "I[0,0]", "W[1,0]"),), initial=(OPERANDS,)),
        WrongDataError,
        "device 0, programs[0][0], forward: expected forward M=0 N=0 K=0 to read I[0,0] and "
        "W[0,0], got I[0,0] and W[1,0]",
    )


def test_operands_in_another_order_are_refused() -> None:
    refused(
        refusal((product(0, "O[0,0]", "W[0,0]", "I[0,0]"),), initial=(OPERANDS,)),
        WrongDataError,
        "device 0, programs[0][0], forward: expected forward M=0 N=0 K=0 to read I[0,0] and "
        "W[0,0], got W[0,0] and I[0,0]",
    )


def test_data_without_meaning_is_no_operand() -> None:
    refused(
        refusal((product(0, "O[0,0]", "x", "W[0,0]"),), initial=(("x", "W[0,0]"),)),
        WrongDataError,
        "device 0, programs[0][0], forward: expected forward M=0 N=0 K=0 to read I[0,0] and "
        "W[0,0], got x holding x of device 0 and W[0,0]",
    )


def test_a_sub_operator_outside_the_grid_is_refused() -> None:
    error = refusal((product(2),), initial=(("I[0,2]", "W[2,0]"),), grid=GRID)
    refused(
        error,
        WrongDataError,
        "device 0, programs[0][0], forward: expected a sub-operator of the grid M=1 N=2 K=1, "
        "got forward M=0 N=2 K=0",
    )


def test_a_term_is_not_added_twice() -> None:
    refused(
        refusal((product(0), product(0)), initial=(OPERANDS,), final=(("O[0,0]",),)),
        WrongDataError,
        "device 0, programs[0][1], forward: expected every term once in a sum, "
        "got forward M=0 N=0 K=0 a second time",
    )


def test_a_term_that_comes_from_two_devices_is_not_added_twice() -> None:
    ring = (product(0), AllReduce((0, 1), block="O[0,0]"))
    refused(
        refusal(ring, ring, initial=(OPERANDS, OPERANDS), final=(("O[0,0]",),) * 2),
        WrongDataError,
        "device 1, programs[1][1]: expected every term once in a sum, "
        "got forward M=0 N=0 K=0 a second time",
    )


def test_terms_of_two_blocks_are_not_added() -> None:
    other = Compute(("I[1,0]", "W[0,0]"), "O[1,0]", "forward", {"M": 1, "N": 0, "K": 0})
    error = refusal(
        (product(0), other, Compute(("O[1,0]",), "O[0,0]")),
        initial=(("I[0,0]", "I[1,0]", "W[0,0]"),),
        final=(("O[0,0]",),),
    )
    refused(
        error,
        WrongDataError,
        "device 0, programs[0][2]: expected terms of one block in a sum, "
        "got terms of O[0,0] and O[1,0]",
    )


def test_a_product_is_not_written_under_the_name_of_another_block() -> None:
    refused(
        refusal((product(0, "O[1,0]"),), initial=(OPERANDS,), final=(("O[1,0]",),)),
        WrongDataError,
        "device 0, programs[0][0], forward: expected terms of O[1,0] to write into O[1,0], "
        "got forward M=0 N=0 K=0",
    )


def test_partial_sums_have_no_maximum() -> None:
    group = (0, 1)
    error = refusal(
        (product(0), AllReduce(group, block="O[0,0]", reduction="max")),
        (product(1), AllReduce(group, block="O[0,0]", reduction="max")),
        initial=(OPERANDS, OPERANDS),
    )
    refused(
        error,
        WrongDataError,
        "device 1, programs[1][1]: expected a sum of the terms of O[0,0], got their max: "
        "write reduction sum, or a name without meaning",
    )


def test_a_block_of_another_shape_is_not_received() -> None:
    program = Program("primepar-program", 1, 2, ((Recv(1, "x"),), (Send(0, "x"),)),
                      initial=(("x",), ("x",)))  # fmt: skip
    with pytest.raises(WrongDataError) as caught:
        emulate(program, [{"x": np.ones(2)}, {"x": np.ones(3)}])
    assert str(caught.value) == (
        "device 0, programs[0][0]: expected a block of shape (2,) for x, got (3,)"
    )


def test_blocks_of_two_shapes_are_not_added() -> None:
    program = Program("primepar-program", 1, 1, ((Compute(("x", "y"), "z"),),))
    with pytest.raises(WrongDataError) as caught:
        emulate(program, [{"x": np.ones(2), "y": np.ones(3)}])
    assert str(caught.value) == (
        "device 0, programs[0][0]: expected blocks of one shape to reduce, got (2,) and (3,)"
    )


def test_operands_whose_shapes_do_not_fit_are_refused() -> None:
    program = Program("primepar-program", 1, 1, ((product(0),),))
    with pytest.raises(WrongDataError) as caught:
        emulate(program, [{"I[0,0]": np.ones((2, 3)), "W[0,0]": np.ones((2, 3))}])
    assert str(caught.value) == (
        "device 0, programs[0][0], forward: expected operands of forward M=0 N=0 K=0 that fit, "
        "got shapes (2, 3) and (2, 3)"
    )
