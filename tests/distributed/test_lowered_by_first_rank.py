"""One process lowers a program for all: what the others get, also where it cannot be lowered."""

from __future__ import annotations

from typing import cast

import pytest

pytest.importorskip("torch")

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.step_programs import lowered_by_first_rank
from primepar.errors import PlanError, ProgramError
from primepar.schedule.one_queue import out_of_order
from primepar.schedule.program import Alloc, Compute, IRecv, ISend, Program, Wait

INSTRUCTION = Compute(("b",), "a")
PROGRAM = Program("primepar-program", 1, 2, ((INSTRUCTION,), ()), initial=(("b",), ()))
HELD_UP = Program("primepar-program", 1, 2, tuple(
    (IRecv(1 - rank, "got", request="in"), Alloc("y"), ISend(1 - rank, "x", request="out"),
     Wait("in"), Wait("out"))
    for rank in range(2)
), initial=(("x",), ("x",)))  # fmt: skip
"""On one communicator the receives of both ranks wait for the sends behind them."""


class Broadcasts:
    """The part of a mesh that is used here; all ranks have the same list of messages."""

    def __init__(self, rank: int, sent: list[bytes], first: int = 0, ranks: int = 2) -> None:
        self.rank, self.first, self.ranks, self.sent = rank, first, ranks, sent
        self.is_ordered = False

    def broadcast(self, content: bytes | None) -> bytes:
        """Append what rank 0 sends; return it on the others."""
        self.sent += [] if content is None else [content]
        return self.sent[-1]


def mesh(rank: int, sent: list[bytes], first: int = 0, ranks: int = 2) -> Mesh:
    return cast(Mesh, Broadcasts(rank, sent, first, ranks))


def refused() -> Program:
    raise PlanError("expected another plan")


def test_all_ranks_have_the_program_that_the_first_process_lowers() -> None:
    sent: list[bytes] = []
    assert lowered_by_first_rank(mesh(0, sent), lambda: PROGRAM) is PROGRAM
    assert lowered_by_first_rank(mesh(1, sent), refused) == PROGRAM
    assert lowered_by_first_rank(mesh(0, sent, first=2), refused) == PROGRAM  # of replica 1


def test_on_an_ordered_mesh_messages_have_the_communicators_that_they_run_on() -> None:
    sent: list[bytes] = []
    ranks = [mesh(rank, sent) for rank in range(2)]
    for ordered in ranks:
        ordered.is_ordered = True
    lowered = [lowered_by_first_rank(ordered, lambda: HELD_UP) for ordered in ranks]
    assert out_of_order(HELD_UP) is not None
    assert out_of_order(lowered[0]) is None
    assert lowered[0] == lowered[1]


def test_a_rank_alone_lowers_for_itself() -> None:
    assert lowered_by_first_rank(mesh(0, [], ranks=1), lambda: PROGRAM) is PROGRAM


def test_a_program_that_cannot_be_lowered_ends_all_ranks() -> None:
    sent: list[bytes] = []
    with pytest.raises(PlanError, match=r"^expected another plan$"):
        lowered_by_first_rank(mesh(0, sent), refused)
    with pytest.raises(ProgramError) as caught:
        lowered_by_first_rank(mesh(1, sent), refused)
    assert str(caught.value) == "expected a program from rank 0, got none: it has the error"
