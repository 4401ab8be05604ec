"""FLUX: a product overlaps with its all-gather or its reduce-scatter, chunk by chunk.

Source: Chang et al., FLUX, arXiv 2406.06858; chunks and signals as a program are ours.

$O = I W$ on p devices. The rows of each device are cut into c chunks. Device r goes through the
devices in ring order, in p steps of c tiles. So c products run while a chunk travels. What is
received at a step is awaited at the next one, where it is used: the wait is FLUX's signal. In FLUX
the tiles are those of one fused kernel.

All-gather, then product. I is sharded along M (sequence parallelism), W along K. Device r begins
with its own chunks, then come those of device $r + 1, r + 2, ...$ At step k and chunk j:

    product     $O[q(r, k) c + j, r] = I[q(r, k) c + j] W[r]$   $q(r, k) = (r + k) mod p$
    sends       $I[r c + j]$              to device $(r - k - 1) mod p$
    receives    $I[q(r, k + 1) c + j]$    from device $q(r, k + 1)$

Product, then reduce-scatter. I and W are sharded along N, so each device has a partial sum of all
of O, and ends with its rows of the sum. Device r computes the tiles of device $r + 1$ first, then
those of $r + 2, ...$, and its own last. At step k and chunk j:

    product     $O[q(r, k) c + j] += I[q(r, k) c + j, r] W[r]$  $q(r, k) = (r + k + 1) mod p$
    adds        what it received at step $k - 1$    to $O[r c + j]$
    sends       that tile                           to its owner $q(r, k)$
    receives    a partial sum of $O[r c + j]$       from device $(r - k - 1) mod p$

No two devices send to one at the same step.

Sent per device:  $(p - 1) MN / p$ elements, as with an all-gather; $(p - 1) MK / p$, as with a
                  reduce-scatter.
Held per device:  $MN / p$ of I, $NK / p$ of W and up to $MK / p$ of O.
                  Gather: in flight $c + 1$ chunks of $MN / (p c)$, or c where $p = 2$. The last
                  chunks are freed while O grows, so the peak is the largest of three sums, in
                  `held`. Scatter: in flight $2 c + 1$ tiles of $MK / (p c)$, $c + 1$ to send and c
                  received. With $p = 3$ it is one tile less, with $p = 2$ it is $c + 1$ tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from primepar.partition.equal_devices import (
    Device,
    Elements,
    EqualDevices,
    Number,
    awaited,
    posted,
)
from primepar.schedule.operators import scratch_name
from primepar.schedule.program import Compute, Free, Instruction, Wait


def gathered_from(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device whose chunks a device multiplies at a step of the all-gather."""
    return (rank + step) % devices  # type: ignore[operator,no-any-return]


def computed_for(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device whose tiles a device computes, and sends, before the reduce-scatter."""
    return (rank + step + 1) % devices  # type: ignore[operator,no-any-return]


def opposite(rank: Number, step: Number, devices: Number) -> Number:
    """Return to whom a device sends its chunks at a step, or from whom it receives a sum."""
    return (rank - step - 1) % devices  # type: ignore[operator,no-any-return]


class Flux(EqualDevices, frozen=True, kw_only=True):
    """The sizes of both methods, and their order of tiles: step by step, chunk by chunk."""

    chunks: Annotated[int, Meta(ge=1, le=256)] = 2
    M: Elements = 64
    N: Elements = 32
    K: Elements = 64

    divided: ClassVar[str]
    """The dim that is divided by the devices, next to M by their chunks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_multiple("M", "devices * chunks", self.devices * self.chunks)
        self.check_multiple(self.divided, "devices", self.devices)

    def tiles(self, rank: int) -> Iterator[Instruction]:
        """The instructions of a device, tile after tile."""
        for step in range(self.devices):
            for chunk in range(self.chunks):
                yield from self.tile(rank, step, chunk)

    def tile(self, rank: int, step: int, chunk: int) -> Iterator[Instruction]:
        """What a device does for one tile."""
        raise NotImplementedError

    def rows(self, device: int) -> range:
        """The chunks of the rows of a device."""
        return range(device * self.chunks, (device + 1) * self.chunks)

    def meaning(self) -> dict[str, Any]:
        """The grid of the product, and its shape."""
        grid = {"M": self.devices * self.chunks, self.divided: self.devices}
        return {"grid": {"forward": grid}, "shape": {"M": self.M, "N": self.N, "K": self.K}}

    def facts(self) -> dict[str, str]:
        """Return tiles, traffic and memory."""
        tiles = {
            "tiles of a device": f"{self.devices * self.chunks}",
            "products while a chunk travels": f"{self.chunks}",
        }
        return tiles | super().facts()


class FluxGather(Flux, frozen=True, kw_only=True):
    """All-gather and product in one, chunk by chunk in ring order."""

    name = "flux-gather"
    divided = "K"

    def device(self, rank: int) -> Device:
        """It has its rows of I and its columns of W, and ends with its columns of O."""
        rows = range(self.devices * self.chunks)
        begins = [*(f"I[{m}]" for m in self.rows(rank)), f"W[{rank}]"]
        return Device(begins, self.tiles(rank), [f"O[{m},{rank}]" for m in rows])

    def tile(self, rank: int, step: int, chunk: int) -> Iterator[Instruction]:
        """Post the transfers for the next step, wait for this step's chunk, multiply it."""
        tile = self.rows(gathered_from(rank, step, self.devices))[chunk]
        # What is posted now is multiplied at the next step: c products run while it travels. The
        # own chunks go to every other device, each at a step of its own.
        if step < self.devices - 1:
            source = gathered_from(rank, step + 1, self.devices)
            received, sent = f"I[{self.rows(source)[chunk]}]", f"I[{self.rows(rank)[chunk]}]"
            target = opposite(rank, step, self.devices)
            yield from posted(source, received, target, sent, f"{step + 1}.{chunk}", chunk)
        if step:
            yield from awaited(f"{step}.{chunk}")
        reads, cell = (f"I[{tile}]", f"W[{rank}]"), {"M": tile, "K": rank}
        yield Compute(reads, f"O[{tile},{rank}]", "forward", cell)
        # The chunk of another device is used once, at this step. The own ones are sent until the
        # end, and stay.
        if step:
            yield Free(f"I[{tile}]")

    @property
    def sent(self) -> int:
        """Elements that leave each device."""
        return (self.devices - 1) * self.M * self.N // self.devices

    @property
    def held(self) -> int:
        """Peak of live elements on each device."""
        devices, chunks = self.devices, self.chunks
        chunk = self.M * self.N // (devices * chunks)
        tile = self.M * self.K // (devices * devices * chunks)
        before_last = devices * chunks - chunks
        # After the last product all of O is there, and one chunk is not freed yet. At the first
        # product of the last step it is c chunks, and in a step before it c + 1.
        peaks = [min(devices - 1, 1) * chunk + devices * chunks * tile]
        if devices > 1:
            peaks.append(chunks * chunk + (before_last + 1) * tile)
        if devices > 2:
            peaks.append((chunks + 1) * chunk + before_last * tile)
        return (self.M * self.N + self.N * self.K) // devices + max(peaks)


class FluxScatter(Flux, frozen=True, kw_only=True):
    """Product and reduce-scatter in one, tile by tile in ring order."""

    name = "flux-scatter"
    divided = "N"

    def device(self, rank: int) -> Device:
        """It has its columns of I and its rows of W, and ends with its rows of O."""
        rows = range(self.devices * self.chunks)
        begins = [*(f"I[{m},{rank}]" for m in rows), f"W[{rank}]"]
        return Device(begins, self.tiles(rank), [f"O[{m}]" for m in self.rows(rank)])

    def tile(self, rank: int, step: int, chunk: int) -> Iterator[Instruction]:
        """Compute a tile, add what the step before received, then post the transfers."""
        owner = computed_for(rank, step, self.devices)
        tile, kept = self.rows(owner)[chunk], f"O[{self.rows(rank)[chunk]}]"
        scratch, cell = scratch_name(kept), {"M": tile, "N": rank}
        yield Compute((f"I[{tile},{rank}]", f"W[{rank}]"), f"O[{tile}]", "forward", cell)
        # The tile sent at the step before has left, and the part received then is added: a second
        # part can be received into the scratch only now.
        if step:
            earlier = self.rows(computed_for(rank, step - 1, self.devices))[chunk]
            yield from (Wait(f">{step - 1}.{chunk}"), Free(f"O[{earlier}]"))
            yield from (Wait(f"<{step - 1}.{chunk}"), Compute((scratch,), kept), Free(scratch))
        if step < self.devices - 1:
            source = opposite(rank, step, self.devices)
            yield from posted(source, scratch, owner, f"O[{tile}]", f"{step}.{chunk}", chunk)

    @property
    def sent(self) -> int:
        """Elements that leave each device."""
        return (self.devices - 1) * self.M * self.K // self.devices

    @property
    def held(self) -> int:
        """Peak of live elements on each device."""
        devices, chunks = self.devices, self.chunks
        in_flight = (0, chunks + 1, 2 * chunks, 2 * chunks + 1)[min(devices, 4) - 1]
        given = (self.M * self.N + self.N * self.K) // devices
        return given + (chunks + in_flight) * self.M * self.K // (devices * chunks)
