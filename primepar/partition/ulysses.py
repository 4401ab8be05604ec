"""Ulysses: an all-to-all changes rows of all heads into whole sequences of some heads, and back.

Source: Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509. The program of forward and backward,
and its proof, are ours.

Each of p devices has a part of the sequence, all heads of its rows. Attention needs all rows of a
head. So device r cuts its rows into p groups of heads, and sends group j to device j. It receives
its own group of heads from every device:

    sends       $x[r, j]$    to device j    for every j
    receives    $x[i, r]$    from device i  for every i
    joins       $x[*, r]$    of its group of heads, from $x[0, r], ..., x[p - 1, r]$

The attention of whole sequences is then local, with one block of keys. Its output goes back in the
same way, with rows and heads exchanged. In backward the gradient of the output goes forth, and
those of queries, keys and values come back.

Sent per device:  $8 (p - 1) S C / p^2$  elements for S positions and C columns of heads: q, kv, o
                  and their gradients, of which kv and dkv have $2 C$ columns.
Held per device:  $14 C + 3 A$ columns of $S / p$ rows, for A heads: q, kv, o and do by rows and by
                  heads, dq and dkv, the state with $C + 2 A$ columns and delta with A.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from primepar.partition.attention_phases import SIGNATURES, columns, cuts, grid, sizes, work
from primepar.partition.equal_devices import Device, Elements, EqualDevices, Number
from primepar.schedule.program import AllToAll, Cut, Free, Instruction, Join
from primepar.schedule.signature import Tensor

MOVED = ("q", "kv", "o", "do", "dq", "dkv")
"""Tensors that have rows before or after attention."""
LAST = ("dq", "dkv")
"""Those that a device does not need once they are sent."""


def sent_piece(rank: Number, member: Number, to_heads: bool) -> tuple[Number, Number]:
    """Return (rows, heads) of the piece that a device sends to a member."""
    return (rank, member) if to_heads else (member, rank)


def received_piece(rank: Number, member: Number, to_heads: bool) -> tuple[Number, Number]:
    """Return (rows, heads) of the piece that a device expects from a member."""
    return (member, rank) if to_heads else (rank, member)


class Ulysses(EqualDevices, frozen=True, kw_only=True):
    """Attention of a divided sequence: an all-to-all gives each device whole heads, and back."""

    name = "ulysses"
    positions: Elements = 16
    heads: Elements = 4
    head_dim: Elements = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_multiple("positions", "devices", self.devices)
        self.check_multiple("heads", "devices", self.devices)

    def device(self, rank: int) -> Device:
        """Forward and backward of its rows."""
        begins, ends = (
            [_rows(tensor, rank) for tensor in tensors]
            for tensors in (("q", "kv", "do"), ("o", "dq", "dkv"))
        )
        return Device(begins, self._instructions(rank), ends)

    def meaning(self) -> dict[str, Any]:
        """The phases of attention, with one block of queries and keys for each group of heads."""
        grids = grid(1, 1, self.devices)
        return {"grid": grids, "phases": SIGNATURES, "tensors": self._tensors()}

    def _instructions(self, rank: int) -> Iterator[Instruction]:
        for name in ("q", "kv"):
            yield from self._moved(rank, name, to_heads=True)
        yield work("part", 0, 0, rank)
        yield work("output", 0, None, rank)
        yield from self._moved(rank, "o", to_heads=False)
        yield from self._moved(rank, "do", to_heads=True)
        yield work("delta", 0, None, rank)
        yield from (work(phase, 0, 0, rank) for phase in ("query", "keys"))
        yield from (Free(_heads(x, rank)) for x in ("q", "kv", "state", "o", "do", "delta"))
        for name in LAST:
            yield from self._moved(rank, name, to_heads=False)

    def _moved(self, rank: int, name: str, to_heads: bool) -> Iterator[Instruction]:
        """Cut a tensor of a device, send each member its piece, and join what comes."""
        members = range(self.devices)
        sent = tuple(_piece(name, *sent_piece(rank, j, to_heads)) for j in members)
        received = tuple(_piece(name, *received_piece(rank, i, to_heads)) for i in members)
        before, after = _rows(name, rank), _heads(name, rank)
        if not to_heads:
            before, after = after, before
        yield Cut(before, sent, in_place=name in LAST)
        yield AllToAll(tuple(members), blocks=sent, into=received)
        yield Join(received, after, in_place=True)
        yield from (Free(piece) for piece in sent if piece not in received)

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors by heads; those that move also by rows, and in pieces."""
        tensors = dict(sizes(self.positions, self.heads, self.head_dim, 1, self.devices))
        rows = cuts(self.positions, self.devices)
        for name, size in columns(self.heads, self.head_dim).items():
            if name in MOVED:
                tensors[f"{name}.rows"] = Tensor((rows, (0, size)), of=name)
                tensors[f"{name}.pieces"] = Tensor((rows, cuts(size, self.devices)), of=name)
        return tensors

    @property
    def sent(self) -> Fraction:
        """Elements that leave each device."""
        whole = 8 * self.positions * self.heads * self.head_dim
        return Fraction((self.devices - 1) * whole, self.devices**2)

    @property
    def held(self) -> int:
        """Peak of live elements on each device."""
        return self.positions // self.devices * self.heads * (14 * self.head_dim + 3)

    def facts(self) -> dict[str, str]:
        """Return what a device attends to, and what moves."""
        sizes_of_device = {
            "heads of a device": f"{self.heads // self.devices}",
            "rows of a device": f"{self.positions // self.devices}",
        }
        return sizes_of_device | super().facts()


def _rows(name: str, rank: int) -> str:
    return f"{name}.rows[{rank},0]"


def _heads(name: str, rank: int) -> str:
    return f"{name}[0,{rank}]"


def _piece(name: str, rows: int, heads: int) -> str:
    return f"{name}.pieces[{rows},{heads}]"
