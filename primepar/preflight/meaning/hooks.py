"""Where a script's gradients arise and are read: in `backward` and in an optimizer's `step`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.distributed import get_process_group_ranks
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from primepar.preflight.meaning.recorder import TermRecorder
from primepar.preflight.meaning.storages import local_part
from primepar.preflight.meaning.terms import CopiedInput, Pullback
from primepar.preflight.meaning.traces import MOST_APPLICATIONS, FunctionTrace, TracedCall


class GradientHooks:
    """What a recorder sees of the gradients of this process, and of labels of DTensor."""

    def __init__(self, recorder: TermRecorder) -> None:
        self.recorder = recorder
        self.names: dict[int, str] = {}
        """Parameter -> its name in the outermost module that was called."""
        self.used: Counter[str] = Counter()
        """Name -> parameters that have it; the second one of another model is `weight #2`."""
        self.known: set[int] = set()
        """Parameters whose gradients are seen."""
        self.nodes: list[object] = []
        """Nodes with a hook, which must not be deleted."""
        self.steps: Counter[int] = Counter()

    def install(self) -> None:
        """See them from now on."""
        register_module_forward_pre_hook(self._name)
        register_optimizer_step_pre_hook(self._step)
        register_optimizer_step_post_hook(self._stepped)
        original = vars(torch.autograd)["_engine_run_backward"]
        vars(torch.autograd)["_engine_run_backward"] = self._with_hooks(original)
        function: Any = torch.autograd.Function
        function.apply = classmethod(self._traced(function.apply.__func__))
        dtensor: Any = DTensor
        dtensor.from_local = staticmethod(self._labelled(DTensor.from_local))

    def _labelled(self, original: Callable[..., DTensor]) -> Callable[..., DTensor]:
        """See which tensors `DTensor.from_local` labels as replicated."""

        @wraps(original)
        def from_local(local_tensor: torch.Tensor, *args: Any, **named: Any) -> DTensor:
            result = original(local_tensor, *args, **named)
            if local_tensor.is_meta:
                return result
            mesh = result.device_mesh
            for dim, placement in enumerate(result.placements):
                if placement.is_replicate() and mesh.get_coordinate() is not None:
                    group = tuple(get_process_group_ranks(mesh.get_group(dim)))
                    self.recorder.replica(group, local_tensor)
            return result

        return from_local

    def _name(self, module: torch.nn.Module, _: Any) -> None:
        for name, parameter in module.named_parameters():
            if id(parameter) not in self.names:
                self._give(parameter, name)

    def _give(self, parameter: torch.Tensor, name: str) -> str:
        self.used[name] += 1
        count = self.used[name]
        self.names[id(parameter)] = name if count == 1 else f"{name} #{count}"
        return self.names[id(parameter)]

    def _with_hooks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run_backward(
            roots: Sequence[Any], gradients: Sequence[Any], retains: bool, differentiable: bool,
            inputs: Sequence[Any] = (), *rest: Any, **named: Any,
        ) -> Any:  # fmt: skip
            for node, use in _accumulations(roots):
                parameter = node.variable
                if use == "EmbeddingBackward0":
                    self.recorder.looked_up.add(self.names.get(id(parameter), ""))
                if id(parameter) not in self.known:
                    self.known.add(id(parameter))
                    self.nodes.append(node)
                    node.register_prehook(partial(self._arrives, node))
                if id(parameter) in self.names:
                    self._trained(parameter)
            if not self.recorder.depth:
                self._enter(roots, gradients)
            with self.recorder.backward_pass():
                results = original(
                    roots, gradients, retains, differentiable, inputs, *rest, **named
                )
            if named.get("accumulate_grad") or differentiable:
                return results
            return tuple(map(self._computed, inputs, results))

        return run_backward

    def _enter(self, roots: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Note what a script calls `backward` for, and the gradients that it gives to it."""
        for root, gradient in zip(roots, gradients, strict=True):
            if isinstance(root, torch.Tensor):
                self.recorder.roots.append(self.recorder.held(root))
            if isinstance(root, torch.Tensor) and gradient is not None and root.numel() > 1:
                data, entering = self.recorder.held(root), self.recorder.held(gradient)
                self.recorder.pullbacks.append(Pullback(data, entering, self.recorder.source()))

    def _computed(self, leaf: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """A gradient of a leaf, noted as that of a parameter or of a copy."""
        if isinstance(leaf, GradientEdge):
            leaf = getattr(leaf.node, "variable", None)
        if leaf is None or gradient is None or not leaf.is_leaf:
            return gradient
        if isinstance(leaf, torch.nn.Parameter) or id(leaf) in self.names:
            gradient = gradient.clone()
            self.recorder.gradient(gradient, self.names.get(id(leaf), ""))
        elif not self.recorder.depth and self.recorder.storages.tracked(local_part(leaf)):
            gradient = self.recorder.cotangent(leaf, gradient)
        return gradient

    def _traced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Follow the functions of autograd that communicate, in either pass."""

        def apply(function: Any, *arguments: Any, **named: Any) -> Any:
            module = function.__module__
            is_trusted = module.startswith("torch.") and not module.startswith(
                "torch.distributed.nn"
            )
            if is_trusted:  # Those of FSDP and DTensor are taken as right.
                return original(function, *arguments, **named)
            inputs = [leaf for leaf in arguments if isinstance(leaf, torch.Tensor)]
            if any(map(is_traceable_wrapper_subclass, inputs)):
                return original(function, *arguments, **named)
            application = _Application(self.recorder, function.__name__, inputs)
            with application.tracing():
                result = original(function, *arguments, **named)
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            node = next((tensor.grad_fn for tensor in outputs if tensor.grad_fn), None)
            if node is not None:
                application.returned(outputs)
                node.register_prehook(application.arrives)
                node.register_hook(application.returns)
                if not application.trace.calls:
                    result = tree_map(application.distinguished, result)
            return result

        return apply

    def _trained(self, parameter: torch.Tensor) -> None:
        replicated: list[tuple[int, ...]] = []
        sharded: list[tuple[int, ...]] = []
        if isinstance(parameter, DTensor):
            for dim, placement in enumerate(parameter.placements):
                group = tuple(get_process_group_ranks(parameter.device_mesh.get_group(dim)))
                (replicated if placement.is_replicate() else sharded).append(group)
        name = self.names[id(parameter)]
        self.recorder.trained(name, parameter, tuple(replicated), tuple(sharded))

    def _arrives(self, node: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
        leaf = node.variable
        if isinstance(leaf, torch.nn.Parameter) or id(leaf) in self.names:
            for gradient in gradients:
                if gradient is not None:
                    self.recorder.gradient(gradient, self.names.get(id(leaf), ""))
        elif (
            self.recorder.depth == 1
            and not torch.is_grad_enabled()
            and self.recorder.storages.tracked(local_part(leaf))
        ):
            return tuple(
                self.recorder.cotangent(leaf, gradient) if gradient is not None else None
                for gradient in gradients
            )
        return None

    def _step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        self.recorder.stepping()
        parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        if self.known and all(parameter.grad is None for parameter in parameters):
            self.recorder.idle = self.recorder.idle or self.recorder.source()
        for place, parameter in enumerate(parameters):
            if parameter.grad is None:
                continue
            name = self.names.get(id(parameter)) or self._give(parameter, f"parameter {place}")
            self._trained(parameter)
            if not _summed_in_step(parameter.grad):
                step = self.steps[id(parameter)]
                new = self.recorder.claim(name, step, parameter, parameter.grad)
                self.steps[id(parameter)] += new

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        for parameter in (tensor for group in optimizer.param_groups for tensor in group["params"]):
            if self.steps[id(parameter)]:
                self.recorder.updated(self.names[id(parameter)])


class _Application:
    """One application of a function of autograd, whose operations are traced in both passes."""

    def __init__(self, recorder: TermRecorder, name: str, inputs: Sequence[torch.Tensor]) -> None:
        """Note the inputs, which the forward pass may overwrite."""
        self.recorder, self.trace = recorder, FunctionTrace(name)
        self.inputs = {one.untyped_storage()._cdata for one in inputs}
        self.outputs: list[int] = []
        """Terms of outputs, where the forward pass does not communicate."""
        self.needed = [one.requires_grad for one in inputs]
        with _disable_current_modes():
            for one in inputs:
                if one.requires_grad:
                    term = recorder.held(one)
                    self.trace.inputs.append(self.trace.named(one.detach(), term, fresh=True))

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """While the function runs; one within another is a part of it."""
        before = self.recorder.trace
        self.recorder.trace = before or self.trace
        try:
            yield
        finally:
            self.recorder.trace = before

    def returned(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the outputs of the forward pass."""
        with _disable_current_modes():
            self.trace.outputs = [
                self.trace.named(one.detach(), self.recorder.held(one)) for one in outputs
            ]

    def distinguished(self, output: Any) -> Any:
        """An output in memory of its own, so that its uses and those of an input are distinct."""
        if isinstance(output, torch.Tensor) and output.grad_fn is not None:
            if output.untyped_storage()._cdata in self.inputs:
                output = output.clone()
            self.outputs.append(self.recorder.distinguished(output.detach()))
        return output

    def arrives(self, gradients: Sequence[torch.Tensor | None]) -> Any:
        """Note the gradients of the outputs, in memory of their own."""
        if torch.is_grad_enabled():  # A second derivative is asked: leave the graph alone.
            return None
        entering = tuple(None if one is None else one.detach().clone() for one in gradients)
        with _disable_current_modes():
            self.trace.cotangents = [
                None if one is None else self.trace.named(one, self.recorder.held(one), fresh=True)
                for one in entering
            ]
        if self.recorder.trace is None:
            self.recorder.trace = self.trace
        return entering

    def returns(self, gradients: Sequence[torch.Tensor | None], _: Any) -> None:
        """Note the gradients that the function returns, if it communicates."""
        if self.recorder.trace is not self.trace:
            return
        self.recorder.trace = None
        self.trace.source = self.recorder.source()
        pairs = zip(gradients, self.needed, strict=False)
        needed = [gradient for gradient, is_needed in pairs if is_needed]
        with _disable_current_modes():
            self.trace.gradients = [
                None if one is None else self.trace.tensor(one) for one in needed
            ]
        if any(isinstance(one, TracedCall) for one in self.trace.backward):
            self.recorder.entered.update(dict.fromkeys(one.term for one in self.trace.inputs))
            for given, gradient in zip(self.trace.inputs, needed, strict=False):
                if gradient is not None and self.outputs:
                    self.recorder.copied.append(
                        CopiedInput(
                            given.term, self.recorder.held(gradient), tuple(self.outputs),
                            self.trace.name, self.trace.source,
                        )
                    )  # fmt: skip
        of_name = [one for one in self.recorder.traces if one.name == self.trace.name]
        if self.trace.calls and len(of_name) < MOST_APPLICATIONS:
            self.recorder.traces.append(self.trace)


def _summed_in_step(gradient: torch.Tensor) -> bool:
    """Whether DTensor sums a Partial gradient itself, when the optimizer reads it."""
    return isinstance(gradient, DTensor) and any(
        placement.is_partial() for placement in gradient.placements
    )


def _accumulations(roots: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """The nodes of a graph that add a gradient to a leaf's, and what the first use is called."""
    ready = [(getattr(root, "grad_fn", root), "") for root in roots]
    seen = {node for node, _ in ready}
    while ready:
        node, use = ready.pop()
        if hasattr(node, "variable"):
            yield node, use
        for later, _ in getattr(node, "next_functions", ()):
            if later is not None and later not in seen:
                seen.add(later)
                ready.append((later, node.name()))
