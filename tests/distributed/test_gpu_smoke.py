"""NCCL itself, in seconds: every instruction, and messages that cross on fresh communicators."""

from __future__ import annotations

import pytest
import torch
from backends import BACKENDS, gpu
from distributed_program import RANKS, run_program
from distributed_ranks import device_of_rank, on_ranks
from nccl_rules import LAZY
from test_distributed_linear import are_defined

from primepar.distributed import Mesh
from primepar.partition import parse_sequence

PAIR = (0, 1)


def crossing(connected: bool = True) -> float:
    """Rank 0 first sends to rank 1 on `up`, while rank 1 first sends to rank 0 on `down`.

    Without connections that were made before, the host of each waits for the other in its first
    batch.
    """
    mesh = Mesh(parse_sequence("K2"), device_of_rank())
    peers = {name: {1 - mesh.rank} for name in ("up", "down") if connected}
    mesh.ensure_groups((("up", PAIR), ("down", PAIR)), peers)
    given, taken = (torch.full((3,), value, device=mesh.device) for value in (1.0 + mesh.rank, 0.0))
    works = []
    for name in ("up", "down") if mesh.rank == 0 else ("down", "up"):
        group = mesh.group(PAIR, name)
        if mesh.is_ordered:
            group._start_coalescing(mesh.device)
        if (name == "up") == (mesh.rank == 0):
            work = group.send([given], 1 - mesh.rank, 0)
        else:
            work = group.recv([taken], 1 - mesh.rank, 0)
        works.append(group._end_coalescing(mesh.device) if mesh.is_ordered else work)
    for work in works:
        work.wait()
    mesh.synchronize()
    return float(taken.sum())


@pytest.mark.parametrize("backend", [*BACKENDS, LAZY])
def test_first_messages_that_cross_on_two_communicators_arrive(backend: str) -> None:
    assert on_ranks(2, crossing, backend=backend) == [6.0, 3.0]


def test_without_connections_they_hang() -> None:
    with pytest.raises(RuntimeError) as caught:
        on_ranks(2, crossing, False, backend=LAZY)
    assert str(caught.value).endswith(
        "RuntimeError: deadlock under the rules of NCCL: no rank can go on\n"
        "  rank 0 sends or receives first on 1: expected ranks [1] there\n"
        "  rank 1 sends or receives first on 2: expected ranks [0] there\n"
    )


@gpu
def test_every_instruction_does_what_the_program_defines() -> None:
    are_defined(on_ranks(RANKS, run_program, True, backend="nccl"))
