"""Follows the operations of one rank: what each tensor is made of, as terms.

The recorder sees every operation of torch, as a dispatch mode below autograd and DTensor. An
operation on data that is there is left alone. An operation with an input that depends on received
data makes a term. Sums and exact factors stay visible in the terms; other operations are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import torch
from msgspec.structs import replace
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from primepar.preflight.meaning.linear import LinearTerms
from primepar.preflight.meaning.storages import (
    NUMPY,
    Storages,
    is_there,
    local_part,
    span,
)
from primepar.preflight.meaning.terms import (
    Applied,
    CapturedCall,
    Cotangent,
    Gradient,
    GradientClaim,
    Pullback,
    RankTerms,
    Received,
    ReplicaClaim,
    TrainedParameter,
)
from primepar.preflight.meaning.traces import FunctionTrace

COMMUNICATES = {"_c10d_functional", "_c10d_functional_autograd", "c10d"}
"""Namespaces of functional collectives."""
_PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}

Lane = tuple[Sequence[Any], dict[str, Any]]
"""The arguments of one operation, or of one place of an operation on lists of tensors."""


class TermRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the terms of one rank, and what its optimizers read.

    `source` returns the line of the user's text that runs now, `run` does an operation.
    """

    def __init__(self, source: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self.run: Callable[..., Any] = lambda func, args, kwargs: func(*args, **kwargs)
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
        self._trained: dict[str, tuple[torch.Tensor, TrainedParameter]] = {}
        self._last: dict[str, tuple[int, int]] = {}
        """Parameter -> the terms of its last claim."""
        self._functional: list[int] = []
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
        self.calls.append(CapturedCall(instruction, nodes))

    def _input(self, tensor: torch.Tensor) -> int:
        if self._functional and not self.storages.tracked(tensor):
            for place, node in enumerate(self._functional):
                if self.storages.length(node) == span(tensor):
                    return self._functional.pop(place)
        return self.storages.read(tensor)

    def gradient(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is a gradient that is about to be added to that of a parameter."""
        with _disable_current_modes():
            local = local_part(tensor)
            node = self.storages.read(local)
            self.storages.write(local, self.storages.add(Gradient(node, span(local))))

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

    def replica(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Note that a tensor is labelled as replicated over a group of ranks."""
        self.replicas.append(ReplicaClaim(group, self.held(tensor), self.source()))

    def result(self) -> RankTerms:
        """What was recorded, and what parameters hold now."""
        self.stepping()
        # What FSDP gathers for a pass is freed after it: then it holds no parameter.
        trained = [
            replace(noted, end=self.held(parameter))
            for parameter, noted in self._trained.values()
            if is_there(local_part(parameter))
        ]
        return RankTerms(
            tuple(self.storages.nodes), tuple(self.calls), tuple(self.claims),
            tuple(self.replicas), tuple(trained), tuple(self.cotangents), tuple(self.pullbacks),
            tuple([trace.packed() for trace in self.traces if trace.gradients]),
        )  # fmt: skip

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import torch._dynamo, two seconds, though nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note what its outputs are made of."""
        kwargs = kwargs or {}
        if FakeTensor in types:
            return func(*args, **kwargs)
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented
        trace = self.trace
        if trace is None or func.namespace == "c10d":
            return self._followed(func, args, kwargs)
        if func.namespace in COMMUNICATES:
            trace.why = "it calls a functional collective"
        done = trace.operation(func, args, kwargs)
        result = self._followed(func, args, kwargs)
        done(result)
        return result

    def _followed(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(map(self._tracked, tensors)):
            return self.run(func, args, kwargs)
        if func.namespace in COMMUNICATES:
            self._functional = [self.storages.read(tensor) for tensor in tensors]
            try:
                return self.run(func, args, kwargs)
            finally:
                self._functional = []
        lanes = list(_lanes(func, args, kwargs))
        written = [list(_written(func, *lane)) for lane in lanes]
        if any(written):
            terms = [self._term(func, *pair) for pair in zip(lanes, written, strict=True)]
            result = self.run(func, args, kwargs)
        else:
            result = self.run(func, args, kwargs)
            fresh = self._fresh(result, tensors)
            together = len(lanes) != len(fresh)
            lanes = [(args, kwargs)] if together else lanes
            written = [fresh] if together else [[tensor] for tensor in fresh]
            terms = [self._term(func, *pair) for pair in zip(lanes, written, strict=True)]
        for term, outputs in zip(terms, written, strict=True):
            self._write(term, outputs)
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

    def _term(self, func: Any, lane: Lane, outputs: list[torch.Tensor]) -> int:
        """The term of an operation's outputs; 0 where there are none."""
        if not outputs:
            return 0
        args, kwargs = lane
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        name = func._schema.name.replace("_foreach_", "")
        linear = self.linear.term(name, args, kwargs, outputs[0])
        if linear is not None and self.storages.length(linear) == span(outputs[0]):
            return linear
        shapes = [(str(tensor.dtype), *tensor.size(), *tensor.stride()) for tensor in tensors]
        rest = [_text(leaf) for leaf in tree_leaves((args, kwargs))]
        if torch.Tag.nondeterministic_seeded in func.tags:
            # Dropout on two ranks is one operation only where both draw the same numbers.
            rest.append(NUMPY(torch.get_rng_state()).tobytes().hex())
        digest = sha256(repr((str(func), shapes, rest)).encode()).hexdigest()[:32]
        nodes = tuple(self.storages.read(tensor) for tensor in tensors if _has_storage(tensor))
        pointwise = torch.Tag.pointwise in func.tags or "_foreach_" in func._schema.name
        return self.storages.add(Applied(digest, nodes, span(outputs[0]), pointwise))


def _lanes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Lane]:
    """The arguments of an operation on lists of tensors, place by place; of others as they are."""
    lists = [value for value in args if isinstance(value, list | tuple)]
    if "::_foreach_" not in func._schema.name or len({len(value) for value in lists}) != 1:
        yield args, kwargs
        return
    for place in range(len(lists[0])):
        yield [value[place] if isinstance(value, list | tuple) else value for value in args], kwargs


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes, of those that it is given."""
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if argument.is_write:
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if _has_storage(tensor) else 0


def _text(leaf: object) -> str:
    return "tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
