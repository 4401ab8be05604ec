"""What the ranks of the tests of redistribution do: each function runs on every rank."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import NamedTuple

import sent_traffic
import torch
from linear_cases import mesh_of

from primepar.distributed import Executor, Mesh, gather_tensor, scatter_tensor
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.operators.single_operator import lower_move
from primepar.schedule import Layout

SCALE = 2
"""Elements along a dim for each slice of a grid that both layouts' grids divide."""


class Outcome(NamedTuple):
    """What one rank has of one way: whether all was right, and what it has sent."""

    arrived: bool
    untouched: bool
    gathered: bool
    sent: Fraction


def whole_tensor(source: Layout, target: Layout) -> torch.Tensor:
    """Integers, no two the same."""
    shape = [SCALE * lcm(a, b) for a, b in zip(source.grid, target.grid, strict=True)]
    return torch.arange(float(shape[0] * shape[1]), dtype=torch.float64).view(shape)


def one_way(mesh: Mesh, source: Layout, target: Layout) -> Outcome:
    """Take a tensor from one layout to the other, twice."""
    whole = whole_tensor(source, target)
    shape = tuple(whole.shape)
    expected = scatter_tensor(mesh, target, whole)
    program = lower_move(source, target, shape)
    run = Executor(mesh, program, kind="redistribution")
    (name,) = {block.partition("[")[0] for blocks in program.final or () for block in blocks}
    here, there = Parts("x", source, mesh.rank, shape), Parts(name, target, mesh.rank, shape)
    given = scatter_tensor(mesh, source, whole)
    sent_traffic.clear()
    arrived = there.take(run(here.cut(given)))
    sent = sent_traffic.ELEMENTS["redistribution"]
    again = there.take(run(here.cut(given)))
    gathered = gather_tensor(mesh, target, arrived)
    return Outcome(
        torch.equal(arrived, expected) and torch.equal(again, expected),
        torch.equal(given, scatter_tensor(mesh, source, whole)),
        gathered is None or torch.equal(gathered, whole),
        sent,
    )


def ways(asked: list[tuple[Layout, Layout]]) -> list[Outcome]:
    """Every way, in one world."""
    mesh = mesh_of(f"M{asked[0][0].ranks}")
    return [one_way(mesh, source, target) for source, target in asked]
