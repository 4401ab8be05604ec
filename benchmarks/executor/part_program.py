"""Consecutive operators of a model under a preset: a program of forward, and one of backward.

Weights are handed over and taken back, as the trainer does.
"""

from __future__ import annotations

import msgspec
import torch

from benchmarks.executor.contender import Wholes
from benchmarks.executor.planned import PlannedPart
from benchmarks.executor.problem import Problem
from primepar.distributed import Executor, Mesh, gather_tensor, scatter_tensor
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.operators import StepPart, StepSettings
from primepar.operators.builder import View
from primepar.schedule import Layout


class PartProgram:
    """An MLP or a block; rows are those of all sequences."""

    def __init__(self, problem: Problem, planned: PlannedPart) -> None:
        self.name = planned.name
        self.mesh = Mesh(planned.plan.sequence("head"))
        self.part = msgspec.json.decode(planned.content, type=StepPart)
        wholes = problem.tensors()
        plan, batch = planned.plan, problem.batch
        positions = plan.model.context
        settings = StepSettings(plan.model, batch, positions)
        self.forward, self.backward = (
            Executor(self.mesh, program, settings)
            for program in (self.part.forward, self.part.backward)
        )
        self.blocks: dict[str, torch.Tensor] = {}
        for tensor, layout in self._given().items():
            whole = wholes[tensor]
            whole = whole.flatten(0, -2) if tensor in ("x", "dy") else whole
            part = scatter_tensor(self.mesh, layout, whole)
            blocks = self._parts(tensor, layout, whole.shape).cut(part)
            self.blocks |= {name: block.clone() for name, block in blocks.items()}
        self.results: dict[str, torch.Tensor] = {}

    def _given(self) -> dict[str, Layout]:
        parameters = {name: layout_of(view) for name, view in self.part.parameters.items()}
        return {"x": self.part.source, "dy": self.part.target, **parameters}

    def _parts(self, tensor: str, layout: Layout, shape: tuple[int, ...]) -> Parts:
        return Parts(tensor, layout, self.mesh.rank, tuple(shape))

    def executors(self) -> list[Executor]:
        """The compiled programs."""
        return [self.forward, self.backward]

    def resident(self) -> list[torch.Tensor]:
        return list(self.blocks.values())

    def step(self) -> None:
        self.results.clear()
        kept = self.part.kept[self.mesh.rank]
        held = self.forward({name: self._handed(name) for name in self.forward.initial})
        output = {name: held.pop(name) for name in list(held) if name not in kept}
        held |= {name: self.blocks[name] for name in self.backward.initial if name not in held}
        ended = self.backward(held)
        made = {name: ended.pop(name) for name in list(ended) if not self._is_parameter(name)}
        self.results = output | made
        self.blocks |= ended

    def _handed(self, name: str) -> torch.Tensor:
        """Hand a block over: the step owns the weights, and the caller its input."""
        return self.blocks.pop(name) if self._is_parameter(name) else self.blocks[name]

    def _is_parameter(self, name: str) -> bool:
        return name.partition("[")[0] in self.part.parameters

    def wholes(self) -> Wholes:
        made = {"y": (self.part.y, self.part.target), "dx": (self.part.dx, self.part.source)}
        for name, view in self.part.parameters.items():
            made[f"d{name}"] = f"{name}.grad", layout_of(view)
        return {name: self._whole(*tensor) for name, tensor in made.items()}

    def _whole(self, tensor: str, layout: Layout) -> torch.Tensor:
        cuts = self.part.backward.tensors or {}
        shape = tuple(line[-1] for line in cuts[tensor].cuts)
        part = self._parts(tensor, layout, shape).take(dict(self.results))
        whole = gather_tensor(self.mesh, layout, part)
        return torch.empty(0) if whole is None else whole


def layout_of(view: View) -> Layout:
    """The layout of a tensor that is cut evenly."""
    return Layout(tuple(len(line) - 1 for line in view.cuts), view.held)
