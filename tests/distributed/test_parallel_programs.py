"""The programs of a layer between the layouts of a module's own code are proved."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from msgspec.structs import replace
from profiles import few

from primepar.distributed.parallel import linear
from primepar.distributed.parallel.layer_plan import Boundaries, boundaries_of
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import PlanError
from primepar.operators.averaging import lower_row_average
from primepar.operators.single_operator import LinearPrograms, lower_linear
from primepar.partition import parse_sequence
from primepar.plan.operator_layouts import resident
from primepar.schedule import Layout, Linear
from primepar.schedule.program import AllReduce, Free, Program
from primepar.verify import verify_program

SEQUENCES = ("K4", "N4", "Ks4", "M2,K2", "P2x2", "Is2x2")


def lowered(text: str, enters: bool, leaves: bool) -> LinearPrograms:
    """A layer of P2x2's module, with the weight as in `nn.Linear`."""
    bounds = boundaries_of(4, {"fc1": "P2x2"}, {"fc1": "P2x2"})
    source = bounds.split if leaves else bounds.stream
    target = bounds.split if enters else bounds.stream
    size = Linear(M=8, N=8, K=8)
    return lower_linear(parse_sequence(text), size, source, target=target, turned=True)


def refuted(program: Program) -> list[str]:
    return [part.name for part in verify_program(program).properties if part.verdict != "proved"]


@few
@pytest.mark.parametrize("text", SEQUENCES)
def test_forward_and_backward_are_proved(text: str) -> None:
    for enters, leaves in product((False, True), repeat=2):
        programs = lowered(text, enters, leaves)
        assert (refuted(programs.forward), refuted(programs.backward)) == ([], [])


def test_a_program_without_its_last_instructions_is_refuted() -> None:
    """What moves the output to its layout comes last: no rank may leave it out."""
    for text, (enters, leaves) in product(("N4", "P2x2"), ((True, False), (False, True))):
        program = lowered(text, enters, leaves).forward
        for rank in range(4):
            assert refuted(without_last(program, rank)), (text, rank)


def without_last(program: Program, rank: int) -> Program:
    """The program without the last instruction of a rank that makes or moves something."""
    nodes = list(program.programs[rank])
    nodes.remove([node for node in nodes if not isinstance(node, Free)][-1])
    programs = (*program.programs[:rank], tuple(nodes), *program.programs[rank + 1 :])
    return replace(program, programs=programs)


@pytest.mark.parametrize("split", [False, True])
def test_gradients_are_averaged_over_rows(split: bool) -> None:
    """Of parameters that stay whole, and of a bias that is split."""
    bounds = boundaries_of(4, {"fc1": "P2x2"}, {"fc1": "P2x2"})
    program, *_ = lower_row_average(bounds.split if split else bounds.stream, 3)
    assert refuted(program) == []
    sums = [
        {node.group for node in nodes if isinstance(node, AllReduce)} for nodes in program.programs
    ]
    assert sums == [{(0, 2)}, {(1, 3)}, {(0, 2)}, {(1, 3)}]
    assert all(refuted(without_last(program, rank)) for rank in range(4))


def test_an_average_is_lowered_once_for_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many backwards and parameters of a size there are."""
    lowered_sizes = list[int]()

    def lower(layout: Layout, size: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        lowered_sizes.append(size)
        return "program", ("before",), ("after",)

    monkeypatch.setattr(linear, "lower_row_average", lower)
    monkeypatch.setattr(
        linear, "Executor", lambda *_, kind: lambda blocks: {"after": 2 * blocks["before"]}
    )
    plain = SimpleNamespace(rank=0, compiled={})
    plain.in_dtype = lambda _: plain
    mesh = cast(Mesh, plain)
    bounds = boundaries_of(4, {"fc1": "P2x2"}, {"fc1": "P2x2"})
    averages = [linear.RowAverage(mesh, bounds.stream) for _ in range(2)]
    for average in 2 * averages:
        assert average(torch.ones(3)).tolist() == [2, 2, 2]
        assert average(torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]
    assert lowered_sizes == [3, 4]


WHOLE = (((0, 0),),) * 4
HALVES = (((0, 0),), ((0, 0),), ((1, 0),), ((1, 0),))
BOUNDARIES = {
    ("K4", "N4"): Boundaries(Layout((1, 1), WHOLE), resident("K4", "O")),
    ("M4",): Boundaries(resident("M4", "O"), resident("M4", "O")),
    ("P2x2", "P2x2"): Boundaries(Layout((2, 1), HALVES), resident("P2x2", "O")),
    ("Os2x2", "Is2x2"): Boundaries(Layout((2, 1), HALVES), resident("P2x2", "O")),
    ("Ks4", "Ns4"): Boundaries(Layout((1, 1), WHOLE), resident("K4", "O")),
}


@pytest.mark.parametrize("texts", BOUNDARIES)
def test_rows_are_those_that_all_outputs_have(texts: tuple[str, ...]) -> None:
    sequences = {f"fc{number}": text for number, text in enumerate(texts)}
    assert boundaries_of(4, sequences, {"fc0": texts[0]}) == BOUNDARIES[texts]


def test_layers_that_enter_regions_agree_on_columns() -> None:
    sequences = {"qkv": "K4", "fc1": "P2x2"}
    with pytest.raises(PlanError) as caught:
        boundaries_of(4, sequences, sequences)
    assert str(caught.value) == (
        "qkv and fc1: expected outputs that are cut into the same columns on every rank, got those "
        "of 'K4' and 'P2x2': give both one sequence"
    )
