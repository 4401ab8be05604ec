"""Operations whose terms stay sums: copies, sums, factors, and parts put together or apart."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.meaning.storages import Storages, span
from primepar.preflight.meaning.terms import Added, Joined, Mapped, Scaled, WeightedTerm
from primepar.preflight.meaning.values import meant

_ITEM = torch.Tensor.item
"""As it was before a script's reads are watched: a factor that is read decides nothing."""
_COPIES = {"aten::clone", "aten::_to_copy", "aten::detach", "aten::lift_fresh"}
_PRODUCTS = {"aten::mul", "aten::mul_"}
_QUOTIENTS = {"aten::div", "aten::div_"}
_SUMS = {"aten::add", "aten::add_"}


class LinearTerms:
    """Makes the terms of linear operations of one rank.

    Elements are in the order of memory. An operand of another layout than the result is one opaque
    value of it, which stays linear: `Mapped`.
    """

    def __init__(self, storages: Storages) -> None:
        self.storages = storages

    def term(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], output: torch.Tensor
    ) -> int | None:
        """The term of an output; None for operations that are not linear."""
        if span(output) != output.numel():
            return None
        if name in _COPIES:
            return self._as(args[0], output)
        if name == "aten::copy_":
            return self._as(args[1], output)
        if name in _PRODUCTS or name in _QUOTIENTS:
            return self._product(args, output, name in _QUOTIENTS)
        if name in _SUMS:
            return self._sum(args, kwargs, output)
        if name == "aten::cat" and (args[1:] or (0,))[0] == 0:
            return self._joined([(tensor, 0, tensor.numel()) for tensor in args[0]])
        if name == "fsdp::chunk_cat" and args[1] == 0:
            return self._chunks(args[0], args[2])
        return None

    def _as(self, tensor: Any, output: torch.Tensor) -> int | None:
        """An operand in the layout and type of the output."""
        if not isinstance(tensor, torch.Tensor) or tensor.size() != output.size():
            return None
        node = self.storages.read(tensor)
        if tensor.stride() == output.stride() and tensor.dtype == output.dtype:
            return node
        layouts = f"{tuple(tensor.size())} {tensor.stride()} {output.stride()} {output.dtype}"
        return self.storages.add(Mapped(layouts, node, output.numel()))

    def _product(self, args: Sequence[Any], output: torch.Tensor, divides: bool) -> int | None:
        node, factor = self._as(args[0], output), _number(self.storages, args[1])
        if node is None:
            return None
        if factor:
            return self._scaled(node, 1 / factor if divides else factor)
        if isinstance(args[1], torch.Tensor) and args[1].numel() == 1:
            weight = self.storages.read(args[1])
            return self.storages.add(WeightedTerm(node, weight, divides))
        return None

    def _sum(self, args: Sequence[Any], kwargs: dict[str, Any], output: torch.Tensor) -> int | None:
        terms = [self._as(tensor, output) for tensor in args[:2]]
        factor = _number(self.storages, kwargs.get("alpha", 1))
        if terms[0] is None or terms[1] is None or not factor:
            return None
        return self.storages.add(Added((terms[0], self._scaled(terms[1], factor))))

    def _chunks(self, tensors: Sequence[torch.Tensor], chunks: int) -> int | None:
        """FSDP's copy into a buffer: the first part of every tensor, then the second, and so on."""
        if any(tensor.size(0) % chunks or not tensor.is_contiguous() for tensor in tensors):
            return None
        counts = [tensor.numel() // chunks for tensor in tensors]
        return self._joined([
            (tensor, chunk * count, count)
            for chunk in range(chunks)
            for tensor, count in zip(tensors, counts, strict=True)
        ])  # fmt: skip

    def _joined(self, parts: Sequence[tuple[torch.Tensor, int, int]]) -> int | None:
        if not all(tensor.is_contiguous() for tensor, _, _ in parts):
            return None
        nodes = {id(tensor): self.storages.read(tensor) for tensor, _, _ in parts}
        return self.storages.add(
            Joined(tuple((nodes[id(tensor)], first, count) for tensor, first, count in parts))
        )

    def _scaled(self, node: int, factor: Fraction) -> int:
        return node if factor == 1 else self.storages.add(Scaled(node, str(factor)))


def _number(storages: Storages, value: Any) -> Fraction | None:
    """A factor that is there; None for a tensor that depends on received data."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or storages.tracked(value):
            return None
        with _disable_current_modes():
            value = _ITEM(value)
    return meant(value) if isinstance(value, int | float) else None
