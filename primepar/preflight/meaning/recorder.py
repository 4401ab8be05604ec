"""Follows the operations of one rank: what each tensor is made of, as terms.

The recorder sees every operation of torch, as a dispatch mode below autograd and DTensor. An
operation on data that is there is left alone. An operation with an input that depends on received
data makes a term. Sums and exact factors stay visible in the terms; other operations are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from primepar.preflight.meaning.storages import Storages, span
from primepar.preflight.meaning.terms import (
    Added,
    Applied,
    Gradient,
    GradientClaim,
    Mapped,
    RankTerms,
    Received,
    Scaled,
)

_STEERING = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"}
_COPIES = {"aten::clone", "aten::copy_", "aten::_to_copy", "aten::detach", "aten::lift_fresh"}
_PRODUCTS = {"aten::mul", "aten::mul_", "aten::div", "aten::div_"}
_SUMS = {"aten::add", "aten::add_"}


class TermRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the terms of one rank, and what its optimizers read.

    `source` returns the line of the user's text that runs now.
    """

    def __init__(self, source: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self.storages = Storages()
        self.claims: list[GradientClaim] = []
        self.steering: list[str] = []

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The terms that a communication call reads, one for each tensor."""
        return [self.storages.read(_local(tensor)) for tensor in tensors]

    def outputs(self, call: int, tensors: Sequence[torch.Tensor]) -> None:
        """Note that a communication call writes these tensors."""
        for slot, tensor in enumerate(map(_local, tensors)):
            node = self.storages.add(Received(call, slot, span(tensor)))
            self.storages.write(tensor, node)

    def gradient(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is a gradient that is about to be added to that of a parameter."""
        local = _local(tensor)
        node = self.storages.read(local)
        self.storages.write(local, self.storages.add(Gradient(node, span(local))))

    def claim(self, name: str, step: int, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note that an optimizer reads a parameter and its gradient."""
        data, sums = self.inputs([parameter.detach(), gradient.detach()])
        self.claims.append(GradientClaim(name, step, data, sums, self.source()))

    def result(self) -> RankTerms:
        """What was recorded."""
        return RankTerms(tuple(self.storages.nodes), tuple(self.claims), tuple(self.steering))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note what its outputs are made of."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors):
            return NotImplemented
        if not any(map(self._tracked, tensors)):
            return func(*args, **kwargs)
        name = func._schema.name
        if name in _STEERING:
            self.steering.append(self.source())
        written = list(_written(func, args, kwargs))
        node = self._term(func, name, args, kwargs, written) if written else None
        result = func(*args, **kwargs)
        fresh = [] if written else self._fresh(result, tensors)
        if fresh:
            node = self._term(func, name, args, kwargs, fresh)
        if node is not None:
            self._write(node, written or fresh)
        return result

    def _tracked(self, tensor: torch.Tensor) -> bool:
        return _has_storage(tensor) and self.storages.tracked(tensor)

    def _fresh(self, result: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs that are no views of inputs."""
        addresses = {_address(tensor) for tensor in inputs}
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return [leaf for leaf in leaves if _address(leaf) not in addresses]

    def _write(self, node: int, outputs: list[torch.Tensor]) -> None:
        for place, tensor in enumerate(outputs):
            number = node
            if len(outputs) > 1:
                term = Applied(f"output {place}", (node,), span(tensor))
                number = self.storages.add(term)
            self.storages.write(tensor, number)

    def _term(
        self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any],
        outputs: list[torch.Tensor],
    ) -> int:  # fmt: skip
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        linear = self._linear(name, args, kwargs, tensors)
        if linear is not None and self.storages.length(linear) == span(outputs[0]):
            return linear
        shapes = [(str(tensor.dtype), *tensor.size(), *tensor.stride()) for tensor in tensors]
        rest = [_text(leaf) for leaf in tree_leaves((args, kwargs))]
        digest = sha256(repr((str(func), shapes, rest)).encode()).hexdigest()[:32]
        nodes = tuple(self.storages.read(tensor) for tensor in tensors if _has_storage(tensor))
        return self.storages.add(Applied(digest, nodes, span(outputs[0])))

    def _linear(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> int | None:
        """The term of a sum, a factor or a copy; None for other operations."""
        if name in _COPIES:
            return self._copy(name, args)
        if name in _PRODUCTS and not kwargs:
            factor = self._factor(args[1])
            if factor is None or not self._tracked(args[0]):
                return None
            factor = factor if "mul" in name else 1 / factor
            return self._scaled(self._laid_out(args[0], args[0].dtype), factor)
        if name in _SUMS and len(tensors) == 2 and tensors[0].size() == tensors[1].size():
            terms = [self._laid_out(tensor, args[0].dtype) for tensor in tensors]
            terms[1] = self._scaled(terms[1], Fraction(kwargs.get("alpha", 1)))
            if self.storages.length(terms[0]) == self.storages.length(terms[1]):
                return self.storages.add(Added(tuple(terms)))
        return None

    def _copy(self, name: str, args: Sequence[Any]) -> int | None:
        source = args[1] if name == "aten::copy_" else args[0]
        if name == "aten::copy_" and args[0].size() != source.size():
            return None
        return self._laid_out(source, args[0].dtype)

    def _laid_out(self, tensor: torch.Tensor, dtype: torch.dtype) -> int:
        """The term of a tensor's elements in their order, in another type if it differs."""
        node = self.storages.read(tensor)
        if tensor.is_contiguous() and tensor.dtype == dtype:
            return node
        layout = "" if tensor.is_contiguous() else f"{tuple(tensor.size())} {tensor.stride()}"
        return self.storages.add(Mapped(f"{layout} {dtype}", node, tensor.numel()))

    def _scaled(self, node: int, factor: Fraction) -> int:
        return node if factor == 1 else self.storages.add(Scaled(node, str(factor)))

    def _factor(self, value: Any) -> Fraction | None:
        if isinstance(value, torch.Tensor):
            if value.numel() != 1 or not _has_storage(value) or self._tracked(value):
                return None
            with torch.utils._python_dispatch._disable_current_modes():
                value = value.item()
        return Fraction(value) if isinstance(value, int | float) and value else None


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes, of those that it is given."""
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if argument.is_write:
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A rank's own part of a DTensor; any other tensor is itself."""
    return getattr(tensor, "_local_tensor", tensor)


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if _has_storage(tensor) else 0


def _text(leaf: object) -> str:
    return "tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
