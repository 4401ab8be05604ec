"""Transfers that `primepar profile` measures, each with its terms in the cost model.

They are the sends (hops) of a redistribution and the collectives of the mesh, over every group of
device bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product

import torch
from msgspec.structs import replace

from primepar.distributed.profiling.clock import Work
from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh, Ranks
from primepar.operators.single_operator import lower_move
from primepar.passes import apply
from primepar.schedule import Layout, Program
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Collective,
    Free,
    ReduceScatter,
)
from primepar.schedule.signature import Tensor

Measured = tuple[str, str, dict[str, float], Work]
"""Kind of work, its size as text, its terms in the cost model, and the work itself."""
Takes = Callable[[int, int], dict[str, float]]
CollectiveOf = Callable[[Ranks, str, tuple[str, ...]], Collective]
"""Makes a rank's call from its group, its own block and the blocks of all members."""
SIZES = (1 << 6, 1 << 13, 1 << 17, 1 << 20)
"""Elements of the block that each rank sends."""


def running(run: Executor, most: int = 1) -> Work:
    """Return one run of a program on random blocks; tokens and targets are below `most`."""
    mesh, blocks = run.mesh, {}
    for name in run.initial:
        shape = run.shapes.shape(name)
        if name.startswith(("tokens", "targets")):
            blocks[name] = torch.randint(most, shape, device=mesh.device)
        else:
            dtype = mesh.wide_dtype if run.shapes.wide(name) else mesh.dtype
            blocks[name] = torch.randn(shape, device=mesh.device, dtype=dtype)
    return lambda: run(dict(blocks))


def freed(program: Program) -> Program:
    """Return the program in which every rank frees at the end what it has made.

    Then it makes no memory of its own in each run, as the operators of a step make none.
    """
    given, left = program.initial or (), program.final or ()
    made = [tuple(name for name in final if name not in initial)
            for initial, final in zip(given, left, strict=True)]  # fmt: skip
    return replace(
        program,
        programs=tuple((*nodes, *map(Free, names))
                       for nodes, names in zip(program.programs, made, strict=True)),
        final=tuple(tuple(name for name in final if name not in names)
                    for final, names in zip(left, made, strict=True)),
    )  # fmt: skip


class Transfers:
    """All transfers on a mesh; every size is multiplied by `scale`."""

    def __init__(self, mesh: Mesh, scale: int) -> None:
        self.mesh, self.scale = mesh, scale

    @property
    def sorts(self) -> tuple[tuple[str, Takes, Callable[[list[Ranks], int], Work]], ...]:
        """Kinds of transfers: name, terms in the cost model, and the function that makes them."""
        return (
            ("hop", _hop, self.hopping),
            ("hop to all", _spread, self.spreading),
            ("all-reduce", _all_reduce, self.summing),
            ("all-gather", _all_gather, self.gathering),
            ("reduce-scatter", _all_gather, self.scattering),
        )

    @property
    def count(self) -> int:
        """Number of transfers."""
        return len(self.sorts) * len(self.groups) * len(SIZES)

    @property
    def groups(self) -> list[tuple[tuple[int, ...], list[Ranks]]]:
        """Device bits (the outermost is 0) and the groups of ranks that differ only in them."""
        bits = self.mesh.ranks.bit_length() - 1
        groups_by_bits = []
        for count in range(1, bits + 1):
            for chosen in combinations(range(bits), count):
                weights = [1 << bits - 1 - bit for bit in chosen]
                offsets = [sum(terms) for terms in product(*((0, weight) for weight in weights))]
                firsts = [rank for rank in range(self.mesh.ranks) if not rank & sum(weights)]
                groups = [tuple(sorted(first + offset for offset in offsets)) for first in firsts]
                groups_by_bits.append((chosen, groups))
        return groups_by_bits

    def all(self) -> Iterator[Measured]:
        """Yield ring hops, redistributions and collectives, over every group of device bits."""
        for what, takes, make in self.sorts:
            for bits, groups in self.groups:
                self.mesh.ensure_groups(("world", group) for group in groups)
                for size in SIZES:
                    given = self.scale * size * self.mesh.dtype.itemsize
                    name = f"bits {' '.join(map(str, bits))}, {given} bytes"
                    yield what, name, takes(len(groups[0]), given), make(groups, self.scale * size)

    def hopping(self, groups: list[Ranks], size: int) -> Work:
        """Every rank sends its block to the next rank of its group."""
        before = {rank: group[place - 1] for group in groups for place, rank in enumerate(group)}
        return self._moving({rank: (before[rank],) for rank in before}, size)

    def spreading(self, groups: list[Ranks], size: int) -> Work:
        """Every rank sends its block to all ranks of its group, as in a redistribution."""
        return self._moving({rank: group for group in groups for rank in group}, size)

    def _moving(self, senders: Mapping[int, Ranks], size: int) -> Work:
        """Every rank receives the blocks of its `senders`; a block has `size` elements."""
        mesh = self.mesh
        before = tuple(((rank, 0),) for rank in range(mesh.ranks))
        after = tuple(tuple((sender, 0) for sender in senders[rank]) for rank in range(mesh.ranks))
        source, target = (Layout((mesh.ranks, 1), held) for held in (before, after))
        program = lower_move(source, target, (mesh.ranks, size))
        return running(Executor(mesh, freed(program)))

    def summing(self, groups: list[Ranks], size: int) -> Work:
        """Return an all-reduce over every group; two ranks exchange messages."""
        return self._together(groups, size, lambda group, block, _: AllReduce(group, block=block))

    def gathering(self, groups: list[Ranks], size: int) -> Work:
        """Return an all-gather over every group of a block from each rank."""
        return self._together(
            groups, size, lambda group, block, blocks: AllGather(group, block=block, blocks=blocks)
        )

    def scattering(self, groups: list[Ranks], size: int) -> Work:
        """Return a reduce-scatter over every group that leaves a block on each rank."""
        return self._together(
            groups,
            size,
            lambda group, block, blocks: ReduceScatter(group, block=block, blocks=blocks),
            parts=True,
        )

    def _together(
        self, groups: list[Ranks], size: int, call: CollectiveOf, parts: bool = False
    ) -> Work:
        """Return a collective over every group; with `parts` each rank has all blocks before."""
        ranks, programs, initial = range(self.mesh.ranks), [], []
        for rank in ranks:
            group = next(members for members in groups if rank in members)
            blocks = tuple(f"x[{member},0]" for member in group)
            node = call(group, f"x[{rank},0]", blocks)
            initial.append(blocks if parts else (f"x[{rank},0]",))
            programs.append(
                (node, *map(Free, dict.fromkeys((*effects(node, rank).writes, *initial[-1]))))
            )
        cuts = tuple(size * row for row in range(self.mesh.ranks + 1)), (0, 1)
        program = Program(
            format="primepar-program", version=1, ranks=self.mesh.ranks, programs=tuple(programs),
            initial=tuple(initial), final=((),) * self.mesh.ranks,
            tensors={"x": Tensor(cuts=cuts)},
        )  # fmt: skip
        return running(Executor(self.mesh, apply(program)))


def _hop(_: int, sent_bytes: int) -> dict[str, float]:
    return {"messages": 1.0, "gaps": 0.0, "bytes": float(sent_bytes)}


def _spread(members: int, sent_bytes: int) -> dict[str, float]:
    return {"messages": 1.0, "gaps": members - 2.0, "bytes": float((members - 1) * sent_bytes)}


def _all_reduce(members: int, sent_bytes: int) -> dict[str, float]:
    return {"messages": 2.0 * (members - 1), "bytes": 2 * (members - 1) / members * sent_bytes}


def _all_gather(members: int, sent_bytes: int) -> dict[str, float]:
    return {"messages": members - 1.0, "bytes": float((members - 1) * sent_bytes)}
