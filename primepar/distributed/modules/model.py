"""A model partitioned by a plan, for users' own loops and optimizers.

Its parameters are this rank's blocks, and its loss is the program of a step that ends with the
gradients. Legend: B sequences, T positions; R rows (tokens) and C columns of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.step_programs import Blocks, StepProgram, StepPrograms
from primepar.distributed.runtime.training_state import (
    ParameterBlock,
    initial_value,
    places,
    side_by_side,
)
from primepar.errors import ShapeError
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, Until
from primepar.plan import Plan
from primepar.schedule.layout import Slices


class PartitionedModel(nn.Module):
    """The model of a plan on a mesh; its parameters are this rank's blocks, under their names.

    Several blocks of a parameter on a rank are one tensor, in the order of their slices. Every
    rank makes it, and calls it, alike. Parameters start at `initial_parameter` of the seed; a
    vocabulary that the plan's cuts do not divide is padded with zeros. Raises `PlanError` if the
    mesh has another number of devices.
    """

    def __init__(self, plan: Plan, mesh: Mesh, seed: int = 0) -> None:
        super().__init__()
        plan.check_ranks(mesh.ranks)
        self.plan, self.config, self.mesh, self.seed = plan, plan.model, mesh, seed
        self.places = places(plan, mesh.rank)
        self._programs = StepPrograms(plan, mesh)
        self._slices: dict[str, Slices] = {}
        for name, parts in self.places.items():
            shape, found = side_by_side([part.box for part in parts])
            self._slices |= {name + part.index: own for part, own in zip(parts, found, strict=True)}
            own = torch.empty(shape, device=mesh.device, dtype=mesh.dtype)
            _attach(self, name, nn.Parameter(own))
            whole = initial_value(plan, name, seed)
            for part in parts:
                part.fill(self.block(name, part), whole.__getitem__)

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """A block of a parameter, as a view of it."""
        return self.get_parameter(name).detach()[self._slices[name + part.index]]

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """This rank's block of the logits, where the head leaves them: `[R, C]`; no gradient.

        Takes the whole batch, the same on every rank. Raises `ShapeError`, or `PlanError` for a
        batch that the plan cannot cut.
        """
        run = self._program(tokens_BT, "logits")
        return _joined(run, run(self._blocks(), tokens_BT), run.makes)

    def loss(
        self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, step: int | None = None
    ) -> torch.Tensor:
        """Mean cross-entropy over the whole batch, the same on every rank; differentiable.

        With a step, drops out what that step of a run with this seed drops. Raises `ShapeError`
        and `PlanError`.
        """
        if targets_BT.shape != tokens_BT.shape:
            raise ShapeError(
                f"targets: expected a target for each token, shape {tuple(tokens_BT.shape)}, "
                f"got {tuple(targets_BT.shape)}"
            )
        inputs = StepInputs(None if step is None else Draw(self.seed, step))
        if not torch.is_grad_enabled():
            run = self._program(tokens_BT, "loss")
            return run(self._blocks(), tokens_BT, targets_BT, inputs)["loss[0]"].view(())
        run = self._program(tokens_BT, "gradients")
        apply: Callable[..., torch.Tensor] = _Loss.apply
        return apply(self, run, tokens_BT, targets_BT, inputs, *self.parameters())

    def _program(self, tokens_BT: torch.Tensor, until: Until) -> StepProgram:
        batch, positions = tokens_BT.shape
        self.plan.check_batch(batch, positions)
        if positions > self.config.context:
            raise ShapeError(
                f"tokens: expected at most context={self.config.context} positions, "
                f"got {positions}: cut the sequences"
            )
        return self._programs.program(batch, positions, until)

    def _blocks(self) -> Blocks:
        """The parameters as programs take them."""
        return {
            name + part.index: self.block(name, part).contiguous()
            for name, parts in self.places.items()
            for part in parts
        }


class _Loss(torch.autograd.Function):
    """The loss, and with it the gradients of all parameters, which backward hands out."""

    @staticmethod
    def forward(
        ctx: Any,
        model: PartitionedModel,
        run: StepProgram,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        inputs: StepInputs,
        *_parameters: nn.Parameter,
    ) -> torch.Tensor:
        """Run the program until the gradients."""
        blocks = run(model._blocks(), tokens_BT, targets_BT, inputs)
        ctx.gradients = [
            _joined(run, blocks, [f"{name}.grad{part.index}" for part in model.places[name]])
            for name, _ in model.named_parameters()
        ]
        return blocks["loss[0]"].view(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients times that of the loss."""
        return (*(None,) * 5, *(own * gradients[0] for own in ctx.gradients))


def _joined(run: StepProgram, blocks: Blocks, names: list[str]) -> torch.Tensor:
    """Blocks put together in the order of their slices."""
    if len(names) == 1:
        return blocks[names[0]]
    shape, found = side_by_side([run.box(name) for name in names])
    whole = blocks[names[0]].new_empty(shape)
    for name, place in zip(names, found, strict=True):
        whole[place] = blocks[name]
    return whole


def _attach(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter in its place in the tree of modules, so that it gets its name."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(last, parameter)
