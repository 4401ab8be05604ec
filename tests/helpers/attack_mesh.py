"""One mesh of a primitive, as plain Python and integers: is it right there, and if not, why.

It shares nothing with lowering, movement, prover and emulator. It asks, in this order, for digits
that are slices, for coverage, and then

- without `home`: whatever block of an operand a device works with at step t + 1 some device works
  with at step t (placement); what the first step of a phase works with some device works with at
  the last step of the phase before (alignment), O and dW on the same device;
- with `home`: every block of I, W and O is resident on some device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from primepar import Primitive

Slices = dict[str, tuple[Any, ...]]
Block = tuple[int, ...]
Held = list[frozenset[Block]]
"""Blocks of one tensor on each device."""

DIMS_OF = {"I": "BMN", "W": "NK", "O": "BMK"}
PRODUCTS = {
    "forward": ("I", "W", "O"),
    "backward": ("dO", "W", "dI"),
    "gradient": ("I", "dO", "dW"),
}
"""Phase -> the two tensors that it reads and the one that it sums into."""
STAYS = (("forward", "I", "gradient"), ("forward", "W", "backward"),
         ("backward", "dO", "gradient"), ("backward", "W", "forward"))  # fmt: skip
"""(phase, operand, the phase that works with it next)."""
ENDS = (("forward", "O", "backward", "dO"), ("gradient", "dW", "forward", "W"))
"""(phase, its sum, the phase that works with it next, as what): without a hop."""
MOST_CELLS = 40_000
"""Blocks or sub-operators of one question; a mesh with more is not looked at."""
LARGEST = 1_000_000
"""A digit beyond is a mistake in the map."""


class WrongMeshError(Exception):
    """What is wrong on one mesh."""

    def __init__(self, property_: str, place: str) -> None:
        super().__init__(property_, place)
        self.property, self.place = property_, place


class TooLargeError(Exception):
    """One mesh has more cells than are looked at."""


class Mesh:
    """A primitive on one mesh."""

    def __init__(self, primitive: Primitive, axes: dict[str, str], sides: tuple[int, ...]) -> None:
        self.primitive, self.sides = primitive, sides
        length = dict(zip(dict.fromkeys(axes.values()), sides, strict=True))
        self.devices = list(product(*(range(length[side]) for side in axes.values())))
        self._expanded: dict[tuple[str, Any, tuple[int, ...]], tuple[int, ...]] = {}

    def check(self, most: int) -> bool:
        """Whether no choice of holders matters. Raises `WrongMeshError` or `TooLargeError`."""
        if len(self.devices) * self.steps > most:
            raise TooLargeError
        for phase in PRODUCTS:
            self._cover(phase)
        if self.primitive.home is not None:
            for tensor in DIMS_OF:
                self._has_home(tensor)
            return True
        for phase in PRODUCTS:
            self._place(phase)
        self._stay()
        return self._end()

    @cached_property
    def steps(self) -> int:
        """Steps of a phase."""
        try:
            steps = self.primitive.steps(*self.sides)
        except Exception as error:
            raise WrongMeshError("map", f"steps: {type(error).__name__}: {error}") from None
        if not isinstance(steps, int) or steps < 1:
            raise WrongMeshError("map", f"steps: {steps!r}")
        return steps

    @cached_property
    def phases(self) -> dict[str, list[list[Slices]]]:
        """Phase -> step -> device -> its slices."""
        return {
            phase: [
                [self._called(phase, *device, t, *self.sides) for device in self.devices]
                for t in range(self.steps)
            ]
            for phase in PRODUCTS
        }

    def phases_or_none(self) -> dict[str, list[list[Slices]]] | None:
        """The same; None where the map cannot be called."""
        try:
            return self.phases
        except WrongMeshError:
            return None

    @cached_property
    def homes(self) -> dict[str, list[Slices]]:
        """Tensor -> device -> its resident blocks; none where there is no `home`."""
        if self.primitive.home is None:
            return {}
        return {
            tensor: [self._called("home", tensor, *device, *self.sides) for device in self.devices]
            for tensor in DIMS_OF
        }

    def _called(self, method: str, *arguments: Any) -> Slices:
        """Dim -> digits, those that are open as None."""
        try:
            given = dict(getattr(self.primitive, method)(*arguments))
        except Exception as error:
            raise WrongMeshError("map", f"{method}: {type(error).__name__}: {error}") from None
        slices_ = {}
        for dim, index in given.items():
            digits = index if isinstance(index, tuple) else (index,)
            slices_[dim] = tuple(None if repr(digit) == "ANY" else digit for digit in digits)
            for digit in slices_[dim]:
                is_slice = isinstance(digit, int) and 0 <= digit < LARGEST
                if dim not in ("B", "M", "N", "K") or not (digit is None or is_slice):
                    raise WrongMeshError("map", f"{method}{arguments}: {dim}={index}")
        return slices_

    @cached_property
    def radices(self) -> dict[str, tuple[int, ...]]:
        """Dim -> number of slices of each digit: its largest value plus 1."""
        used = [slices for steps in self.phases.values() for step in steps for slices in step]
        counts: dict[str, list[int]] = {}
        for slices in [*used, *(slices for homes in self.homes.values() for slices in homes)]:
            for dim, index in slices.items():
                known = counts.setdefault(dim, [])
                known += [1] * (len(index) - len(known))
                for place, digit in enumerate(index):
                    known[place] = max(known[place], 1 if digit is None else digit + 1)
        return {dim: tuple(known) for dim, known in counts.items()}

    def _cells(self, dims: str, works: Iterable[list[Slices]]) -> tuple[list[Held], int]:
        """What each of several groups of devices has of some dims, and how many cells there are.

        Digits that nobody names are left out: whoever has one of their slices has all.
        """
        groups = list(works)
        named = {
            dim: tuple(
                place
                for place, radix in enumerate(self.radices[dim])
                if radix > 1
                and any(place < len(slices.get(dim, ())) and slices[dim][place] is not None
                        for group in groups for slices in group)
            )
            for dim in dims if dim in self.radices
        }  # fmt: skip
        total = prod(self.radices[dim][place] for dim in named for place in named[dim])
        if total > MOST_CELLS:
            raise TooLargeError
        cells = [
            [
                frozenset(product(*(self._slices(dim, slices.get(dim, ()), named[dim])
                                    for dim in named)))
                for slices in group
            ]
            for group in groups
        ]  # fmt: skip
        return cells, total

    def _slices(self, dim: str, index: tuple[Any, ...], places: tuple[int, ...]) -> tuple[int, ...]:
        key = dim, index, places
        if key not in self._expanded:
            flat: tuple[int, ...] = (0,)
            for place in places:
                radix = self.radices[dim][place]
                digit = index[place] if place < len(index) else None
                choices = range(radix) if digit is None else (digit,)
                flat = tuple(major * radix + minor for major in flat for minor in choices)
            self._expanded[key] = flat
        return self._expanded[key]

    def _cover(self, phase: str) -> None:
        """Every sub-operator once."""
        groups, total = self._cells("BMNK", self.phases[phase])
        seen: set[Block] = set()
        for t, group in enumerate(groups):
            for device, cells in zip(self.devices, group, strict=True):
                if not seen.isdisjoint(cells):
                    raise WrongMeshError("coverage", f"{phase} {device} t={t}: computed before")
                seen |= cells
        if len(seen) != total:
            raise WrongMeshError("coverage", f"{phase}: {len(seen)} of {total}")

    def _has_home(self, tensor: str) -> None:
        """Every block is resident on some device."""
        (resident,), total = self._cells(DIMS_OF[tensor], [self.homes[tensor]])
        count = len(frozenset[Block]().union(*resident))
        if count != total:
            raise WrongMeshError("home", f"{tensor}: {count} of {total} blocks are resident")

    @cached_property
    def _held(self) -> dict[tuple[str, str], list[Held]]:
        """(phase, tensor) -> step -> device -> the blocks of the tensor that it works with."""
        holdings: dict[tuple[str, str], list[Held]] = {}
        for base, dims in DIMS_OF.items():
            uses = [(phase, tensor) for phase in PRODUCTS for tensor in PRODUCTS[phase]
                    if tensor.removeprefix("d") == base]  # fmt: skip
            groups, _ = self._cells(
                dims, [step_ for phase, _ in uses for step_ in self.phases[phase]]
            )
            for number, use in enumerate(uses):
                holdings[use] = groups[number * self.steps : (number + 1) * self.steps]
        return holdings

    def _place(self, phase: str) -> None:
        for tensor in PRODUCTS[phase][:2]:
            held = self._held[phase, tensor]
            for t in range(1, self.steps):
                self._is_somewhere(held[t - 1], held[t], "placement", f"{phase} {tensor} t={t}")

    def _stay(self) -> None:
        for phase, tensor, following in STAYS:
            last, first = self._held[phase, tensor][-1], self._held[following, tensor][0]
            self._is_somewhere(last, first, "alignment", f"{phase} {tensor} to {following}")

    def _is_somewhere(self, have: Held, need: Held, property_: str, place: str) -> None:
        missing = frozenset[Block]().union(*need) - frozenset[Block]().union(*have)
        if missing:
            raise WrongMeshError(property_, f"{place}: {sorted(missing)[0]} is nowhere")

    def _end(self) -> bool:
        """Whether the sums end where they are needed, whichever holders pass theirs on."""
        certain = True
        for phase, tensor, following, name in ENDS:
            need = self._held[following, name][0]
            for device, blocks in enumerate(need):
                for block in blocks:
                    if device in self.holders(phase, tensor, block, stay=False):
                        continue
                    certain = False
                    if device not in self.holders(phase, tensor, block, stay=True):
                        place = f"{phase} {tensor}{block} does not end on {self.devices[device]}"
                        raise WrongMeshError("alignment", place)
        return certain

    def holders(self, phase: str, tensor: str, block: Block, *, stay: bool) -> frozenset[int]:
        """Devices with a partial sum of a block after the last step that adds to it.

        Where fewer devices go on with it than leave it, those that cannot pass theirs on keep it:
        which they are is not stated. With `stay` all of them count, without it none.
        """
        key = phase, tensor, stay
        if key not in self._finished:
            self._finished[key] = self._followed(phase, tensor, stay)
        return self._finished[key].get(block, frozenset())

    @cached_property
    def _finished(self) -> dict[tuple[str, str, bool], dict[Block, frozenset[int]]]:
        return {}

    def _followed(self, phase: str, tensor: str, stay: bool) -> dict[Block, frozenset[int]]:
        devices_: dict[Block, frozenset[int]] = {}
        for held in self._held[phase, tensor]:
            now: dict[Block, set[int]] = {}
            for device, blocks in enumerate(held):
                for block in blocks:
                    now.setdefault(block, set()).add(device)
            for block, working in now.items():
                before = devices_.get(block, frozenset())
                leave, join = before - working, working - before
                kept = leave if not join or (stay and len(join) < len(leave)) else frozenset()
                devices_[block] = kept | working
        return devices_
