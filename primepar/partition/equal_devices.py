"""What methods share whose devices all hold and send the same: FLUX, ring attention and Ulysses.

Which device is at the other end of a transfer is a map of the device and the step alone, which the
program and the proof for every size both call: with integers, and with symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, TypeVar

from msgspec import Meta

from primepar.errors import MethodError
from primepar.schedule.program import Instruction, IRecv, ISend, Program, Wait
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.signature import Bound

Devices = Annotated[int, Meta(ge=1, le=256)]
Elements = Annotated[int, Meta(ge=1, le=2**31)]
Number = TypeVar("Number")
"""An integer, or a symbol of a proof."""


class Device(NamedTuple):
    """What one device has before, does, and has at the end."""

    begins: Iterable[str]
    instructions: Iterable[Instruction]
    ends: Iterable[str]


class EqualDevices(ProgramMethod, frozen=True, kw_only=True):
    """A method of some devices; `sent` and `held` are elements of each of them."""

    devices: Devices = 4

    def device(self, rank: int) -> Device:
        """What a device does."""
        raise NotImplementedError

    def meaning(self) -> dict[str, Any]:
        """Fields of the program that define its blocks: the grid, and a shape or signatures."""
        raise NotImplementedError

    @property
    def sent(self) -> int | Fraction:
        """Elements that leave each device."""
        raise NotImplementedError

    @property
    def held(self) -> int:
        """Peak of live elements on each device."""
        raise NotImplementedError

    def program(self) -> Program:
        """Return the instructions of all devices, with the traffic and memory of the formulas."""
        devices = [self.device(rank) for rank in range(self.devices)]
        whole = self.sent.denominator == 1
        return Program(
            "primepar-program",
            1,
            self.devices,
            tuple(tuple(device.instructions) for device in devices),
            initial=tuple(tuple(device.begins) for device in devices),
            final=tuple(tuple(device.ends) for device in devices),
            memory=Bound(self.held),
            traffic=(int(self.sent) if whole else str(self.sent),) * self.devices,
            **self.meaning(),
        )

    def facts(self) -> dict[str, str]:
        """Return what moves, and what is held."""
        return {
            "sent per device": f"{self.sent} elements",
            "held per device": f"{self.held} elements",
        }

    def check_multiple(self, size: str, of: str, factor: int) -> None:
        """Raise `MethodError` unless a size is a multiple of another number."""
        value = getattr(self, size)
        if value % factor:
            raise MethodError(
                f"{self.name}: expected {size} to be a multiple of {of} = {factor}, got {value}: "
                f"write {size}={-(-value // factor) * factor}"
            )


def posted(
    source: int, received: str, target: int, sent: str, name: str, tag: int = 0
) -> list[Instruction]:
    """Post a transfer in and one out, with the requests `<name` and `>name`."""
    return [
        IRecv(source, received, tag, request=f"<{name}"),
        ISend(target, sent, tag, request=f">{name}"),
    ]


def awaited(name: str) -> list[Instruction]:
    """Wait for both transfers of a name."""
    return [Wait(f"<{name}"), Wait(f">{name}")]
