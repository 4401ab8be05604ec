"""The whole model under a preset: `PartitionedModel`, its loss and the gradients."""

from __future__ import annotations

import torch

from benchmarks.executor.contender import Wholes
from benchmarks.executor.planned import PlannedPart
from benchmarks.executor.problem import Problem
from primepar.distributed import Executor, Mesh, PartitionedModel, full_gradient, load_parameter


class ModelProgram:
    """The program of a step up to the gradients, called as in a user's own loop."""

    def __init__(self, problem: Problem, planned: PlannedPart) -> None:
        self.name = planned.name
        self.model = PartitionedModel(planned.plan, Mesh(planned.plan.sequence("head")))
        tensors = problem.tensors()
        for name in problem.model.parameter_shapes:
            load_parameter(self.model, name, tensors[name])
        self.tokens, self.targets = (tensors[name].clone() for name in ("tokens", "targets"))
        self.loss: torch.Tensor | None = None

    def executors(self) -> list[Executor]:
        """The compiled program of a step up to the gradients."""
        return [self.model._program(self.tokens, "gradients").executor]

    def resident(self) -> list[torch.Tensor]:
        return [self.tokens, self.targets, *self.model.parameters()]

    def step(self) -> None:
        self.loss = None
        self.model.zero_grad()
        self.loss = self.model.loss(self.tokens, self.targets)
        torch.autograd.backward(self.loss)

    def wholes(self) -> Wholes:
        assert self.loss is not None
        made = {"loss": self.loss.detach()}
        for name in self.model.config.parameter_shapes:
            gradient = full_gradient(self.model, name)
            made[f"d{name}"] = torch.empty(0) if gradient is None else gradient
        return made
