"""Follows the operations of one rank: what each tensor is made of, as terms.

An operation on data that is there is left alone. An operation with an input that depends on
received data makes a term. Sums and exact factors stay visible in the terms; other operations are
opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from hashlib import sha256
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from primepar.preflight.capture.source_lines import by_dtensor
from primepar.preflight.meaning.storages import (
    Dependence,
    Storages,
    is_there,
    local_part,
    span,
)
from primepar.preflight.meaning.terms import (
    MOVES,
    Added,
    Applied,
    CapturedCall,
    CopiedInput,
    Cotangent,
    Gradient,
    GradientClaim,
    Joined,
    Leaf,
    Mapped,
    Pullback,
    RankTerms,
    Received,
    ReplicaClaim,
    Scaled,
    TrainedParameter,
    WeightedTerm,
)
from primepar.preflight.meaning.traces import FunctionTrace
from primepar.preflight.meaning.values import meant

_ITEM = torch.Tensor.item
"""As it was before a script's reads are watched: a factor that is read decides nothing."""
_COPIES = {"aten::clone", "aten::_to_copy", "aten::detach", "aten::lift_fresh"}
_PRODUCTS = {"aten::mul", "aten::mul_"}
_QUOTIENTS = {"aten::div", "aten::div_"}
_SUMS = {"aten::add": 1, "aten::add_": 1, "aten::sub": -1, "aten::sub_": -1}
"""Sums and differences -> the sign of the second operand."""
_ADDENDS = {"aten::add": 2, "aten::add_": 2, "aten::addmm": 1, "aten::baddbmm": 1}
"""The first arguments that an operation adds up, some of them over a dim that they do not have."""


class LinearTerms:
    """Makes the terms that stay sums: copies, sums, factors, and parts put together or apart.

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
            return self._sum(args, kwargs, output, _SUMS[name])
        if name == "aten::flip" and args[0].is_contiguous():
            moves = f"{MOVES}{sorted(dim % args[0].dim() for dim in args[1])}"
            return self.storages.add(Mapped(moves, self.storages.read(args[0]), output.numel()))
        if name == "aten::cat" and (args[1:] or (0,))[0] == 0:
            return self._joined([(tensor, 0, tensor.numel()) for tensor in args[0]])
        if name == "fsdp::split_with_sizes_copy":
            return self._joined([(row, 0, row.numel()) for row in args[0]])
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

    def _sum(
        self, args: Sequence[Any], kwargs: dict[str, Any], output: torch.Tensor, sign: int
    ) -> int | None:
        terms = [self._as(tensor, output) for tensor in args[:2]]
        factor = _number(self.storages, kwargs.get("alpha", 1))
        if terms[0] is None or terms[1] is None or not factor:
            return None
        return self.storages.add(Added((terms[0], self._scaled(terms[1], sign * factor))))

    def _chunks(self, tensors: Sequence[torch.Tensor], chunks: int) -> int | None:
        """FSDP's copy into a buffer: the first part of every tensor, then the second, and so on.

        Where the rows of a tensor are no multiple of `chunks`, its last parts are filled up.
        """
        parts: list[tuple[torch.Tensor | None, int, int]] = []
        for chunk in range(chunks):
            for tensor in tensors:
                rows = -(-tensor.size(0) // chunks)
                row = tensor.numel() // tensor.size(0)
                first, end = (min(one * rows, tensor.size(0)) for one in (chunk, chunk + 1))
                parts.append((tensor, first * row, (end - first) * row))
                parts.append((None, 0, (rows - end + first) * row))
        return self._joined(parts)

    def _joined(self, parts: Sequence[tuple[torch.Tensor | None, int, int]]) -> int | None:
        """Parts of tensors one after the other; those of none are filled up."""
        tensors = {id(tensor): tensor for tensor, _, _ in parts if tensor is not None}
        if not all(tensor.is_contiguous() for tensor in tensors.values()):
            return None
        nodes = {key: self.storages.read(tensor) for key, tensor in tensors.items()}
        longest = max((count for tensor, _, count in parts if tensor is None), default=0)
        if longest:
            nodes[id(None)] = self.storages.add(Leaf("filled up", longest, constant=True))
        return self.storages.add(
            Joined(tuple((nodes[id(one)], first, count) for one, first, count in parts if count))
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


class TermRecorder:
    """The terms of one rank, and what its optimizers read.

    `source` returns the line of the user's text that runs now.
    """

    def __init__(self, source: Callable[[], str]) -> None:
        self.source = source
        self.storages = Storages()
        self.linear = LinearTerms(self.storages)
        self.claims: list[GradientClaim] = []
        self.replicas: list[ReplicaClaim] = []
        self.calls: list[CapturedCall] = []
        self.cotangents: list[int] = []
        self.pullbacks: list[Pullback] = []
        self.trace: FunctionTrace | None = None
        """The application of a function that runs now."""
        self.traces: list[FunctionTrace] = []
        self.entered: dict[int, None] = {}
        """Inputs of functions that communicate in their backward pass."""
        self.copied: list[CopiedInput] = []
        self.roots: list[int] = []
        self.looked_up: set[str] = set()
        """Parameters of which rows are taken, as an embedding does."""
        self.idle = ""
        """The first step of an optimizer that found no gradient."""
        self._trained: dict[str, tuple[torch.Tensor, TrainedParameter]] = {}
        self._last: dict[str, tuple[int, int]] = {}
        """Parameter -> the terms of its last claim."""
        self.depth = 0
        """Backward passes that are under way; one within another is of activations anew."""
        self.backward: list[tuple[int, int]] = []
        """The terms that each of them made."""
        self.functional: list[int] = []
        """Of a functional collective: the terms of its inputs, which it copies unseen."""

    def call(
        self, instruction: int, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> None:
        """Note a communication call: the tensors that it reads, and those that it writes."""
        with _disable_current_modes():
            if self.trace is not None:
                self.trace.call(
                    len(self.calls), *(list(map(local_part, t)) for t in (reads, writes))
                )
            nodes = tuple(self._input(local_part(tensor)) for tensor in reads)
            for slot, tensor in enumerate(map(local_part, writes)):
                node = self.storages.add(Received(len(self.calls), slot, span(tensor)))
                self.storages.write(tensor, node)
        self.calls.append(CapturedCall(instruction, nodes, self._forward()))

    def _forward(self) -> Literal["function", "open", ""]:
        """What makes a call of a forward pass; that of activations anew is a function's."""
        if self.trace is not None:
            return "" if self.trace.cotangents else "function"
        return "" if self.depth or by_dtensor() else "open"

    def _input(self, tensor: torch.Tensor) -> int:
        if self.functional and not self.storages.tracked(tensor):
            for place, node in enumerate(self.functional):
                if self.storages.length(node) == span(tensor):
                    return self.functional.pop(place)
        return self.storages.read(tensor)

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """While a backward pass runs."""
        self.depth += 1
        start = len(self.storages.nodes)
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.backward.append((start, len(self.storages.nodes)))

    def gradient(self, tensor: torch.Tensor, name: str = "") -> None:
        """Note that a tensor is a gradient that is about to be added to that of a parameter."""
        with _disable_current_modes():
            local = local_part(tensor)
            node = self.storages.read(local)
            self.storages.write(local, self.storages.add(Gradient(node, span(local), name)))

    def cotangent(self, copy: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient that is noted to be that of a received copy."""
        marked, local = gradient.detach().clone(), local_part(gradient)
        with _disable_current_modes():
            of, entered = self.held(copy), self.storages.read(local)
            node = self.storages.add(Cotangent(of, entered, span(local), self.source()))
            self.storages.write(local_part(marked), node)
        self.cotangents.append(node)
        return marked

    def trained(
        self,
        name: str,
        parameter: torch.Tensor,
        replicated: tuple[tuple[int, ...], ...] = (),
        sharded: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        """Note what a parameter holds in a backward pass, before it gets its gradient.

        `replicated` and `sharded` are the groups of ranks that its placement names.
        """
        node = self.held(parameter)
        if name not in self._trained:
            noted = TrainedParameter(name, node, node, replicated, sharded)
            self._trained[name] = parameter, noted
            return
        noted = self._trained[name][1]
        if node not in (noted.start, *noted.held):
            self._trained[name] = parameter, replace(noted, held=(*noted.held, node))

    def stepping(self) -> None:
        """Note the gradients of all parameters, which an optimizer is about to read or clear."""
        for name, (parameter, noted) in self._trained.items():
            if parameter.grad is not None:
                held = self.held(parameter.grad)
                self._trained[name] = parameter, replace(noted, gradient=held)

    def updated(self, name: str) -> None:
        """Note what a parameter holds after a step of an optimizer."""
        parameter, noted = self._trained[name]
        self._trained[name] = parameter, replace(noted, updated=self.held(parameter))

    def held(self, tensor: torch.Tensor) -> int:
        """The term of what a tensor holds."""
        with _disable_current_modes():
            return self.storages.read(local_part(tensor).detach())

    def claim(self, name: str, step: int, parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
        """Note that an optimizer reads a parameter and its gradient.

        Returns whether it is a new step, and not that of an optimizer within another one.
        """
        self.trained(name, parameter)
        data, sums = self.held(parameter), self.held(gradient)
        before = self._last.get(name)
        self._last[name] = data, sums
        if before == (data, sums) and self.storages.tracked(local_part(parameter)):
            return False
        self.claims.append(GradientClaim(name, step, data, sums, self.source()))
        return True

    def distinguished(self, tensor: torch.Tensor) -> int:
        """Give what a tensor holds a term that no other tensor has; return it."""
        with _disable_current_modes():
            local = local_part(tensor)
            node = self.storages.add(Scaled(self.storages.read(local), "1"), anew=True)
            self.storages.write(local, node)
        return node

    def replica(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Note that a tensor is labelled as replicated over a group of ranks."""
        self.replicas.append(ReplicaClaim(group, self.held(tensor), self.source()))

    def result(self) -> RankTerms:
        """What was recorded, and what parameters hold now."""
        self.stepping()
        # What FSDP gathers for a pass is freed after it: then it holds no parameter.
        trained = [
            replace(noted, end=self.held(parameter), looked_up=noted.name in self.looked_up)
            for parameter, noted in self._trained.values()
            if is_there(local_part(parameter))
        ]
        return RankTerms(
            tuple(self.storages.nodes), tuple(self.calls), tuple(self.claims),
            tuple(self.replicas), tuple(trained), tuple(self.cotangents), tuple(self.pullbacks),
            tuple([trace.packed() for trace in self.traces if trace.gradients]),
            tuple(self.entered), tuple(self.copied), tuple(self.roots), self.idle,
            tuple(self.backward),
        )  # fmt: skip

    def tracked(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a term."""
        return _has_storage(tensor) and self.storages.tracked(tensor)

    def made(self, node: int | None, outputs: Sequence[torch.Tensor]) -> None:
        """Let the outputs of an operation hold its term; None is data that is there."""
        for place, tensor in enumerate(outputs):
            number = node
            if node is not None and len(outputs) > 1:
                term = Applied(f"output {place}", (node,), span(tensor))
                number = self.storages.add(term)
            self.storages.write(tensor, number)

    def without_numbers(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that what tensors hold is not computed."""
        for tensor in tensors:
            self.storages.depend(tensor, Dependence(frozenset({"uncomputed"}), unknown=True))

    def term(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any],
        outputs: Sequence[torch.Tensor], drawn: int = 0,
    ) -> int:  # fmt: skip
        """The term of an operation's outputs; 0 where there are none.

        `drawn` names the random numbers that it draws: dropout on two ranks is one operation only
        where both draw the same ones.
        """
        if not outputs:
            return 0
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        name = func._schema.name.replace("_foreach_", "")
        linear = self.linear.term(name, args, kwargs, outputs[0])
        if linear is not None and self.storages.length(linear) == span(outputs[0]):
            return linear
        shapes = [(str(tensor.dtype), *tensor.size(), *tensor.stride()) for tensor in tensors]
        rest = [_text(leaf) for leaf in tree_leaves((args, kwargs))]
        digest = sha256(repr((str(func), shapes, rest, drawn)).encode()).hexdigest()[:32]
        nodes = tuple(self.storages.read(tensor) for tensor in tensors if _has_storage(tensor))
        if not nodes and not drawn:  # a large tensor that is filled with one number, or not at all
            return self.storages.add(Leaf(digest, span(outputs[0]), constant=True))
        pointwise = torch.Tag.pointwise in func.tags or "_foreach_" in func._schema.name
        added = args[: _ADDENDS.get(name, 0)] if not kwargs else ()
        operands = [one for one in added if isinstance(one, torch.Tensor) and _has_storage(one)]
        addends = tuple(map(self.storages.read, operands))
        return self.storages.add(Applied(digest, nodes, span(outputs[0]), pointwise, addends))


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _text(leaf: object) -> str:
    return "" if isinstance(leaf, torch.Tensor | torch._C.Generator) else repr(leaf)
