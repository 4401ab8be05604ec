"""Dense tensors are cut into blocks and put together again, replicas being exactly equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primepar.errors import IncompleteError, WrongDataError
from primepar.reference import gather, scatter
from primepar.reference.emulator.tensors import cut
from primepar.schedule import Linear
from primepar.schedule.operators import DIMS, Dim, tensor_dims

GRID: dict[Dim, int] = {"M": 2, "N": 3, "K": 1}
W_NK = np.arange(6.0).reshape(3, 2)


def test_a_block_is_cut_at_its_index() -> None:
    I_MN = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(cut(I_MN, "I", (1, 2), GRID), I_MN[2:4, 4:6])


def test_a_dim_that_the_grid_does_not_name_is_whole() -> None:
    assert np.array_equal(cut(W_NK, "W", (1,), {"N": 3}), W_NK[1:2])


def test_scatter_gives_every_rank_what_it_names_of_what_is_there() -> None:
    first, second = scatter([["W[0,0]", "I[0,0]"], ["W[2,0]", "x"]], GRID, {"W": W_NK})
    assert {name: block.tolist() for name, block in first.items()} == {"W[0,0]": [[0.0, 1.0]]}
    assert {name: block.tolist() for name, block in second.items()} == {"W[2,0]": [[4.0, 5.0]]}


@given(
    slices=st.tuples(*[st.integers(1, 3)] * 4),
    tensor=st.sampled_from(["I", "W", "O", "dI", "dW", "dO"]),
    ranks=st.integers(1, 4),
    with_batch=st.booleans(),
)
def test_what_is_scattered_is_gathered(
    slices: tuple[int, ...], tensor: str, ranks: int, with_batch: bool
) -> None:
    grid: dict[Dim, int] = dict(zip(DIMS, slices, strict=True))
    if not with_batch:
        del grid["B"]
    operator = Linear(**{dim: 2 * count for dim, count in grid.items()})
    block_shape = operator.block_shape(tensor, grid)
    dims = [dim for dim in tensor_dims(tensor) if dim in grid]
    dense = np.random.default_rng(0).normal(size=[operator.size(dim) for dim in dims])
    indices = list(np.ndindex(*(grid[dim] for dim in dims)))
    names = [
        [f"{tensor}[{','.join(map(str, index))}]" for index in indices[rank::ranks] + indices[:1]]
        for rank in range(ranks)
    ]
    memories = scatter(names, grid, {tensor: dense})
    assert all(block.shape == block_shape for held in memories for block in held.values())
    assert np.array_equal(gather(tensor, names, memories, grid), dense)


def test_replicas_that_differ_are_refused() -> None:
    names = [["W[0,0]"], ["W[0,0]"]]
    memories = [{"W[0,0]": np.zeros((3, 2))}, {"W[0,0]": np.eye(3, 2)}]
    with pytest.raises(WrongDataError) as caught:
        gather("W", names, memories, {"N": 1, "K": 1})
    assert str(caught.value) == "expected equal replicas of W[0,0], got another on device 1"


def test_a_block_that_nobody_has_is_refused() -> None:
    with pytest.raises(IncompleteError) as caught:
        gather("W", [["W[0,0]"]], [{"W[0,0]": np.zeros((3, 2))}], {"N": 1, "K": 2})
    assert str(caught.value) == "expected W[0,1] on some device, got it on none"


def test_a_scratch_is_not_gathered() -> None:
    names = [["W[0,0]", "W[0,0]'"]]
    memories = [{"W[0,0]": np.zeros((3, 2)), "W[0,0]'": np.ones((3, 2))}]
    assert not gather("W", names, memories, {"N": 1, "K": 1}).any()
