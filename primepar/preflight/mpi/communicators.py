"""Communicators of the stand-in for `mpi4py.MPI`: splits, groups and grids of ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from primepar.preflight.mpi.collectives import MpiCollectives
from primepar.preflight.mpi.point_to_point import PROC_NULL
from primepar.schedule.program import SplitCommunicator

UNDEFINED = -32766


class RankGroup:
    """A group of ranks, as ranks of the whole run."""

    def __init__(self, ranks: Sequence[int], this_rank: int) -> None:
        self.ranks, self._own = tuple(ranks), this_rank

    def Get_size(self) -> int:
        """Its members."""
        return len(self.ranks)

    def Get_rank(self) -> int:
        """The place of this rank in it."""
        return self.ranks.index(self._own) if self._own in self.ranks else UNDEFINED

    size, rank = property(Get_size), property(Get_rank)

    def Incl(self, ranks: Sequence[int]) -> RankGroup:
        """Only these members."""
        return RankGroup([self.ranks[rank] for rank in ranks], self._own)

    def Excl(self, ranks: Sequence[int]) -> RankGroup:
        """All but these members."""
        left = [rank for place, rank in enumerate(self.ranks) if place not in set(ranks)]
        return RankGroup(left, self._own)

    def Free(self) -> None:
        """Nothing is to be freed."""


class Comm(MpiCollectives):
    """A communicator of the whole run, or one that a split has made."""

    def Get_rank(self) -> int:
        """The place of this rank."""
        return self._own

    def Get_size(self) -> int:
        """Its members."""
        return len(self._group)

    rank, size = property(Get_rank), property(Get_size)

    def Get_name(self) -> str:
        """Its name."""
        return self._name

    name = property(Get_name)

    def Get_group(self) -> RankGroup:
        """Its group."""
        return RankGroup(self._group, self._side.rank)

    group = property(Get_group)

    def Is_inter(self) -> bool:
        """Whether it is between two groups."""
        return False

    def Set_name(self, name: str) -> None:
        """Names have no effect."""

    def Free(self) -> None:
        """Nothing is to be freed."""

    def Set_errhandler(self, handler: Any) -> None:
        """Errors end the script."""

    def Abort(self, errorcode: int = 0) -> None:
        """End the rank."""
        raise SystemExit(f"MPI.Comm.Abort({errorcode})")

    def __getattr__(self, name: str) -> Any:
        """Report what is not modelled; names that mpi4py does not have either end here too."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._side.stop(f"uses MPI.Comm.{name}, which is not modelled")

    # Communicators that calls make

    def _parted(self, color: Any, key: Any, kind: Callable[..., Any]) -> Any:
        """Split: members with one color are one communicator, in the order of their keys."""
        number = self._side.name(f"{self._name}.")
        node = SplitCommunicator(
            self._group,
            self._name,
            into=None if color is None else f"{number}({color})",
        )
        stated = pickle.dumps((color, key, self._side.rank))
        given: list[bytes] = self._call(node, stated, lambda data: data)
        members = sorted(
            ((their_key, place, world) for place, (their_color, their_key, world) in
             enumerate(map(pickle.loads, given)) if their_color == color),
        )  # fmt: skip
        if color is None:
            return None
        return kind(self._side, node.into, tuple(world for _, _, world in members))

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Make a communicator of each color."""
        made: Comm | None = self._parted(None if color == UNDEFINED else color, key, Comm)
        return made

    def Dup(self, info: Any = None) -> Comm | None:
        """Make another communicator of the same ranks."""
        return self.Split(0, self._own)

    Clone = Dup

    def Create(self, group: RankGroup) -> Comm | None:
        """Make a communicator of a group; all ranks of this one call it."""
        inside = self._side.rank in group.ranks
        key = group.ranks.index(self._side.rank) if inside else 0
        made: Comm | None = self._parted(0 if inside else None, key, Comm)
        return made

    def Create_group(self, group: RankGroup, tag: int = 0) -> Comm | None:
        """Make a communicator of a group; only its ranks call it."""
        part = Comm(self._side, self._name, group.ranks)
        return part.Split(0, group.ranks.index(self._side.rank))

    def Create_cart(
        self, dims: Sequence[int], periods: Any = False, reorder: bool = False
    ) -> CartComm | None:
        """Make a grid of the first ranks."""
        shape, size = list(dims), 1
        for length in shape:
            size *= length
        wraps = [periods] * len(shape) if isinstance(periods, bool | int) else list(periods)
        inside = self._own < size

        def kind(side: Any, name: str, group: tuple[int, ...]) -> CartComm:
            return CartComm(side, name, group, shape, wraps)

        made: CartComm | None = self._parted(0 if inside else None, self._own, kind)
        return made


class CartComm(Comm):
    """A grid of ranks, row by row."""

    def __init__(
        self, side: Any, name: str, group: tuple[int, ...], dims: list[int], periods: list[Any]
    ) -> None:
        super().__init__(side, name, group)
        self.dims, self.periods, self.ndim = dims, periods, len(dims)
        self._places = list(product(*map(range, dims)))

    def Get_coords(self, rank: int) -> list[int]:
        """The place of a rank in the grid."""
        return list(self._places[rank])

    def _get_own(self) -> list[int]:
        return self.Get_coords(self._own)

    coords = property(_get_own)

    def Get_topo(self) -> tuple[list[int], list[Any], list[int]]:
        """Lengths, periods, and the own place."""
        return self.dims, self.periods, self.coords

    topo = property(Get_topo)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """The rank at a place; outside of the grid there is none."""
        place = [
            index % length if wraps else index
            for index, length, wraps in zip(coords, self.dims, self.periods, strict=True)
        ]
        return self._places.index(tuple(place)) if tuple(place) in self._places else PROC_NULL

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """The ranks to receive from and to send to, along one dim."""
        ranks = []
        for step in (-disp, disp):
            place = self.Get_coords(self._own)
            place[direction] += step
            ranks.append(self.Get_cart_rank(place))
        return ranks[0], ranks[1]

    def Sub(self, remain_dims: Sequence[bool]) -> CartComm | None:
        """The grid over some of the dims."""
        kept = [dim for dim in range(self.ndim) if remain_dims[dim]]
        place = self.coords
        color = tuple(part for dim, part in enumerate(place) if dim not in kept)
        shape, wraps = [self.dims[dim] for dim in kept], [self.periods[dim] for dim in kept]

        def kind(side: Any, name: str, group: tuple[int, ...]) -> CartComm:
            return CartComm(side, name, group, shape, wraps)

        made: CartComm | None = self._parted(color, self._own, kind)
        return made
