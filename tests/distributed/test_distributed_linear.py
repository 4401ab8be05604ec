"""The partitioned linear operator and the executor, on real processes against one device."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import linear_cases as cases
import numpy as np
import pytest
import torch
from distributed_program import GROUP, RANKS, expected_blocks, run_program, run_rows_together
from distributed_ranks import on_ranks
from linear_layer import LinearLayer
from profiles import IS_LONG

from primepar.distributed import Mesh
from primepar.errors import MeshError
from primepar.partition import parse_sequence
from primepar.schedule import Layout, Linear

TRAVEL = ("P1x1", "K2", "N2", "M2", "P2x2", "K,N2", "P3x3", "M2,P2x2", "K,P2x2")
FAMILY = ("Ns2", "Ks4", "S2x2", "Os2x2", "Is2x2", "Ws2x2", "S1x2", "T2x2x2", "C2x2x2", "Cr2x2x2",
          "D2x2x2", "S3x3", "Is3x3", "G2x1x2")  # fmt: skip
STAYS = ("M2,Ks2", "F2", "H2", "Ks2,Ns2", "M2,S2x2", "P2x2,Ks2", "K2,Os2x2", "F4", "F2,Ns3",
         "H2,Ks2", "Ks2,P2x2", "Ns2,Ws2x2")  # fmt: skip
"""F is `linear_cases.Sharded`, H `Turned`; under Ks2,Ns2 a device holds blocks apart."""
LONG = ("Gw2x2x1", "Ks2", "Ns4", "S2x1", "S1x4", "F4", "Ns2,Ks2", "H2,N2", "H2,Ks2")
EVERY = (*TRAVEL, *FAMILY, *STAYS)
SEQUENCES = [
    name
    for name in (*EVERY, *LONG)
    if IS_LONG or (cases.sequence_of(name).ranks <= 4 and name not in LONG)
]
"""In the short profile the worlds of at most four processes."""
ROWS = Layout((4, 1), (((0, 0),), ((1, 0),), ((2, 0),), ((3, 0),)))
COLUMNS = Layout((1, 4), (((0, 3),), ((0, 2),), ((0, 1),), ((0, 0),)))
COPIES = Layout((1, 1), (((0, 0),),) * 4)
PAIRS = Layout((2, 1), (((0, 0),), ((0, 0),), ((1, 0),), ((1, 0),)))
STRIDES = Layout((4, 3), tuple(tuple(product(rows, columns)) for columns in ((0, 2), (1,))
                               for rows in ((0, 2), (1, 3))))  # fmt: skip
SOURCES = {"rows": ROWS, "columns": COLUMNS, "strides": STRIDES}
SOURCES |= {"copies": COPIES, "pairs": PAIRS} if IS_LONG else {}


def size_of(sequence: str) -> int:
    return cases.sequence_of(sequence).ranks


@cache
def results(size: int) -> list[dict[str, Any]]:
    """Everything that one world of `size` processes is asked, rank by rank."""
    asked: dict[str, tuple[Any, ...]] = {
        name: (name,) for name in SEQUENCES if size_of(name) == size
    }
    if size == 4:
        asked |= {name: ("P2x2", source) for name, source in SOURCES.items()}
    calls = [("linear", given) for given in asked.values()]
    if size == 2:
        asked["B2"] = ()
        calls.append(("unfit", ("B2",)))
    answers = on_ranks(size, cases.several, calls)
    return [dict(zip(asked, answer, strict=True)) for answer in answers]


@pytest.mark.parametrize("case", [*SEQUENCES, *SOURCES])
def test_output_and_gradients_equal_one_device(case: str) -> None:
    """From any layout of the input, to which its gradient goes back.

    After the first step no memory is made, an evaluation gives the same, and the weight stays
    where it is: forwards may wait for their backwards.
    """
    is_dense([result[case] for result in results(4 if case in SOURCES else size_of(case))])


def is_dense(everyone: list[dict[str, Any]]) -> None:
    """What all ranks have of a layer is what one device makes."""
    got, dense = everyone[0], cases.dense_tensors()
    assert {name: array.tolist() for name, array in got["arrays"].items()} == {
        name: array.tolist() for name, array in dense.items()
    }
    assert got["sums"]["dW"].tolist() == (4 * dense["dW"]).tolist()
    assert got["sums"]["dI"].tolist() == (2 * dense["dI"]).tolist()
    for result in everyone:
        assert result["evaluations"] == [True] * 3
        assert (result["equal"], result["stayed"]) == (True, True)


@pytest.mark.parametrize(("sequence", "side"), [("P2x2", 2), *([("P3x3", 3)] if IS_LONG else [])])
def test_every_rank_of_primepar_sends_what_the_formula_gives(sequence: str, side: int) -> None:
    mn, mk, nk = cases.M * cases.N, cases.M * cases.K, cases.N * cases.K
    formula = Fraction(2 * (side - 1) * (mn + mk) + 2 * side * nk, side**2)
    sent = [result[sequence]["sent"]["linear"] for result in results(side**2)]
    assert sent == [formula] * side**2


@pytest.mark.parametrize("sequence", [name for name in SEQUENCES if name in FAMILY])
def test_every_member_of_the_family_sends_its_formula(sequence: str) -> None:
    (element,) = parse_sequence(sequence).elements
    formula = element.sent(Linear(cases.M, cases.N, cases.K))
    sent = [result[sequence]["sent"]["linear"] for result in results(size_of(sequence))]
    assert sent == [formula] * size_of(sequence)


@pytest.mark.parametrize(
    ("sequence", "reduced"),
    [("K2", cases.M * cases.N), ("N2", cases.M * cases.K), ("M2", cases.N * cases.K)],
)
def test_a_split_dim_costs_one_all_reduce(sequence: str, reduced: int) -> None:
    sent = [result[sequence]["sent"]["linear"] for result in results(2)]
    assert sent == [Fraction(2 * reduced, 2)] * 2


@pytest.mark.parametrize("sequence", [name for name in SEQUENCES if name not in TRAVEL])
def test_a_weight_that_stays_may_not_change_before_its_backward(sequence: str) -> None:
    for result in results(size_of(sequence)):
        assert "modified by an inplace operation" in result[sequence]["changed"]


def test_a_split_batch_is_refused() -> None:
    assert results(2)[0]["B2"] == (
        "SequenceError: sequence 'B2': expected no split of B, as rows of all sequences of a "
        "batch are one dim here: write M for B"
    )


def test_a_world_of_another_size_is_refused() -> None:
    with pytest.raises(MeshError) as error:
        Mesh(parse_sequence("P2x2"))
    assert str(error.value) == (
        "sequence 'P2x2': expected 4 processes, got 1: start it with mpirun -n 4"
    )


def test_a_changed_input_is_no_longer_differentiated() -> None:
    layer = LinearLayer(Mesh(parse_sequence("")), torch.ones(6, 4))
    x = torch.ones(2, 6)
    output = layer(x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@cache
def program_results() -> list[dict[str, Any]]:
    return on_ranks(RANKS, run_program, True)


def test_every_instruction_does_what_the_program_defines() -> None:
    are_defined(program_results())


def are_defined(everyone: list[dict[str, Any]]) -> None:
    """The blocks of all ranks are those that the program leaves."""
    for result, expected in zip(everyone, expected_blocks(), strict=True):
        assert result["blocks"].keys() == {f"{name}[0]" for name in expected}
        for name, block in expected.items():
            np.testing.assert_array_equal(result["blocks"][f"{name}[0]"], block, name)


def test_a_given_block_is_never_written() -> None:
    assert [result["untouched"] for result in program_results()] == [True] * RANKS


def test_the_events_of_a_run_account_for_what_was_sent() -> None:
    for rank, result in enumerate(program_results()):
        events = result["events"]
        assert sum(event.elements for event in events) == result["sent"]
        assert {event.rank for event in events} == {rank}
        assert all(0 <= event.start <= event.end for event in events)
        assert {event.op for event in events if event.track == "compute"} == {"compute"}


@pytest.mark.parametrize("group", [(0, 1, 2, 3), GROUP])
def test_members_may_come_in_any_order_and_rows_are_gathered_where_they_are_joined(
    group: tuple[int, ...],
) -> None:
    """The product's two wholes and the sum that stays: nothing else is made, or comes back."""
    for rank, result in enumerate(on_ranks(RANKS, run_rows_together, group)):
        member = group.index(rank)
        assert result == {
            "equal": True,
            "names": [f"O[{member},0]", "W[0,0]"],
            "untouched": True,
            "peak": 4 + 2 * 16,
        }
