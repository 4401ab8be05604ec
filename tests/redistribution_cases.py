"""What the ranks of the tests of redistribution do: each function runs on every rank."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import NamedTuple

import torch
from distributed_cases import mesh_of

from primepar.distributed import Mesh, gather_tensor, scatter_tensor
from primepar.distributed.redistribute import Redistribution
from primepar.schedule import Layout

SCALE = 2
"""Elements along a dim for each slice of a grid that both layouts' grids divide."""


class Outcome(NamedTuple):
    """What one rank has of one way: whether all was right, and what it has sent."""

    inward: bool
    outward: bool
    untouched: bool
    gathered: bool
    sent: Fraction
    leaks: int


def whole_tensor(source: Layout, target: Layout) -> torch.Tensor:
    """Integers, no two the same."""
    shape = [SCALE * lcm(a, b) for a, b in zip(source.grid, target.grid, strict=True)]
    return torch.arange(float(shape[0] * shape[1]), dtype=torch.float64).view(shape)


def one_way(mesh: Mesh, source: Layout, target: Layout) -> Outcome:
    """Take a tensor from one layout to the other, as an operator's input and as a gradient."""
    whole = whole_tensor(source, target)
    expected = scatter_tensor(mesh, target, whole)
    inward, outward = (
        Redistribution(mesh, source, target, "O", tuple(whole.shape), outward=outward)
        for outward in (False, True)
    )
    mesh.traffic.clear()
    given = scatter_tensor(mesh, source, whole)
    arrived = inward(given)
    sent = mesh.traffic.elements.get("redistribution", Fraction(0))
    arrives = torch.equal(arrived, expected)
    untouched = torch.equal(given, scatter_tensor(mesh, source, whole))
    if not inward.borrowed:
        mesh.pool.release(arrived)
    ours = mesh.pool.acquire(tuple(given.shape)).copy_(given)
    left = outward(ours)
    gathered = gather_tensor(mesh, target, left)
    if outward.passes:
        mesh.pool.release(left)
    leaks = mesh.pool.created - mesh.pool.idle
    mesh.pool.created = mesh.pool.idle
    return Outcome(
        arrives,
        torch.equal(left, expected),
        untouched,
        gathered is None or torch.equal(gathered, whole),
        sent,
        leaks,
    )


def ways(asked: list[tuple[Layout, Layout]]) -> list[Outcome]:
    """Every way, in one world."""
    mesh = mesh_of(f"M{asked[0][0].ranks}")
    return [one_way(mesh, source, target) for source, target in asked]
