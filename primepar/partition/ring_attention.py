"""Ring attention: queries stay, and keys and values travel round a ring of devices.

Source: Liu, Zaharia and Abbeel, arXiv 2310.01889. The gradients that travel with their keys, as a
program with a proof, are ours.

Each of p devices has a part of the sequence: its rows of queries, keys and values. At step t device
r has the keys of part n(r, t), its own first, and sends them to the device before it:

    keys        $n(r, t) = (r + t) mod p$
    sends       $kv[n(r, t)]$       to device $(r - 1) mod p$
    receives    $kv[n(r, t + 1)]$   from device $(r + 1) mod p$
    forward     $state[r] += part(q[r], kv[n(r, t)])$
    backward    $dq[r] += query(q[r], kv[n(r, t)], ...)$
                $dkv[n(r, t)] += keys(q[r], kv[n(r, t)], ...)$

The state is the sum of an online softmax (`primepar.partition.attention_phases`): each device adds
every block of keys once. In backward the keys go round once more, and their gradients dkv go with
them, a step behind: they collect the terms of every device. After p steps, and one hop more than
the keys, they are at home.

Keys of the next step travel while this step computes. A gradient travels while the next step
computes dq.

Sent per device:  $(2 (p - 1) + p) 2 S C / p$  elements for S positions and C columns of heads; 0
                  if $p = 1$.
Held per device:  $15 C + 3 A$ columns of $S / p$ rows, for A heads: q, o, do and dq, three blocks
                  of keys, two of their gradients, the state with $C + 2 A$ columns and delta with
                  A; $13 C + 3 A$ if $p = 2$, and $9 C + 3 A$ if $p = 1$.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from primepar.partition.attention_phases import SIGNATURES, cuts, grid, sizes, work
from primepar.partition.equal_devices import (
    Device,
    Elements,
    EqualDevices,
    Number,
    awaited,
    posted,
)
from primepar.schedule.program import Free, Instruction

Actions = dict[str, list[Instruction]]
FORWARD = ("post keys", "part", "await keys")
BACKWARD = ("post keys", "query", "await gradient", "keys", "post gradient", "await keys")
"""What a device does in a step, in order."""


def keys_at(rank: Number, step: Number, devices: Number) -> Number:
    """Return the part of the sequence whose keys a device has at a step."""
    return (rank + step) % devices  # type: ignore[operator,no-any-return]


def source_of(rank: Number, devices: Number) -> Number:
    """Return the device from which a device receives keys."""
    return (rank + 1) % devices  # type: ignore[operator,return-value,unused-ignore]


def target_of(rank: Number, devices: Number) -> Number:
    """Return the device to which a device sends its keys."""
    return (rank - 1) % devices  # type: ignore[operator,return-value,unused-ignore]


class RingAttention(EqualDevices, frozen=True, kw_only=True):
    """Attention of a divided sequence: queries stay, keys and values travel round a ring."""

    name = "ring-attention"
    positions: Elements = 16
    heads: Elements = 2
    head_dim: Elements = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_multiple("positions", "devices", self.devices)

    def device(self, rank: int) -> Device:
        """Forward and backward of its part of the sequence."""
        begins, ends = (
            [f"{tensor}[{rank},0]" for tensor in tensors]
            for tensors in (("q", "kv", "do"), ("o", "dq", "dkv"))
        )
        return Device(begins, chain(self._forward(rank), self._backward(rank)), ends)

    def meaning(self) -> dict[str, Any]:
        """The phases of attention, over blocks of queries and of keys."""
        tensors = dict(sizes(self.positions, self.heads, self.head_dim, self.devices, 1))
        return {
            "grid": grid(self.devices, self.devices, 1),
            "phases": SIGNATURES,
            "tensors": tensors,
        }

    def _forward(self, rank: int) -> Iterator[Instruction]:
        for step in range(self.devices):
            keys = keys_at(rank, step, self.devices)
            actions: Actions = {
                "post keys": self._post(rank, step, "kv"),
                "part": [work("part", rank, keys, 0)],
                "await keys": self._await_keys(rank, step),
            }
            yield from chain.from_iterable(actions[action] for action in FORWARD)
        yield work("output", rank, None, 0)

    def _backward(self, rank: int) -> Iterator[Instruction]:
        yield work("delta", rank, None, 0)
        for step in range(self.devices):
            keys = keys_at(rank, step, self.devices)
            actions: Actions = {
                "post keys": self._post(rank, step, "kv"),
                "query": [work("query", rank, keys, 0)],
                "await gradient": self._await_gradient(rank, step),
                "keys": [work("keys", rank, keys, 0)],
                "post gradient": self._post(rank, step, "dkv"),
                "await keys": self._await_keys(rank, step),
            }
            yield from chain.from_iterable(actions[action] for action in BACKWARD)
        # The last hop: after p steps the gradient of a device's own keys has been on all others,
        # and arrives.
        yield from self._await_gradient(rank, self.devices)
        yield from (Free(f"{name}[{rank},0]") for name in ("state", "delta"))

    def _post(self, rank: int, step: int, name: str) -> list[Instruction]:
        """What a device posts at a step: the gradients make one hop more than the keys."""
        # Keys make p - 1 hops, gradients p: these have to go back to where the keys began.
        if step + (name == "kv") >= self.devices or self.devices == 1:
            return []
        here, coming = (keys_at(rank, moment, self.devices) for moment in (step, step + 1))
        source, target = source_of(rank, self.devices), target_of(rank, self.devices)
        return posted(source, f"{name}[{coming},0]", target, f"{name}[{here},0]", name)

    def _await_keys(self, rank: int, step: int) -> list[Instruction]:
        """Wait for the keys of the next step, and free those of this step unless they are own."""
        waits = awaited("kv") * (step < self.devices - 1)
        return [*waits, *[Free(f"kv[{keys_at(rank, step, self.devices)},0]")] * (step > 0)]

    def _await_gradient(self, rank: int, step: int) -> list[Instruction]:
        """Wait for the gradient of the keys of this step, and free what has left for it."""
        if not step or self.devices == 1:
            return []
        left = f"dkv[{keys_at(rank, step - 1, self.devices)},0]"
        return [*awaited("dkv"), Free(left)]

    @property
    def sent(self) -> int:
        """Elements that leave each device."""
        block = 2 * self.positions // self.devices * self.heads * self.head_dim
        return (3 * self.devices - 2) * block if self.devices > 1 else 0

    @property
    def held(self) -> int:
        """Peak of live elements on each device."""
        columns = {1: 9, 2: 13}.get(self.devices, 15) * self.head_dim + 3
        return self.positions // self.devices * self.heads * columns

    def facts(self) -> dict[str, str]:
        """Return the blocks of the products, and what moves."""
        blocks = {
            "blocks of queries and keys": f"{self.devices} x {self.devices}",
            "rows of a device": f"{cuts(self.positions, self.devices)[1]}",
        }
        return blocks | super().facts()
