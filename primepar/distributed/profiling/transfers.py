"""Transfers that `primepar plan --profile` measures, each with what the cost model counts of it.

They are the hops of a redistribution and the collectives of the mesh, over every group of device
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product

import torch
import torch.distributed as dist

from primepar.distributed.profiling.clock import Work
from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh, Ranks
from primepar.operators.single_operator import lower_move
from primepar.schedule import Layout

Measured = tuple[str, str, dict[str, float], Work]
"""Sort of work, its size, what it takes, and the work itself."""
Takes = Callable[[int, int], dict[str, float]]
SIZES = (1 << 6, 1 << 13, 1 << 17, 1 << 20)
"""Elements that each rank gives."""


def running(run: Executor, most: int = 1) -> Work:
    """A run of a program on random blocks; tokens and targets are integers below `most`."""
    mesh, given = run.mesh, {}
    for name in run.initial:
        shape = run.shapes.shape(name)
        if name.startswith(("tokens", "targets")):
            given[name] = torch.randint(most, shape, device=mesh.device)
        else:
            dtype = mesh.wide_dtype if run.shapes.wide(name) else mesh.dtype
            given[name] = torch.randn(shape, device=mesh.device, dtype=dtype)
    return lambda: run(dict(given))


class Transfers:
    """All transfers on a mesh, of sizes `scale` times as large."""

    def __init__(self, mesh: Mesh, scale: int) -> None:
        self.mesh, self.scale = mesh, scale

    @property
    def sorts(self) -> tuple[tuple[str, Takes, Callable[[list[Ranks], int], Work]], ...]:
        """Sorts of transfers, with what they take and how they are made."""
        return (
            ("hop", _hop, self.hopping),
            ("hop to all", _spread, self.spreading),
            ("all-reduce", _all_reduce, self.summing),
            ("all-gather", _all_gather, self.gathering),
            ("reduce-scatter", _all_gather, self.scattering),
        )

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.sorts) * len(self.groups) * len(SIZES)

    @property
    def groups(self) -> list[tuple[tuple[int, ...], list[Ranks]]]:
        """Device bits, the outermost 0, and the groups of ranks that differ in these alone."""
        bits = self.mesh.ranks.bit_length() - 1
        found = []
        for count in range(1, bits + 1):
            for chosen in combinations(range(bits), count):
                weights = [1 << bits - 1 - bit for bit in chosen]
                inside = [sum(each) for each in product(*((0, weight) for weight in weights))]
                firsts = [rank for rank in range(self.mesh.ranks) if not rank & sum(weights)]
                groups = [tuple(sorted(first + each for each in inside)) for first in firsts]
                found.append((chosen, groups))
        return found

    def all(self) -> Iterator[Measured]:
        """Hops round a ring, redistribution and collectives, over every group of device bits."""
        for what, takes, make in self.sorts:
            for bits, groups in self.groups:
                self.mesh.ensure_groups(("world", group) for group in groups)
                for size in SIZES:
                    given = self.scale * size * self.mesh.dtype.itemsize
                    name = f"bits {' '.join(map(str, bits))}, {given} bytes"
                    yield what, name, takes(len(groups[0]), given), make(groups, self.scale * size)

    def hopping(self, groups: list[Ranks], size: int) -> Work:
        """Every rank's block goes to the next one of its group."""
        before = {each: group[at - 1] for group in groups for at, each in enumerate(group)}
        return self._moving({rank: (before[rank],) for rank in before}, size)

    def spreading(self, groups: list[Ranks], size: int) -> Work:
        """Every rank's block goes to all of its group, as in a redistribution."""
        return self._moving({rank: group for group in groups for rank in group}, size)

    def _moving(self, gets: Mapping[int, Ranks], size: int) -> Work:
        """Blocks of `size` elements, one on each rank, go to where they are gotten."""
        mesh = self.mesh
        held = [tuple((each, 0) for each in gets[rank]) for rank in range(mesh.ranks)]
        own = tuple(((rank, 0),) for rank in range(mesh.ranks))
        source, target = (Layout((mesh.ranks, 1), each) for each in (own, tuple(held)))
        program = lower_move(source, target, (mesh.ranks, size))
        return running(Executor(mesh, program))

    def _own(self, groups: list[Ranks]) -> tuple[Ranks, dist.ProcessGroup]:
        own = next(group for group in groups if self.mesh.rank in group)
        return own, self.mesh.group(own)

    def _zeros(self, size: int) -> torch.Tensor:
        """What may be summed again and again."""
        return torch.zeros(size, device=self.mesh.device, dtype=self.mesh.dtype)

    def summing(self, groups: list[Ranks], size: int) -> Work:
        """An all-reduce over every group."""
        (_, group), tensor = self._own(groups), self._zeros(size)
        return lambda: dist.all_reduce(tensor, group=group)

    def gathering(self, groups: list[Ranks], size: int) -> Work:
        """An all-gather over every group."""
        own, group = self._own(groups)
        tensor, everyone = self._zeros(size), [self._zeros(size) for _ in own]
        return lambda: dist.all_gather(everyone, tensor, group=group)

    def scattering(self, groups: list[Ranks], size: int) -> Work:
        """A reduce-scatter over every group."""
        own, group = self._own(groups)
        tensor, parts = self._zeros(size), [self._zeros(size) for _ in own]
        return lambda: dist.reduce_scatter(tensor, parts, group=group)


def _hop(_: int, given: int) -> dict[str, float]:
    return {"messages": 1.0, "bytes": float(given)}


def _spread(members: int, given: int) -> dict[str, float]:
    return {"messages": 1.0, "bytes": float((members - 1) * given)}


def _all_reduce(members: int, given: int) -> dict[str, float]:
    return {"messages": 2.0 * (members - 1), "bytes": 2 * (members - 1) / members * given}


def _all_gather(members: int, given: int) -> dict[str, float]:
    return {"messages": members - 1.0, "bytes": float((members - 1) * given)}
