"""A block in the wrong place or with the wrong data is refused where it is used."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_cases import OPERANDS, product, refusal, refused

from primepar.errors import (
    MeshError,
    MissingBlockError,
    WrongDataError,
)
from primepar.reference import emulate
from primepar.schedule.program import (
    Compute,
    Evict,
    Fetch,
    Free,
    Program,
    Recv,
    Send,
)

# Placement


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
