"""Phases of their own on emulated devices: what is wrong is refused where it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulator_cases import refused
from phase_programs import Json, built, compute, heads, norm, program

from primepar.errors import (
    EmulationError,
    IncompleteError,
    MissingBlockError,
    ShapeError,
    WrongDataError,
)
from primepar.reference import emulate
from primepar.reference.check import memories


def refusal(asked: Json) -> EmulationError:
    """Run a program on the memories that `check` gives it, and return what refuses it."""
    made = built(asked)
    with pytest.raises(EmulationError) as caught:
        emulate(made, memories(made))
    return caught.value


def changed(make: Callable[[], Json], rank: int, position: int, **fields: Any) -> Json:
    """A right program with some fields of one instruction replaced."""
    asked = make()
    asked["programs"][rank][position].update(fields)
    return asked


ROWS: Json = {
    "phases": {
        "f": {"reads": ["x[M]", "w[M]"], "writes": "y[M]"},
        "top": {"reads": ["x[M]"], "writes": "t[0]", "reduction": "max"},
    },
    "tensors": {
        "x": {"cuts": [[0, 2, 4]]},
        "y": {"cuts": [[0, 2, 4]]},
        "z": {"cuts": [[0, 2, 4]]},
        "y.whole": {"of": "y", "cuts": [[0, 4]]},
        "y.thirds": {"of": "y", "cuts": [[0, 1, 3, 4]]},
        "y.ones": {"of": "y", "cuts": [[0, 1, 2, 3, 4]]},
    },
}


def rows(*nodes: Json, **fields: Any) -> Json:
    """One rank with two blocks of `x` and `w`, and with `z[0]`."""
    initial = [["x[0]", "x[1]", "w[0]", "w[1]", "z[0]", "z[1]"]]
    return program([list(nodes)], **{**ROWS, "initial": initial, **fields})


def f(m: int, into: str = "", *reads: str) -> Json:
    return compute("f", list(reads) or [f"x[{m}]", f"w[{m}]"], into or f"y[{m}]", M=m)


def top(m: int) -> Json:
    return compute("top", [f"x[{m}]"], "t[0]", M=m)


def joined(*blocks: str) -> Json:
    return {"op": "join", "blocks": list(blocks), "block": "y.whole[0]"}


# Reads


def test_a_part_of_an_unfinished_sum_is_not_read() -> None:
    asked = rows(
        compute("f", ["x[0]", "w[0]"], "y[0]", M=0, N=0),
        {"op": "cut", "block": "y[0]", "blocks": ["y.ones[0]", "y.ones[1]"]},
        compute("g", ["y.ones[1]"], "g[1]", M=1),
        grid={"f": {"M": 2, "N": 2}},
        phases={
            "f": {"reads": ["x[M]", "w[N]"], "writes": "y[M]"},
            "g": {"reads": ["y.ones[M]"], "writes": "g[M]"},
        },
    )
    refused(
        refusal(asked),
        IncompleteError,
        "device 0, programs[0][2], g: expected the 2 terms of y.ones[1], got it without "
        "f part 1 of y.ones[1]: finish the sum before this instruction",
    )


def test_data_of_another_kind_is_refused_as_an_operand() -> None:
    reads = ["norm.weight[0]", "dy[0,0]"]
    refused(
        refusal(changed(norm, 0, 4, reads=reads)),
        WrongDataError,
        "device 0, programs[0][4], norm.update: expected norm.update K=0 R=0 to read "
        "norm.weight[0] and norm.weight.grad[0], got norm.weight[0] and dy[0,0]",
    )


def test_zeros_are_no_operand() -> None:
    asked = rows({"op": "alloc", "block": "a"}, f(0, "y[0]", "x[0]", "a"))
    refused(
        refusal(asked),
        WrongDataError,
        "device 0, programs[0][1], f: expected f M=0 to read x[0] and w[0], "
        "got x[0] and a holding zeros",
    )


def test_more_or_fewer_reads_than_operands_are_refused() -> None:
    refused(
        refusal(rows(f(0, "y[0]", "x[0]"))),
        WrongDataError,
        "device 0, programs[0][0], f: expected f M=0 to read x[0] and w[0], got x[0]",
    )


def test_a_statistic_that_nobody_computed_is_missed() -> None:
    asked = norm()
    del asked["programs"][0][0]
    refused(
        refusal(asked),
        MissingBlockError,
        "device 0, programs[0][0], norm.forward: expected norm.sum[0] in this device's memory, "
        "got dy[0,0], norm.weight[0], x[0,0]: receive or compute it before this instruction",
    )


def test_arrays_with_other_dims_do_not_fit() -> None:
    made = built(rows(f(0)))
    held = memories(made)
    held[0]["w[0]"] = np.ones((2, 2))
    with pytest.raises(EmulationError) as caught:
        emulate(made, held)
    refused(
        caught.value,
        WrongDataError,
        "device 0, programs[0][0], f: expected operands of f M=0 that fit, "
        "got shapes (2,) and (2, 2)",
    )


def test_an_array_has_the_shape_of_the_cuts() -> None:
    made = built(rows())
    held = memories(made)
    held[0]["x[1]"] = np.ones(3)
    with pytest.raises(ShapeError) as caught:
        emulate(made, held)
    assert str(caught.value) == ("memories[0]: expected an array of shape (2,) for x[1], got (3,)")


# Sums


def test_a_copy_of_a_sub_operator_is_the_same_term() -> None:
    asked = norm()
    for nodes in asked["programs"]:
        nodes.append({"op": "all_reduce", "group": [0, 1], "block": "new[0]"})
    refused(
        refusal(asked),
        WrongDataError,
        "device 1, programs[1][8]: expected every term once in a sum, got norm.update K=0 "
        "a second time",
    )


def test_a_largest_is_not_summed() -> None:
    asked = changed(heads, 0, 4, reduction="sum")
    asked["programs"][1][4]["reduction"] = "sum"
    refused(
        refusal(asked),
        WrongDataError,
        "device 1, programs[1][4]: expected the max of the terms of top[0], got their sum: "
        "write reduction max, or a name without meaning",
    )


def test_a_largest_does_not_start_with_zeros() -> None:
    refused(
        refusal(rows({"op": "alloc", "block": "t[0]"}, top(0))),
        WrongDataError,
        "device 0, programs[0][1], top: expected the max of the terms of t[0], got zeros among "
        "them: write the first one into a name that holds nothing",
    )


def test_the_largest_of_equal_blocks_is_any_of_them() -> None:
    again = {"op": "all_reduce", "group": [0], "block": "x[0]", "reduction": "max"}
    twice = {"op": "compute", "reads": ["t[0]"], "accumulates": "t[0]"}
    made = built(rows(again, top(0), top(1), twice, grid={"top": {"M": 2}}))
    assert emulate(made, memories(made)).finished


# Parts


def test_parts_that_leave_something_out_are_refused() -> None:
    node = {"op": "cut", "block": "y[0]", "blocks": ["y.thirds[0]"]}
    refused(
        refusal(rows(f(0), node)),
        WrongDataError,
        "device 0, programs[0][1]: expected the parts of y[0], side by side, got y.thirds[0]",
    )


def test_parts_that_overlap_are_refused() -> None:
    asked = rows(joined("y[0]", "y.thirds[1]"), initial=[["y[0]", "y.thirds[1]"]])
    refused(
        refusal(asked),
        WrongDataError,
        "device 0, programs[0][0]: expected the parts of y.whole[0], side by side, "
        "got y[0] and y.thirds[1]",
    )


@pytest.mark.parametrize("other", ["z[1]", "unknown"])
def test_parts_of_another_tensor_are_refused(other: str) -> None:
    asked = rows(f(0), joined("y[0]", other), initial=[["x[0]", "w[0]", other]])
    refused(
        refusal(asked),
        WrongDataError,
        "device 0, programs[0][1]: expected the parts of y.whole[0], side by side, "
        f"got y[0] and {other}",
    )


def test_a_block_without_a_place_has_no_parts() -> None:
    node = {"op": "cut", "block": "unknown", "blocks": ["y[0]", "y[1]"]}
    refused(
        refusal(rows(node, initial=[["unknown"]])),
        WrongDataError,
        "device 0, programs[0][0]: expected the parts of unknown, side by side, got y[0] and y[1]",
    )


def test_parts_that_are_summed_up_otherwise_are_not_joined() -> None:
    phases = {"f": {"reads": ["x[M]", "w[N]"], "writes": "y[M]"}}
    nodes = [
        compute("f", [f"x[{m}]", f"w[{n}]"], f"y[{m}]", M=m, N=n)
        for m, n in ((0, 0), (0, 1), (1, 1))
    ]
    refused(
        refusal(rows(*nodes, joined("y[0]", "y[1]"), phases=phases)),
        WrongDataError,
        "device 0, programs[0][3]: expected parts of y.whole[0] with the same terms, "
        "got f M=0 N=0 + f M=0 N=1 in y[0] and f M=1 N=1 in y[1]",
    )


def test_a_piece_under_the_name_of_another_one_is_not_joined() -> None:
    asked = norm()
    asked["programs"][0][6]["body"][0]["block"] = "y.pieces[0,0]"
    refused(
        refusal(asked),
        WrongDataError,
        "device 1, programs[1][7]: expected y.pieces[0,1] under the name y.pieces[0,1], "
        "got norm.forward of y.pieces[0,0]",
    )


# The end


def test_a_sub_operator_is_computed_once_for_each_copy() -> None:
    refused(
        refusal(changed(norm, 1, 4, sub_operator={"K": 0, "R": 0})),
        IncompleteError,
        "expected norm.update K=0 R=0 to be computed exactly once, got it 2 times: "
        "programs[1][4], programs[0][4]",
    )


def test_a_weight_that_ends_unfinished_is_refused() -> None:
    asked = norm()
    for nodes in asked["programs"]:
        del nodes[3:5]
    del asked["grid"]["norm.update"]
    asked["final"] = [["norm.weight.grad[0]"]] * 2
    refused(
        refusal(asked),
        IncompleteError,
        "device 0: at the end expected the 2 terms of norm.weight.grad[0], got it without "
        "norm.gradient M=1 K=0",
    )


def test_what_a_sum_held_before_stays_in_it() -> None:
    asked = rows(f(0), initial=[["x[0]", "w[0]", "y[0]"]], final=[["y[0]"]])
    made = built(asked)
    assert emulate(made, memories(made)).finished
    asked["programs"][0].insert(0, {"op": "free", "block": "y[0]"})
    refused(
        refusal(asked),
        IncompleteError,
        "device 0: at the end expected the 2 terms of y[0], got it without y[0] from before",
    )


def test_data_without_meaning_does_not_belong_into_a_sum() -> None:
    addition = {"op": "compute", "reads": ["a"], "accumulates": "y[0]"}
    asked = rows(f(0), addition, initial=[["x[0]", "w[0]", "a"]], final=[["y[0]"]])
    refused(
        refusal(asked),
        IncompleteError,
        "device 0: at the end expected the 1 term of y[0], got also a of device 0",
    )


def test_without_final_every_output_is_still_there_and_finished() -> None:
    refused(
        refusal(rows(f(0), f(1), {"op": "free", "block": "y[1]"}, grid={"f": {"M": 2}})),
        IncompleteError,
        "expected y[1] in some memory at the end, got it in none",
    )
