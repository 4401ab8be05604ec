"""FLUX all-gather: the product of chunk after chunk, while the next chunks travel.

Source: Chang et al., FLUX, arXiv 2406.06858; chunks and signals as a program are ours.

O = I W on p devices. I is sharded along M (sequence parallelism), W along K. Plain tensor
parallelism gathers I, and then computes. Here the part of I of each device is cut into c chunks,
and one tile of the product needs one chunk. Device r computes the tiles of its own chunks first,
then those of device r + 1, r + 2, ... At step k and chunk j:

    chunk          I[q(r, k) c + j],         q(r, k) = (r + k) mod p
    product        O[q(r, k) c + j, r] = I[q(r, k) c + j] W[r]
    sends          I[r c + j]                to device (r - k - 1) mod p
    receives       I[q(r, k + 1) c + j]      from device q(r, k + 1)

What is received at step k is multiplied at step k + 1, after its wait: the wait is FLUX's signal.
So c products run while a chunk travels. In FLUX the tiles are those of one fused kernel.

Sent per device:  (p - 1) M N / p  elements, as with an all-gather.
Held per device:  M N / p of I, N K / p of W and up to M K / p of O; in flight c + 1 chunks of
                  M N / (p c), or c where p = 2. The last chunks are freed while O grows, so the
                  peak is the largest of three sums, in `held`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

from primepar.errors import MethodError
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

Devices = Annotated[int, Meta(ge=1, le=256)]
Chunks = Annotated[int, Meta(ge=1, le=256)]
Elements = Annotated[int, Meta(ge=1, le=2**31)]
Number = TypeVar("Number")
"""An integer, or a symbol of a proof."""


def owner_at(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device whose chunks a device multiplies at a step."""
    return (rank + step) % devices  # type: ignore[operator,no-any-return]


def target_at(rank: Number, step: Number, devices: Number) -> Number:
    """Return the device to which a device sends its own chunks at a step."""
    return (rank - step - 1) % devices  # type: ignore[operator,no-any-return]


class FluxGather(ProgramMethod, frozen=True, kw_only=True):
    """All-gather and product in one, chunk by chunk in ring order."""

    name = "flux-gather"
    devices: Devices = 4
    chunks: Chunks = 2
    M: Elements = 64
    N: Elements = 32
    K: Elements = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_multiple(self.name, "M", self.M, "devices * chunks", self.devices * self.chunks)
        check_multiple(self.name, "K", self.K, "devices", self.devices)

    def program(self) -> Program:
        """Return the instructions of all devices, with bounds on memory and traffic."""
        devices, chunks = self.devices, self.chunks
        tiles = range(devices * chunks)
        return Program(
            "primepar-program",
            1,
            devices,
            tuple(tuple(self._of_rank(rank)) for rank in range(devices)),
            grid={"forward": {"M": devices * chunks, "K": devices}},
            shape={"M": self.M, "N": self.N, "K": self.K},
            initial=tuple(
                (*(f"I[{rank * chunks + j}]" for j in range(chunks)), f"W[{rank}]")
                for rank in range(devices)
            ),
            final=tuple(tuple(f"O[{m},{rank}]" for m in tiles) for rank in range(devices)),
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
        """Post the transfers for the next step, wait for this step's chunk, multiply it."""
        devices, chunks = self.devices, self.chunks
        owner, tag = owner_at(rank, step, devices), chunk
        block = f"I[{owner * chunks + chunk}]"
        nodes: list[Instruction] = []
        if step < devices - 1:
            source, target = owner_at(rank, step + 1, devices), target_at(rank, step, devices)
            received, sent = f"I[{source * chunks + chunk}]", f"I[{rank * chunks + chunk}]"
            into, out = f"<{step + 1}.{chunk}", f">{step + 1}.{chunk}"
            nodes.append(IRecv(source, received, tag, request=into))
            nodes.append(ISend(target, sent, tag, request=out))
        if step:
            nodes += [Wait(f"<{step}.{chunk}"), Wait(f">{step}.{chunk}")]
        tile = owner * chunks + chunk
        sub_operator = {"M": tile, "K": rank}
        nodes.append(Compute((block, f"W[{rank}]"), f"O[{tile},{rank}]", "forward", sub_operator))
        return [*nodes, Free(block)] if step else nodes

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
        peaks = [min(devices - 1, 1) * chunk + devices * chunks * tile]
        if devices > 1:
            peaks.append(chunks * chunk + (before_last + 1) * tile)
        if devices > 2:
            peaks.append((chunks + 1) * chunk + before_last * tile)
        return (self.M * self.N + self.N * self.K) // devices + max(peaks)

    def facts(self) -> dict[str, str]:
        """Return tiles, traffic and memory."""
        return {
            "tiles of a device": f"{self.devices * self.chunks}",
            "products while a chunk travels": f"{self.chunks}",
            "sent per device": f"{self.sent} elements",
            "held per device": f"{self.held} elements",
        }


def check_multiple(method: str, size: str, value: int, what: str, factor: int) -> None:
    """Raise `MethodError` unless a size is a multiple of another number."""
    if value % factor:
        raise MethodError(
            f"{method}: expected {size} to be a multiple of {what} = {factor}, got {value}: "
            f"write {size}={-(-value // factor) * factor}"
        )
