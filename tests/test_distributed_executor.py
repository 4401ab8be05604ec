"""What the executor refuses before it runs anything."""

from __future__ import annotations

import pytest
import torch

from primepar.distributed import Executor, Memory, Mesh, scatter_tensor
from primepar.distributed.buffers import BufferPool
from primepar.distributed.executor import linear_shapes
from primepar.distributed.redistribute import resting
from primepar.errors import ProgramError, SequenceError, ShapeError
from primepar.partition import parse_sequence
from primepar.schedule import Layout, Linear, lower
from primepar.schedule.operators import Dim
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Evict,
    Fetch,
    Free,
    Instruction,
    Program,
)

PRODUCT: dict[Dim, int] = {"M": 0, "N": 0, "K": 0}


def mesh() -> Mesh:
    return Mesh(parse_sequence(""), dtype=torch.float64)


def alone(*instructions: Instruction, initial: tuple[str, ...] | None = ()) -> Program:
    return Program(
        format="primepar-program",
        version=1,
        ranks=1,
        programs=(instructions,),
        initial=None if initial is None else (initial,),
    )


def run(program: Program, **blocks: float) -> dict[str, float]:
    one = mesh()
    given = {name: torch.full((2,), value, dtype=torch.float64) for name, value in blocks.items()}
    left = Executor(one, program, Memory(one.pool, lambda _: (2,)))(given)
    return {name: block[0].item() for name, block in left.items()}


def refused(program: Program) -> str:
    one = mesh()
    with pytest.raises(ProgramError) as error:
        Executor(one, program, Memory(one.pool, lambda _: (2, 2)))
    return str(error.value)


def test_a_block_that_is_not_there_is_refused() -> None:
    assert refused(alone(Compute(("a",), "b"), Free("c"), initial=("a",))) == (
        "programs[0][1]: expected block c on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_a_freed_block_is_not_there() -> None:
    assert refused(alone(Free("a"), Compute(("a",), "b"), initial=("a",))) == (
        "programs[0][1]: expected block a on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_without_initial_a_block_is_taken_to_be_where_it_is_first_used() -> None:
    program = alone(Compute(("a", "a"), "b"), initial=None)
    assert run(program, a=3) == {"a": 3, "b": 6}


def test_a_block_that_was_not_evicted_cannot_be_fetched() -> None:
    assert refused(alone(Evict("a"), Fetch("b"), initial=("a", "b"))) == (
        "programs[0][1]: expected block b in host memory, got none: evict it first"
    )


def test_an_evicted_block_is_not_on_the_device() -> None:
    assert refused(alone(Evict("a"), Compute(("a",), "b"), initial=("a",))) == (
        "programs[0][1]: expected block a on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_an_evicted_block_comes_back() -> None:
    assert run(alone(Evict("a"), Fetch("a"), initial=("a",)), a=3) == {"a": 3}


def test_a_product_of_blocks_without_meaning_is_refused() -> None:
    product = Compute(("x", "W[0,0]"), "O[0,0]", "forward", PRODUCT)
    assert refused(alone(product, initial=("x", "W[0,0]"))) == (
        "programs[0][0]: expected a block of I, W or O or of their gradients in a product, got 'x'"
    )


def test_a_product_of_one_block_is_refused() -> None:
    product = Compute(("I[0,0]",), "O[0,0]", "forward", PRODUCT)
    assert refused(alone(product, initial=("I[0,0]",))) == (
        "programs[0][0]: expected two reads of a product, got 1"
    )


def test_a_collective_of_one_rank_changes_nothing() -> None:
    assert run(alone(AllReduce((0,), block="a"), initial=("a",)), a=3) == {"a": 3}


def test_a_program_without_a_shape_has_no_block_shapes() -> None:
    with pytest.raises(ProgramError) as error:
        linear_shapes(lower(parse_sequence("")))
    assert str(error.value) == (
        "program: expected shape and grid to execute it, got none: lower it with an operator"
    )


def test_block_shapes_come_from_shape_and_grid() -> None:
    shape = linear_shapes(lower(parse_sequence("P2x2"), Linear(M=4, N=6, K=8)))
    assert [shape("I[0,1]"), shape("W[1,0]"), shape("dO[1,1]'")] == [(2, 3), (3, 4), (2, 4)]


def test_a_buffer_that_came_back_is_handed_out_again() -> None:
    pool = BufferPool(torch.device("cpu"), torch.float32)
    first, other = pool.acquire((2, 3)), pool.acquire((2, 3))
    pool.release(first)
    assert pool.acquire((3, 2)) is not first
    assert pool.acquire((2, 3)) is first
    assert (pool.created, pool.idle) == (3, 0)
    assert other is not first


@pytest.mark.parametrize(("blocks", "told"), [(((0, 0), (1, 1)), "(0, 0), (1, 1)"), ((), "none")])
def test_a_layout_without_a_rectangle_of_blocks_on_a_device_is_no_place_to_rest(
    blocks: tuple[tuple[int, int], ...], told: str
) -> None:
    with pytest.raises(SequenceError) as error:
        resting(Layout((2, 2), (blocks,)), "I")
    assert str(error.value) == (
        "tensor I: expected on every device a block, or all blocks of some slices of each dim, "
        f"got {told} on device 0: choose a sequence that leaves such"
    )


def test_a_tensor_that_a_layout_does_not_divide_is_refused() -> None:
    with pytest.raises(ShapeError) as error:
        scatter_tensor(mesh(), Layout((2, 1), (((0, 0),),)), torch.zeros(3, 2))
    assert str(error.value) == (
        "tensor: expected dim 0 to be a multiple of its 2 slices, got 3: pad it to 4"
    )
