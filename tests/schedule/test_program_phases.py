"""Programs with phases of their own: norms, residuals, whatever has a signature.

With other instructions that are wrong they are in `test_mutants`, as "step in rows".
"""

from __future__ import annotations

import msgspec
import pytest
from phase_programs import Json, built, compute, norm, program
from step_cases import refuted as counterexamples

from primepar.schedule import Program
from primepar.verify import Report, verify_program


def fields() -> Json:
    """A norm, of whose end only the output and the new weight are asked."""
    return {**norm(), "final": [[f"y.columns[0,{r}]", "new[0]"] for r in (0, 1)]}


def verified(asked: Json) -> Report:
    return verify_program(built(asked))


def refuted(asked: Json) -> dict[str, str]:
    return counterexamples(built(asked))


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
        "(K=0, R=0): expected norm.gradient product (M=1, K=0) once, got it never: send it here "
        "from rank 1, instruction 2 (norm.gradient norm.weight.grad[0] += x[1,0] * dy[1,0])"
    }


def test_a_gradient_that_is_summed_twice_is_refuted() -> None:
    asked = fields()
    for programs in asked["programs"]:
        programs.insert(4, dict(programs[3]))
    found = refuted(asked)["completion"]
    assert found == (
        "rank 0, instruction 5 (norm.update new[0] += norm.weight[0] * norm.weight.grad[0]), which "
        "reads norm.weight.grad[0] for the norm.update sub-operator (K=0, R=0): expected each "
        "norm.gradient product once, got each twice: it is added twice, so add it once or write "
        "scale 1/2: see rank 0, instruction 4 (all_reduce norm.weight.grad[0] over 0,1)"
    )


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
def test_what_is_wrong_with_a_signature_is_reported(change: Json, message: str) -> None:
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


PIECES: Json = {
    "x": {"cuts": [[0, 4], [0, 4]]},
    "x.halves": {"of": "x", "cuts": [[0, 4], [0, 2, 4]]},
    "x.quarters": {"of": "x", "cuts": [[0, 2, 4], [0, 2, 4]]},
}
"""A tensor in one block, and two other ways to cut it."""


@pytest.mark.parametrize(
    "blocks",
    [
        ["x.halves[0,0]", "x.quarters[0,0]", "x.quarters[0,1]"],
        ["x.halves[0,0]", "x.halves[0,0]"],
        ["x.halves[0,0]"],
        ["x.halves[0,0]", "x.halves[0,1]", "scratch"],
    ],
)
@pytest.mark.parametrize("op", ["cut", "join"])
def test_parts_that_overlap_or_leave_something_out_are_refuted(op: str, blocks: list[str]) -> None:
    node = {"op": op, "block": "x[0,0]", "blocks": blocks}
    refutations = refuted(program([[node]], tensors=PIECES))
    assert list(refutations) == ["placement"]
    assert (
        "expected to read the parts of x[0,0], side by side, and nothing but these"
        in (refutations["placement"])
    )


def test_data_of_another_place_is_neither_cut_nor_joined() -> None:
    nodes: list[Json] = [
        {"op": "isend", "peer": 1, "block": "x.halves[0,1]", "request": "a"},
        {"op": "wait", "request": "a"},
    ]
    parts = ["x.quarters[0,0]", "x.quarters[1,0]"]
    arriving: list[Json] = [
        {"op": "recv", "peer": 0, "block": "x.halves[0,0]"},
        {"op": "cut", "block": "x.halves[0,0]", "blocks": parts},
    ]
    refutations = refuted(program([nodes, arriving], tensors=PIECES))
    assert refutations == {
        "placement": "rank 1, instruction 1 (cut x.halves[0,0] -> x.quarters[0,0] "
        "x.quarters[1,0]): expected data of the place of x.halves[0,0] in it, got data of another "
        "place: cut or join it before"
    }


def test_sums_of_sums_that_share_one_another_are_counted_at_once() -> None:
    product = compute("forward", ["I[0,0]", "W[0,0]"], "O[0,0]", M=0, N=0, K=0)
    doubled: Json = {"op": "all_reduce", "group": [0, 1], "block": "O[0,0]"}
    zeros: Json = {"op": "alloc", "block": "O[0,0]"}
    lists = [[product, *[doubled] * 300], [zeros, *[doubled] * 300]]
    refutations = refuted(program(lists, grid={"forward": {"M": 1, "N": 1, "K": 1}}))
    assert (
        "expected forward product (M=0, N=0, K=0) once, got it more than 1000000000 times"
        in refutations["completion"]
    )


def test_a_sum_without_a_dim_of_its_own_is_followed() -> None:
    lists = [[compute("forward", [f"I[{n}]", f"W[{n}]"], "O[]", N=n) for n in (0, 1)]]
    asked = program(lists, grid={"forward": {"N": 2}})
    assert verified(asked).verdict == "proved"
    del asked["programs"][0][1]
    assert list(refuted(asked)) == ["coverage", "completion"]
