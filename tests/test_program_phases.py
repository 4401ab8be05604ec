"""Programs with phases of their own: norms, residuals, whatever has a signature."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from primepar.schedule import Program
from primepar.verify import Report, verify_program

Json = dict[str, Any]

PHASES: Json = {
    "norm.squares": {"reads": ["x[M,K]"], "writes": "norm.sum[M]"},
    "norm.forward": {"reads": ["x[M,K]", "norm.sum[M]", "norm.weight[K]"], "writes": "y[M,K]"},
    "norm.gradient": {"reads": ["x[M,K]", "dy[M,K]"], "writes": "norm.weight.grad[K]"},
    "norm.update": {"reads": ["norm.weight[K]", "norm.weight.grad[K]"], "writes": "new[K]"},
}
TENSORS: Json = {
    "x": {"cuts": [[0, 4, 8], [0, 6]]},
    "y": {"cuts": [[0, 4, 8], [0, 6]]},
    "dy": {"cuts": [[0, 4, 8], [0, 6]]},
    "y.columns": {"of": "y", "cuts": [[0, 8], [0, 3, 6]]},
    "y.pieces": {"of": "y", "cuts": [[0, 4, 8], [0, 3, 6]]},
}


def compute(phase: str, reads: list[str], writes: str, **sub_operator: int) -> Json:
    return {
        "op": "compute", "phase": phase, "reads": reads, "accumulates": writes,
        "sub_operator": sub_operator,
    }  # fmt: skip


def rows(rank: int) -> list[Json]:
    """One rank's rows of a norm, its gradient summed over both ranks, and the update."""
    x, y, own = f"x[{rank},0]", f"y[{rank},0]", f"norm.sum[{rank}]"
    return [
        compute("norm.squares", [x], own, M=rank, K=0),
        compute("norm.forward", [x, own, "norm.weight[0]"], y, M=rank, K=0),
        compute("norm.gradient", [x, f"dy[{rank},0]"], "norm.weight.grad[0]", M=rank, K=0),
        {"op": "all_reduce", "group": [0, 1], "block": "norm.weight.grad[0]"},
        compute("norm.update", ["norm.weight[0]", "norm.weight.grad[0]"], "new[0]", K=0, R=rank),
    ]


def moved(rank: int) -> list[Json]:
    """From rows to columns: each rank cuts what it has, keeps one piece and sends the other."""
    kept, left = f"y.pieces[{rank},{rank}]", f"y.pieces[{rank},{1 - rank}]"
    arriving = f"y.pieces[{1 - rank},{rank}]"
    pieces = [f"y.pieces[0,{rank}]", f"y.pieces[1,{rank}]"]
    messages = [
        {"op": "send", "peer": 1 - rank, "block": left},
        {"op": "recv", "peer": 1 - rank, "block": arriving},
    ]
    return [
        {"op": "cut", "block": f"y[{rank},0]", "blocks": sorted([kept, left])},
        {"op": "group", "body": messages},
        {"op": "join", "blocks": pieces, "block": f"y.columns[0,{rank}]"},
    ]


def fields() -> Json:
    return {
        "format": "primepar-program",
        "version": 1,
        "ranks": 2,
        "grid": {
            "norm.squares": {"M": 2, "K": 1},
            "norm.forward": {"M": 2, "K": 1},
            "norm.gradient": {"M": 2, "K": 1},
            "norm.update": {"K": 1, "R": 2},
        },
        "phases": PHASES,
        "tensors": TENSORS,
        "initial": [[f"x[{r},0]", f"dy[{r},0]", "norm.weight[0]"] for r in (0, 1)],
        "final": [[f"y.columns[0,{r}]", "new[0]"] for r in (0, 1)],
        "programs": [rows(r) + moved(r) for r in (0, 1)],
    }


def verified(asked: Json) -> Report:
    return verify_program(msgspec.convert(asked, Program))


def refuted(asked: Json) -> dict[str, str]:
    return {
        result.name: result.counterexample
        for result in verified(asked).properties
        if result.counterexample is not None
    }


def test_a_step_with_phases_of_its_own_is_proved() -> None:
    report = verified(fields())
    assert report.verdict == "proved"
    assert [result.name for result in report.properties] == [
        "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races",
    ]  # fmt: skip


def test_a_gradient_of_a_norm_that_is_left_unsummed_is_refuted() -> None:
    asked = fields()
    for programs in asked["programs"]:
        del programs[3]
    assert refuted(asked) == {
        "completion": "rank 0, instruction 3 (norm.update new[0] += norm.weight[0] * "
        "norm.weight.grad[0]), which reads norm.weight.grad[0] for the norm.update sub-operator "
        "(K=0, R=0): expected norm.gradient product (M=1, K=0) once, got it never: bring it here "
        "from rank 1, instruction 2 (norm.gradient norm.weight.grad[0] += x[1,0] * dy[1,0])"
    }


def test_a_gradient_that_is_summed_twice_is_refuted() -> None:
    asked = fields()
    for programs in asked["programs"]:
        programs.insert(4, dict(programs[3]))
    found = refuted(asked)["completion"]
    assert "expected norm.gradient product (M=0, K=0) once, got it twice: mend rank 0" in found


def test_a_sum_over_the_wrong_group_is_refuted() -> None:
    asked = fields()
    for rank, programs in enumerate(asked["programs"]):
        programs[3]["group"] = [rank]
    assert list(refuted(asked)) == ["completion"]


def test_a_statistic_that_is_left_out_is_refuted() -> None:
    asked = fields()
    del asked["programs"][0][0]
    found = refuted(asked)
    assert list(found) == ["coverage", "placement"]
    assert found["placement"] == (
        "rank 0, instruction 0 (norm.forward y[0,0] += x[0,0] * norm.sum[0] * norm.weight[0]): "
        "expected norm.sum[0] in this rank's memory, got none there: receive or compute it before, "
        "or list it in initial"
    )


def test_pieces_in_the_wrong_order_are_refuted() -> None:
    asked = fields()
    cut = asked["programs"][0][5]
    assert cut["op"] == "cut"
    message = asked["programs"][0][6]["body"][0]
    message["block"] = "y.pieces[0,0]"
    found = refuted(asked)
    assert list(found) == ["placement", "completion"]
    assert "parts of one kind" in found["placement"]


def test_a_weight_that_ends_elsewhere_is_refuted() -> None:
    asked = fields()
    asked["programs"][1].pop(4)
    assert list(refuted(asked)) == ["coverage", "completion"]


def test_copies_of_a_sub_operator_are_covered_each_once() -> None:
    asked = fields()
    asked["programs"][1][4]["sub_operator"]["R"] = 0
    found = refuted(asked)
    assert list(found) == ["coverage"]
    assert found["coverage"].startswith("norm.update sub-operator (K=0, R=0): expected one rank")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"phases": {"f": {"reads": ["x[M,K"], "writes": "y[M]"}}},
            "expected a block name over dims, such as 'I[M,N]', got 'x[M,K' - at `$.phases[...]`",
        ),
        (
            {"tensors": {"x": {"cuts": [[0, 4, 4]]}}},
            "expected cuts that rise from 0 to the size of dim 0, got [0, 4, 4] "
            "- at `$.tensors[...]`",
        ),
        (
            {"grid": {"f": {"M": 2}}, "programs": [[], []]},
            "expected phases out of forward, backward, gradient, norm.squares, norm.forward, "
            "norm.gradient, norm.update, got 'f' in grid: give it a signature in phases",
        ),
        (
            {"grid": {"norm.squares": {"M": 2}}},
            "expected K among the dims of grid.norm.squares, got M",
        ),
    ],
)
def test_what_is_wrong_with_a_signature_is_said(change: Json, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert({**fields(), **change}, Program)
    assert str(raised.value) == message


def test_a_sub_operator_that_leaves_out_a_dim_of_its_phase_is_refused() -> None:
    first = compute("forward", ["I[0,0]", "W[0,0]"], "O[0,0]", M=0, N=0, K=0)
    second = compute("forward", ["I[0,0]", "W[0,0]"], "O[0,0]", N=0)
    asked = {**fields(), "grid": None, "programs": [[first, second], []]}
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(asked, Program)
    assert str(raised.value) == "expected a sub_operator with K, M, N, got N in programs[0][1]"


def test_a_grid_that_nobody_could_walk_through_is_refused() -> None:
    asked = {**fields(), "grid": {"norm.squares": {"M": 10**6, "K": 10**6}}}
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(asked, Program)
    assert str(raised.value) == (
        "expected at most 1000000 sub-operators in grid.norm.squares, got 1000000000000"
    )


@pytest.mark.parametrize("name", ["A" * 1001, "", "A\nB", "A\x1b[31m"])
def test_a_name_that_would_spoil_a_report_is_refused(name: str) -> None:
    asked = {**fields(), "programs": [[{"op": "free", "block": name}], []]}
    with pytest.raises(msgspec.ValidationError, match=r"^Expected `str` "):
        msgspec.convert(asked, Program)
