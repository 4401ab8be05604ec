"""Where a script's gradients arise and are read: in `backward` and in an optimizer's `step`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch.distributed import get_process_group_ranks
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from primepar.preflight.meaning.recorder import TermRecorder


def follow_gradients(recorder: TermRecorder) -> None:
    """Have a recorder see the gradients of this process from now on."""
    _Hooks(recorder).install()


def follow_labels(recorder: TermRecorder) -> None:
    """Have a recorder see which tensors `DTensor.from_local` labels as replicated."""
    original = DTensor.from_local

    @wraps(original)
    def from_local(
        local_tensor: torch.Tensor, device_mesh: Any = None, placements: Any = None, **named: Any
    ) -> DTensor:
        result = original(local_tensor, device_mesh, placements, **named)
        mesh = result.device_mesh
        for dim, placement in enumerate(result.placements):
            if placement.is_replicate() and mesh.get_coordinate() is not None:
                group = tuple(get_process_group_ranks(mesh.get_group(dim)))
                recorder.replica(group, local_tensor)
        return result

    vars_of_class: Any = DTensor
    vars_of_class.from_local = staticmethod(from_local)


class _Hooks:
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
        register_module_forward_pre_hook(self._name)
        register_optimizer_step_pre_hook(self._step)
        register_optimizer_step_post_hook(self._stepped)
        original = vars(torch.autograd)["_engine_run_backward"]
        vars(torch.autograd)["_engine_run_backward"] = self._with_hooks(original)

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
        def run_backward(roots: Sequence[Any], *arguments: Any, **named: Any) -> Any:
            for node in _accumulations(roots):
                parameter = node.variable
                if id(parameter) not in self.known:
                    self.known.add(id(parameter))
                    self.nodes.append(node)
                    node.register_prehook(self._arrives)
                if id(parameter) in self.names:
                    self._trained(parameter)
            return original(roots, *arguments, **named)

        return run_backward

    def _trained(self, parameter: torch.Tensor) -> None:
        replicated: list[tuple[int, ...]] = []
        sharded: list[tuple[int, ...]] = []
        if isinstance(parameter, DTensor):
            for dim, placement in enumerate(parameter.placements):
                group = tuple(get_process_group_ranks(parameter.device_mesh.get_group(dim)))
                (replicated if placement.is_replicate() else sharded).append(group)
        name = self.names[id(parameter)]
        self.recorder.trained(name, parameter, tuple(replicated), tuple(sharded))

    def _arrives(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for gradient in gradients:
            if gradient is not None:
                self.recorder.gradient(gradient)

    def _step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
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


def _summed_in_step(gradient: torch.Tensor) -> bool:
    """Whether DTensor sums a Partial gradient itself, when the optimizer reads it."""
    return isinstance(gradient, DTensor) and any(
        placement.is_partial() for placement in gradient.placements
    )


def _accumulations(roots: Sequence[Any]) -> Iterator[Any]:
    """The nodes of a graph that add a gradient to a leaf's."""
    ready = [getattr(root, "grad_fn", root) for root in roots]
    seen = set(ready)
    while ready:
        node = ready.pop()
        if hasattr(node, "variable"):
            yield node
        for later, _ in getattr(node, "next_functions", ()):
            if later is not None and later not in seen:
                seen.add(later)
                ready.append(later)
