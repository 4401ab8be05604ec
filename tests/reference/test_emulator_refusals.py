"""What is wrong with a program is refused where it happens, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulator_cases import GRID, OPERANDS, product, ranks, refused
from phase_programs import Json, built, compute, heads, norm, program

from primepar.errors import (
    DeadlockError,
    IncompleteError,
    InFlightError,
    MeshError,
    MismatchError,
    MissingBlockError,
    PrimeParError,
    ShapeError,
    WrongDataError,
)
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Barrier,
    Compute,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)

Refusal = tuple[Program, type[PrimeParError], str]
FIRST = "device 0, programs[0]"

# Blocks and messages


def two_orders() -> Program:
    """Two collectives, called in another order on the second rank."""
    a, b = (AllReduce((0, 1), name, block="x") for name in ("a", "b"))
    return ranks((a, b), (b, a), (Recv(0, "x"),))


def swap_into_itself() -> Program:
    """Each of two ranks receives into what it sends."""
    return ranks(*((Group((Send(1 - rank, "x"), Recv(1 - rank, "x"))),) for rank in (0, 1)))


OF_TWO = "got {0}: call collectives in one order on every member"
WRONG: dict[str, Refusal] = {
    "a free of what is not there": (
        ranks((Free("x"),), initial=(("y",),)), MissingBlockError,
        f"{FIRST}[0]: expected x in this device's memory to be freed, got y",
    ),
    "a fetch of what was not evicted": (
        ranks((Fetch("x"),), initial=((),)), MissingBlockError,
        f"{FIRST}[0]: expected x in this device's host memory, got none there: evict it first",
    ),
    "a read of what was evicted": (
        ranks((Evict("x"), Compute(("x",), "y")), initial=(("x",),)), MissingBlockError,
        f"{FIRST}[1]: expected x in this device's memory, got nothing: receive or compute it "
        "before this instruction",
    ),
    "operands in another order": (
        ranks((product(0, "O[0,0]", "W[0,0]", "I[0,0]"),), initial=(OPERANDS,)), WrongDataError,
        f"{FIRST}[0], forward: expected forward M=0 N=0 K=0 to read I[0,0] and W[0,0], got W[0,0] "
        "and I[0,0]",
    ),
    "data without meaning as an operand": (
        ranks((product(0, "O[0,0]", "x", "W[0,0]"),), initial=(("x", "W[0,0]"),)), WrongDataError,
        f"{FIRST}[0], forward: expected forward M=0 N=0 K=0 to read I[0,0] and W[0,0], got x "
        "holding x of device 0 and W[0,0]",
    ),
    "a group that receives into what it sends": (
        swap_into_itself(), InFlightError,
        f"{FIRST}[0]: expected x to be left alone while it is being sent, got it received into: "
        "move the wait before this instruction",
    ),
    "a request in use": (
        ranks((ISend(1, "x", request="a"), ISend(1, "y", request="a")), ()), MismatchError,
        f"{FIRST}[1]: expected a request that is not in use, got 'a' again: wait for it first, or "
        "give this one another name",
    ),
    "a message without a partner": (
        ranks((ISend(1, "x", request="a"),), ()), MismatchError,
        "device 0: expected request 'a' to be waited for, got the end of the program with it "
        "never matched: add a wait",
    ),
    "another reduction": (
        ranks((AllReduce((0, 1), block="x"),),
              (AllReduce((0, 1), block="x", reduction="max"),)), MismatchError,
        "device 1, programs[1][0]: expected all_reduce over 0,1 reduction=sum as on device 0, "
        + OF_TWO.format("all_reduce over 0,1 reduction=max"),
    ),
    "members in another order": (
        ranks((AllReduce((0, 1), block="x"),), (AllReduce((1, 0), block="x"),)), MismatchError,
        "device 1, programs[1][0]: expected all_reduce over 0,1 reduction=sum as on device 0, "
        + OF_TWO.format("all_reduce over 1,0 reduction=sum"),
    ),
    "a collective of others": (
        ranks((Barrier((1,)),), ()), MismatchError,
        f"{FIRST}[0]: expected device 0 in the group of its own collective, got [1]",
    ),
    "too few blocks of a collective": (
        ranks((AllGather((0, 1), block="x", blocks=("y",)),), ()), MismatchError,
        f"{FIRST}[0]: expected blocks to name one block for each of 2 members, got 1",
    ),
    "collectives in two orders": (
        two_orders(), DeadlockError,
        "expected every device to end, got 3 that wait without end: device 0 at programs[0][0] "
        "waits for device 1 to call all_reduce in a over 0,1 reduction=sum; device 1 at "
        "programs[1][0] waits for device 0 to call all_reduce in b over 0,1 reduction=sum (and 1 "
        "more wait)",
    ),
    "a sub-operator on two devices": (
        ranks((product(0), product(1)), (product(1),), initial=(OPERANDS, OPERANDS), grid=GRID),
        IncompleteError,
        "expected forward M=0 N=1 K=0 to be computed exactly once, got it 2 times: "
        "programs[0][1], programs[1][0]",
    ),
    "a sum that is finished nowhere": (
        ranks((product(0),), (product(1),), initial=(OPERANDS, OPERANDS), grid=GRID),
        IncompleteError,
        "at the end expected the 2 terms of O[0,0], got it without forward M=0 N=1 K=0",
    ),
    "a sum that was freed": (
        ranks((product(0), product(1), Free("O[0,0]")), initial=(OPERANDS,), grid=GRID),
        IncompleteError, "expected O[0,0] in some memory at the end, got it in none",
    ),
    "a block that ends nowhere": (
        ranks((), initial=((),), final=(("x",),)), IncompleteError,
        "device 0: expected x in its memory at the end, got it on no device",
    ),
    "another block under the final name": (
        ranks((Recv(1, "I[0,0]"),), (Send(0, "I[0,1]"),), initial=((), ("I[0,1]",)),
              final=(("I[0,0]",), ())), IncompleteError,
        "device 0: at the end expected I[0,0], got I[0,1] under that name",
    ),
    "what a sum held before": (
        ranks((), (product(0), product(1)), initial=(("O[0,0]",), OPERANDS), grid=GRID,
              final=(("O[0,0]",), ())), IncompleteError,
        "device 0: at the end expected the 3 terms of O[0,0], got it without forward M=0 N=0 K=0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused(name: str) -> None:
    refused(*WRONG[name])


@pytest.mark.parametrize(
    ("touch", "done"),
    [
        (Compute(("y",), "x"), "changed"),
        (Free("x"), "freed"),
        (Evict("x"), "evicted"),
        (IRecv(1, "x", request="b"), "received into"),
    ],
)
@pytest.mark.parametrize("sends", [True, False])
def test_a_block_in_flight_is_left_alone(touch: Instruction, done: str, sends: bool) -> None:
    post = ISend(1, "x", request="a") if sends else IRecv(1, "x", request="a")
    refused(
        ranks((post, touch, Wait("a")), (), initial=(("x", "y"), ())),
        InFlightError,
        f"{FIRST}[1]: expected x to be left alone while it is being "
        f"{'sent' if sends else 'received'}, got it {done}: move the wait before this instruction",
    )


# Phases of their own


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


def cut(block: str, *parts: str) -> Json:
    return {"op": "cut", "block": block, "blocks": list(parts)}


def of_a_part() -> Json:
    """A phase reads a part of a sum that lacks terms."""
    return rows(
        compute("f", ["x[0]", "w[0]"], "y[0]", M=0, N=0),
        cut("y[0]", "y.ones[0]", "y.ones[1]"),
        compute("g", ["y.ones[1]"], "g[1]", M=1),
        grid={"f": {"M": 2, "N": 2}},
        phases={
            "f": {"reads": ["x[M]", "w[N]"], "writes": "y[M]"},
            "g": {"reads": ["y.ones[M]"], "writes": "g[M]"},
        },
    )


def without_statistic() -> Json:
    asked = norm()
    del asked["programs"][0][0]
    return asked


def reduced_again() -> Json:
    asked = norm()
    for nodes in asked["programs"]:
        nodes.append({"op": "all_reduce", "group": [0, 1], "block": "new[0]"})
    return asked


def summed_largest() -> Json:
    asked = changed(heads, 0, 4, reduction="sum")
    asked["programs"][1][4]["reduction"] = "sum"
    return asked


def otherwise_summed() -> Json:
    """Two blocks with other terms are joined."""
    phases = {"f": {"reads": ["x[M]", "w[N]"], "writes": "y[M]"}}
    nodes = [
        compute("f", [f"x[{m}]", f"w[{n}]"], f"y[{m}]", M=m, N=n)
        for m, n in ((0, 0), (0, 1), (1, 1))
    ]
    return rows(*nodes, joined("y[0]", "y[1]"), phases=phases)


def misnamed_piece() -> Json:
    asked = norm()
    asked["programs"][0][6]["body"][0]["block"] = "y.pieces[0,0]"
    return asked


def unfinished_end() -> Json:
    asked = norm()
    for nodes in asked["programs"]:
        del nodes[3:5]
    del asked["grid"]["norm.update"]
    asked["final"] = [["norm.weight.grad[0]"]] * 2
    return asked


def held_before(*nodes: Json) -> Json:
    """A sum into a block that there is already."""
    return rows(*nodes, f(0), initial=[["x[0]", "w[0]", "y[0]"]], final=[["y[0]"]])


WRONG_PHASES: dict[str, tuple[Json, type[PrimeParError], str]] = {
    "a part of an unfinished sum": (
        of_a_part(), IncompleteError,
        f"{FIRST}[2], g: expected the 2 terms of y.ones[1], got it without f part 1 of y.ones[1]: "
        "finish the sum before this instruction",
    ),
    "data of another kind": (
        changed(norm, 0, 4, reads=["norm.weight[0]", "dy[0,0]"]), WrongDataError,
        f"{FIRST}[4], norm.update: expected norm.update K=0 R=0 to read norm.weight[0] and "
        "norm.weight.grad[0], got norm.weight[0] and dy[0,0]",
    ),
    "zeros as an operand": (
        rows({"op": "alloc", "block": "a"}, f(0, "y[0]", "x[0]", "a")), WrongDataError,
        f"{FIRST}[1], f: expected f M=0 to read x[0] and w[0], got x[0] and a holding zeros",
    ),
    "fewer reads than operands": (
        rows(f(0, "y[0]", "x[0]")), WrongDataError,
        f"{FIRST}[0], f: expected f M=0 to read x[0] and w[0], got x[0]",
    ),
    "a statistic that nobody computed": (
        without_statistic(), MissingBlockError,
        f"{FIRST}[0], norm.forward: expected norm.sum[0] in this device's memory, got dy[0,0], "
        "norm.weight[0], x[0,0]: receive or compute it before this instruction",
    ),
    "a copy of a sub-operator": (
        reduced_again(), WrongDataError,
        "device 1, programs[1][8]: expected every term once in a sum, got norm.update K=0 a "
        "second time",
    ),
    "a maximum that is summed": (
        summed_largest(), WrongDataError,
        "device 1, programs[1][4]: expected the max of the terms of top[0], got their sum: write "
        "reduction max, or a name without meaning",
    ),
    "a maximum that starts with zeros": (
        rows({"op": "alloc", "block": "t[0]"}, top(0)), WrongDataError,
        f"{FIRST}[1], top: expected the max of the terms of t[0], got zeros among them: write the "
        "first one into a name that holds nothing",
    ),
    "parts that leave something out": (
        rows(f(0), cut("y[0]", "y.thirds[0]")), WrongDataError,
        f"{FIRST}[1]: expected the parts of y[0], side by side, got y.thirds[0]",
    ),
    "parts that overlap": (
        rows(joined("y[0]", "y.thirds[1]"), initial=[["y[0]", "y.thirds[1]"]]), WrongDataError,
        f"{FIRST}[0]: expected the parts of y.whole[0], side by side, got y[0] and y.thirds[1]",
    ),
    **{f"a part of another tensor, {other}": (
        rows(f(0), joined("y[0]", other), initial=[["x[0]", "w[0]", other]]), WrongDataError,
        f"{FIRST}[1]: expected the parts of y.whole[0], side by side, got y[0] and {other}",
    ) for other in ("z[1]", "unknown")},
    "parts of a block without a place": (
        rows(cut("unknown", "y[0]", "y[1]"), initial=[["unknown"]]), WrongDataError,
        f"{FIRST}[0]: expected the parts of unknown, side by side, got y[0] and y[1]",
    ),
    "parts that are summed up otherwise": (
        otherwise_summed(), WrongDataError,
        f"{FIRST}[3]: expected parts of y.whole[0] with the same terms, got f M=0 N=0 + f M=0 N=1 "
        "in y[0] and f M=1 N=1 in y[1]",
    ),
    "a piece under the name of another": (
        misnamed_piece(), WrongDataError,
        "device 1, programs[1][7]: expected y.pieces[0,1] under the name y.pieces[0,1], got "
        "norm.forward of y.pieces[0,0]",
    ),
    "one copy twice": (
        changed(norm, 1, 4, sub_operator={"K": 0, "R": 0}), IncompleteError,
        "expected norm.update K=0 R=0 to be computed exactly once, got it 2 times: "
        "programs[1][4], programs[0][4]",
    ),
    "a weight that ends unfinished": (
        unfinished_end(), IncompleteError,
        "device 0: at the end expected the 2 terms of norm.weight.grad[0], got it without "
        "norm.gradient M=1 K=0",
    ),
    "a sum without what it held before": (
        held_before({"op": "free", "block": "y[0]"}), IncompleteError,
        "device 0: at the end expected the 2 terms of y[0], got it without y[0] from before",
    ),
    "data without meaning in a sum": (
        rows(f(0), {"op": "compute", "reads": ["a"], "accumulates": "y[0]"},
             initial=[["x[0]", "w[0]", "a"]], final=[["y[0]"]]), IncompleteError,
        "device 0: at the end expected the 1 term of y[0], got also a of device 0",
    ),
    "an output that is freed, without final": (
        rows(f(0), f(1), {"op": "free", "block": "y[1]"}, grid={"f": {"M": 2}}), IncompleteError,
        "expected y[1] in some memory at the end, got it in none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_PHASES)
def test_a_wrong_program_of_phases_is_refused(name: str) -> None:
    asked, kind, message = WRONG_PHASES[name]
    refused(built(asked), kind, message)


def test_what_is_right_next_to_it_runs() -> None:
    """The largest of equal blocks is any of them; what a sum held before stays in it."""
    again = {"op": "all_reduce", "group": [0], "block": "x[0]", "reduction": "max"}
    twice = {"op": "compute", "reads": ["t[0]"], "accumulates": "t[0]"}
    for asked in (rows(again, top(0), top(1), twice, grid={"top": {"M": 2}}), held_before()):
        assert emulate(built(asked), memories(built(asked))).finished


# Arrays

CUT = built(rows(f(0)))
ARRAYS: dict[str, tuple[Program, list[dict[str, Any]], type[PrimeParError], str]] = {
    "none for an initial block": (
        ranks((), initial=(("x",),)), [{"y": np.ones(2)}], MissingBlockError,
        "memories[0]: expected an array for x, got none",
    ),
    "too few memories": (
        ranks((), ()), [{}], MeshError, "expected one memory for each of 2 ranks, got 1",
    ),
    "another shape than is received": (
        ranks((Recv(1, "x"),), (Send(0, "x"),), initial=(("x",), ("x",))),
        [{"x": np.ones(2)}, {"x": np.ones(3)}], WrongDataError,
        f"{FIRST}[0]: expected a block of shape (2,) for x, got (3,)",
    ),
    "two shapes in a sum": (
        ranks((Compute(("x", "y"), "z"),)), [{"x": np.ones(2), "y": np.ones(3)}], WrongDataError,
        f"{FIRST}[0]: expected blocks of one shape to reduce, got (2,) and (3,)",
    ),
    "operands that do not fit": (
        ranks((product(0),)), [{"I[0,0]": np.ones((2, 3)), "W[0,0]": np.ones((2, 3))}],
        WrongDataError,
        f"{FIRST}[0], forward: expected operands of forward M=0 N=0 K=0 that fit, got shapes "
        "(2, 3) and (2, 3)",
    ),
    "operands of a phase that do not fit": (
        CUT, [{**memories(CUT)[0], "w[0]": np.ones((2, 2))}], WrongDataError,
        f"{FIRST}[0], f: expected operands of f M=0 that fit, got shapes (2,) and (2, 2)",
    ),
    "another shape than that of the cuts": (
        CUT, [{**memories(CUT)[0], "x[1]": np.ones(3)}], ShapeError,
        "memories[0]: expected an array of shape (2,) for x[1], got (3,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_does_not_fit_is_refused(name: str) -> None:
    made, held, kind, message = ARRAYS[name]
    refused(made, kind, message, held)
