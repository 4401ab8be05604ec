"""Phases with signatures have stand-ins; emulated devices compute the same as one device."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase_programs import RIGHT, Json, between, built, compute, heads, norm, program

from primepar.errors import ProgramError, ShapeError
from primepar.reference import check_program, emulate
from primepar.reference.check import memories
from primepar.reference.emulator import arithmetic
from primepar.reference.emulator.arithmetic import Arithmetic
from primepar.reference.emulator.contents import Array, Contents
from primepar.reference.emulator.surrogate import PRIME, stand_in
from primepar.reference.oracle.one_device import one_device
from primepar.schedule.meaning import Meaning
from primepar.schedule.signature import Reduction


def made(
    reads: list[str], writes: str, *arrays: Any, reduction: Reduction = "sum",
    shape: tuple[int, ...] | None = None,
) -> list[Any]:  # fmt: skip
    """The result of the stand-in of a signature on some arrays."""
    phases = {"f": {"reads": reads, "writes": writes, "reduction": reduction}}
    phase = Meaning(built(program([[]], phases=phases))).phases["f"]
    result: list[Any] = stand_in(phase, [np.array(array) for array in arrays], shape).tolist()
    return result


# Stand-ins


def test_a_stand_in_sums_products_over_the_dims_that_are_not_written() -> None:
    x, w = np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, PRIME - 1]])
    expected = [[(1 * 5 + 2 * 7), (6 - 2)], [(3 * 5 + 4 * 7), (18 - 4)]]
    assert made(["x[M,N]", "w[N,K]"], "y[M,K]", x, w) == expected


def test_a_stand_in_is_exact_where_products_are_large() -> None:
    x, w = np.full((2, 5000), PRIME - 1), np.full(5000, PRIME - 2)
    assert made(["x[M,N]", "w[N]"], "y[M]", x, w) == [2 * 5000 % PRIME] * 2


def test_a_stand_in_takes_the_largest_or_smallest_of_the_products() -> None:
    x, w = [[1, 2], [3, 4]], [10, 1]
    assert made(["x[M,K]", "w[K]"], "y[M]", x, w, reduction="max") == [10, 30]
    assert made(["x[M,K]", "w[K]"], "y[M]", x, w, reduction="min") == [2, 4]


def test_neighbours_of_a_longer_block_are_summed_and_those_of_the_output_repeated() -> None:
    x = [1, 2, 3, 4, 5, 6]
    assert made(["x[K]"], "y[K]", x, shape=(2,)) == [6, 15]
    assert made(["x[K]"], "y[K]", x, shape=(4,)) == [6, 6, 15, 15]
    assert made(["x[K]", "w[K]"], "y[K]", x, [1, 10, 100]) == [3, 70, 1100]


def test_a_divided_dim_is_next_to_the_full_one() -> None:
    assert made(["x[H]", "key[H/2]"], "y[H]", [1, 2], [10, 100]) == [10, 200]


def test_a_dim_that_nothing_reads_is_repeated() -> None:
    assert made(["x[M]"], "y[M,K]", [1, 2], shape=(2, 3)) == [[1, 1, 1], [2, 2, 2]]
    assert made([], "y[M]") == [1, 1]


def test_fixed_slices_and_dims_named_twice_are_dims_of_their_own() -> None:
    assert made(["x[0,M]", "z[1,M]"], "y[M]", [[1, 2], [3, 4]], [[5, 6]]) == [20, 36]
    assert made(["x[M,0]"], "y[M,0]", [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
    assert made(["x[M,M]"], "y[M]", [[1, 2], [3, 4]]) == [3, 7]


# On one device


def whole(asked: Json) -> dict[str, Array]:
    return one_device(Contents(built(asked)), np.random.default_rng(0)).tensors


@given(
    slices=st.tuples(*[st.integers(1, 3)] * 3),
    widths=st.lists(st.integers(1, 4), min_size=9, max_size=9),
    reduction=st.sampled_from(["sum", "max", "min"]),
)
def test_what_a_phase_makes_does_not_depend_on_how_its_dims_are_cut(
    slices: tuple[int, ...], widths: list[int], reduction: str
) -> None:
    lines = []
    for number, count in enumerate(slices):
        lines.append([sum(widths[3 * number : 3 * number + n]) for n in range(count + 1)])
    M, N, K = lines
    threefold = [3 * number for number in K]
    tensors = {
        "x": {"cuts": [M, N]}, "w": {"cuts": [N, threefold]}, "y": {"cuts": [M, K]},
    }  # fmt: skip
    phases = {"f": {"reads": ["x[M,N]", "w[N,K]"], "writes": "y[M,K]", "reduction": reduction}}
    grid = {"f": dict(zip("MNK", slices, strict=True))}
    nodes = [
        compute("f", [f"x[{m},{n}]", f"w[{n},{k}]"], f"y[{m},{k}]", M=m, N=n, K=k)
        for m, n, k in np.ndindex(*slices)
    ]
    cut = program([nodes], phases=phases, tensors=tensors, grid=grid)
    uncut = {name: {"cuts": [[0, line[-1]] for line in known["cuts"]]}
             for name, known in tensors.items()}  # fmt: skip
    alone = program([[]], phases=phases, tensors=uncut, grid={"f": dict.fromkeys("MNK", 1)})
    assert np.array_equal(whole(cut)["y"], whole(alone)["y"])
    assert check_program(built(cut)).equal


def test_a_divided_dim_goes_slice_by_slice() -> None:
    tensors = whole(heads())
    q, key, s = (tensors[name] for name in ("q", "key", "s"))
    first, second = key[:3, :2].sum(axis=1), key[3:, :2].sum(axis=1)
    expected = [*(q[:3] * first), *(q[3:6] * first), *(q[6:10] * second), *(q[10:] * second)]
    assert s.tolist() == [value % PRIME for value in expected]


def test_without_cuts_every_slice_has_two_elements_or_those_that_it_is_made_of() -> None:
    tensors = whole(between())
    sizes = {name: array.shape for name, array in tensors.items()}
    assert sizes == {
        "x": (2, 4), "gain": (4,), "I": (2, 4), "W": (6, 4), "O": (2, 4), "a": (2, 4),
    }  # fmt: skip


# One device and many


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_equal(name: str) -> None:
    report = check_program(built(RIGHT[name]()), name)
    assert report.message is None
    assert report.stand_ins
    assert set(report.outputs.values()) == {True}


def test_every_tensor_that_is_made_is_compared() -> None:
    assert list(check_program(built(norm())).outputs) == [
        "norm.sum", "y", "norm.weight.grad", "new",
    ]  # fmt: skip
    assert list(check_program(built(between())).outputs) == ["O", "I", "a"]


def test_what_is_sent_is_counted_in_elements_of_the_cuts() -> None:
    assert check_program(built(norm())).sent == (6 + 12, 6 + 12)
    assert check_program(built(heads())).sent == (5 + 1.5 + 2, 5 + 1.5 + 1 + 4)


def test_a_linear_operator_alone_keeps_its_numbers() -> None:
    node = compute("forward", ["I[0,0]", "W[0,0]"], "O[0,0]", M=0, N=0, K=0)
    alone = built(program([[node]]))
    run = emulate(alone, [{"I[0,0]": np.array([[0.5]]), "W[0,0]": np.array([[-3.0]])}])
    assert run.memories[0]["O[0,0]"].tolist() == [[-1.5]]


def test_a_product_that_is_not_that_of_one_device_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*arguments: Any) -> Array:
        return stand_in(*arguments) + 1

    monkeypatch.setattr(arithmetic, "stand_in", wrong)
    report = check_program(built(norm()))
    assert (report.equal, set(report.outputs.values())) == (False, {False})
    assert report.message == "expected norm.sum[0] as one device computes it, got another on " \
        "device 0"  # fmt: skip


def test_a_part_that_is_cut_from_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Arithmetic.cut

    def wrong(*arguments: Any) -> Any:
        one, other = cut(*arguments)
        return [type(one)(other.array, one.terms), type(one)(one.array, other.terms)]

    monkeypatch.setattr(Arithmetic, "cut", wrong)
    report = check_program(built(norm()))
    assert report.outputs == {"norm.sum": True, "y": False, "norm.weight.grad": True, "new": True}
    assert report.message == (
        "expected y.pieces[0,0] as one device computes it, got another on device 0"
    )


def added_up(*nodes: Json) -> Json:
    """Between two phases, with the last output not kept, but added to something on one rank."""
    asked = between() | {"final": [[], []]}
    asked["programs"][1] = [
        *asked["programs"][1][:4],
        {"op": "compute", "reads": ["a[0,0]"], "accumulates": "copy"},
        *nodes,
    ]
    del asked["programs"][0][4]
    return asked


def test_a_finished_sum_that_no_phase_reads_is_compared_as_it_is_freed() -> None:
    report = check_program(built(added_up({"op": "free", "block": "a[0,0]"})))
    assert report.outputs == {"O": True, "I": True, "a": True}


def test_a_sum_that_is_overwritten_unread_is_missed() -> None:
    asked = added_up(*({"op": "alloc", "block": name} for name in ("a[0,0]", "copy")))
    report = check_program(built(asked))
    assert report.outputs == {"O": True, "I": True, "a": False}
    assert report.message == "expected a finished a[0,0] in some memory at the end, got it in none"


@pytest.mark.parametrize("name", RIGHT)
def test_without_a_grid_what_the_program_computes_is_compared(name: str) -> None:
    asked = RIGHT[name]()
    tensors = check_program(built(asked)).outputs
    del asked["grid"]
    assert check_program(built(asked)).outputs == tensors


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
def test_what_an_output_held_before_does_not_change_it(reduction: str) -> None:
    phases = {"f": {"reads": ["x[M]"], "writes": "y[0]", "reduction": reduction}}
    nodes = [compute("f", [f"x[{m}]"], "y[0]", M=m) for m in (0, 1)]
    held = [["x[0]", "x[1]", "y[0]"]]
    asked = program([nodes], phases=phases, grid={"f": {"M": 2}}, initial=held, final=held)
    assert check_program(built(asked)).equal


def test_a_linear_operator_may_cut_and_join_its_blocks() -> None:
    nodes = [
        compute("forward", ["I[0,0]", "W[0,0]"], "O[0,0]", M=0, N=0, K=0),
        {"op": "cut", "block": "O[0,0]", "blocks": ["part[0,0]", "part[0,1]"]},
        {"op": "free", "block": "O[0,0]"},
        {"op": "join", "blocks": ["part[0,1]", "part[0,0]"], "block": "O[0,0]"},
    ]
    tensors = {"O": {"cuts": [[0, 3], [0, 5]]}, "part": {"of": "O", "cuts": [[0, 3], [0, 2, 5]]}}
    grid = {"forward": {"M": 1, "N": 1, "K": 1}}
    report = check_program(built(program([nodes], tensors=tensors, grid=grid)))
    assert (report.outputs, report.shape) == ({"O": True}, {"M": 3, "N": 2, "K": 5})
    assert not report.stand_ins


# What does not fit


ROWS = {"f": {"reads": ["x[M]"], "writes": "y[M]"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"phases": {**ROWS, "g": {"reads": ["y[M]"], "writes": "x[M]"}}},
            "$.phases: expected phases that can follow one another, "
            "got f, which needs g, which needs f",
        ),
        (
            {"phases": {**ROWS, "g": {"reads": ["x[M,M]"], "writes": "z[M]"}}},
            "$.phases.g: expected 1 indices of x, as elsewhere, got 2",
        ),
        (
            {"phases": ROWS, "tensors": {"x": {"cuts": [[0, 1, 4]]}}},
            "$.tensors: expected cuts of y, whose blocks differ in size, got none",
        ),
        (
            {"phases": {"f": {"reads": ["x[3]"], "writes": "y[M]"}},
             "tensors": {"x": {"cuts": [[0, 1, 4]]}}},
            "expected blocks of x below [2], got x[3]",
        ),
        (
            {"tensors": {"O": {"cuts": [[0, 4], [0, 4]]}}, "shape": {"M": 4, "N": 4, "K": 6}},
            "$.tensors.O: expected 6 elements along K, as elsewhere, got 4",
        ),
    ],
)  # fmt: skip
def test_cuts_and_phases_that_do_not_fit_are_refused(fields: Json, message: str) -> None:
    phases = fields.get("phases")
    grid = {name: {"M": 2} for name in phases or ()} or {"forward": {"M": 1, "N": 1, "K": 1}}
    with pytest.raises(ProgramError) as caught:
        check_program(built(program([[]], grid=grid, **fields)))
    assert str(caught.value) == message


def test_a_shape_that_a_mixed_grid_does_not_divide_names_the_padded_size() -> None:
    asked = between() | {"shape": {"M": 2, "N": 3, "K": 4}}
    with pytest.raises(ShapeError) as caught:
        check_program(built(asked))
    assert str(caught.value) == (
        "dim N: expected a positive multiple of its 2 slices, got 3: pad N with zeros to 4"
    )


def test_memories_have_an_array_for_every_initial_block() -> None:
    held = memories(built(norm()))
    assert [sorted(memory) for memory in held] == [
        ["dy[0,0]", "norm.weight[0]", "x[0,0]"], ["dy[1,0]", "norm.weight[0]", "x[1,0]"],
    ]  # fmt: skip
    assert held[0]["norm.weight[0]"].tolist() == held[1]["norm.weight[0]"].tolist()
    assert all(prod(array.shape) in (24, 6, 2) for memory in held for array in memory.values())
