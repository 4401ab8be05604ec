"""FLUX reduce-scatter: every finished tile of the product is sent to its owner, who adds it.

Source: Chang et al., FLUX, arXiv 2406.06858; chunks and signals as a program are ours.

O = I W on p devices. I and W are sharded along N, so each device has a partial sum of all of O.
Device r ends with its rows of the sum (sequence parallelism). Plain tensor parallelism computes,
and then calls a reduce-scatter. Here the rows of each device are cut into c chunks. Device r
computes the tiles of device r + 1 first, then those of r + 2, ..., and its own last. At step k and
chunk j:

    product        O[q(r, k) c + j] += I[q(r, k) c + j, r] W[r],    q(r, k) = (r + k + 1) mod p
    sends          that tile                            to its owner q(r, k)
    receives       a partial sum of O[r c + j]          from device (r - k - 1) mod p
    adds           what it received at step k - 1       to O[r c + j]

So c products run while a tile travels, and no two devices send to one owner at the same step. In
FLUX the epilogue of the kernel sends the tiles.

Sent per device:  (p - 1) M K / p  elements, as with a reduce-scatter.
Held per device:  M N / p of I, N K / p of W and M K / p of O; in flight 2 c + 1 tiles of
                  M K / (p c), c + 1 to send and c received. With p = 3 it is one tile less, with
                  p = 2 it is c + 1 tiles.
"""

from __future__ import annotations

from primepar.partition.flux_gather import Chunks, Devices, Elements, Number, check_multiple
from primepar.schedule.operators import scratch_name
from primepar.schedule.program import (
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    Wait,
)
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.signature import Bound


def owner_at(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device whose tiles a device computes at a step, and to which it sends them."""
    return (rank + step + 1) % devices  # type: ignore[operator,no-any-return]


def source_at(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device from which a device receives partial sums at a step."""
    return (rank - step - 1) % devices  # type: ignore[operator,no-any-return]


class FluxScatter(ProgramMethod, frozen=True, kw_only=True):
    """Product and reduce-scatter in one, tile by tile in ring order."""

    name = "flux-scatter"
    devices: Devices = 4
    chunks: Chunks = 2
    M: Elements = 64
    N: Elements = 32
    K: Elements = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self.name, "M", self.M, "devices * chunks", self.devices * self.chunks)
        check_multiple(self.name, "N", self.N, "devices", self.devices)

    def program(self) -> Program:
        """Return the instructions of all devices, with bounds on memory and traffic."""
        devices, chunks = self.devices, self.chunks
        tiles = range(devices * chunks)
        return Program(
            "primepar-program",
            1,
            devices,
            tuple(tuple(self._of_rank(rank)) for rank in range(devices)),
            grid={"forward": {"M": devices * chunks, "N": devices}},
            shape={"M": self.M, "N": self.N, "K": self.K},
            initial=tuple(
                (*(f"I[{m},{rank}]" for m in tiles), f"W[{rank}]") for rank in range(devices)
            ),
            final=tuple(
                tuple(f"O[{rank * chunks + j}]" for j in range(chunks)) for rank in range(devices)
            ),
            memory=Bound(self.held),
            traffic=(self.sent,) * devices,
        )

    def _of_rank(self, rank: int) -> list[Instruction]:
        nodes: list[Instruction] = []
        for step in range(self.devices):
            for chunk in range(self.chunks):
                nodes += self._tile(rank, step, chunk)
        return nodes

    def _tile(self, rank: int, step: int, chunk: int) -> list[Instruction]:
        """Compute a tile, add what the step before received, then post the transfers."""
        devices = self.devices
        owner = owner_at(rank, step, devices)
        tile, kept = owner * self.chunks + chunk, rank * self.chunks + chunk
        block, scratch = f"O[{tile}]", scratch_name(f"O[{kept}]")
        sub_operator = {"M": tile, "N": rank}
        reads = (f"I[{tile},{rank}]", f"W[{rank}]")
        nodes: list[Instruction] = [Compute(reads, block, "forward", sub_operator)]
        if step:
            earlier = owner_at(rank, step - 1, devices) * self.chunks + chunk
            nodes += [Wait(f">{step - 1}.{chunk}"), Free(f"O[{earlier}]")]
            nodes += [Wait(f"<{step - 1}.{chunk}"), Compute((scratch,), f"O[{kept}]")]
            nodes.append(Free(scratch))
        if step < devices - 1:
            into, out = f"<{step}.{chunk}", f">{step}.{chunk}"
            source = source_at(rank, step, devices)
            nodes.append(IRecv(source, scratch, chunk, request=into))
            nodes.append(ISend(owner, block, chunk, request=out))
        return nodes

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

    def facts(self) -> dict[str, str]:
        """Return tiles, traffic and memory."""
        return {
            "tiles of a device": f"{self.devices * self.chunks}",
            "products while a tile travels": f"{self.chunks}",
            "sent per device": f"{self.sent} elements",
            "held per device": f"{self.held} elements",
        }
