"""A model partitioned by a plan, for users' own loops and optimizers.

Its parameters are this rank's blocks. Its loss runs the program of a step up to the gradients. Full
parameters, gradients and logits are gathered on rank 0, by functions below.
Legend: B sequences, T positions; R rows (tokens) and C columns of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import Blocks
from primepar.distributed.runtime.scatter_gather import gather_tensor
from primepar.distributed.runtime.step_programs import StepProgram, StepPrograms
from primepar.distributed.runtime.training_state import (
    ParameterBlock,
    initial_value,
    places,
    side_by_side,
    written,
)
from primepar.errors import ConfigError, ShapeError
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, Until
from primepar.plan import Plan
from primepar.plan.layouts import (
    logits_layout,
    padded_shape,
    padded_vocabulary,
    parameter_layout,
)
from primepar.schedule.layout import Slices


class PartitionedModel(nn.Module):
    """The model of a plan on a mesh; its parameters are this rank's blocks, with their names.

    Several blocks of a parameter on a rank are one tensor, in the order of their slices. Every
    rank constructs it and calls it in the same order. Parameters start as `initial_parameter` of
    the seed. A vocabulary that the plan does not divide evenly is padded with zeros. Raises
    `PlanError` if the mesh has another number of devices than the plan.
    """

    def __init__(self, plan: Plan, mesh: Mesh, seed: int = 0) -> None:
        super().__init__()
        plan.check_ranks(mesh.ranks)
        self.plan, self.config, self.mesh, self.seed = plan, plan.model, mesh, seed
        self.places = places(plan, mesh.rank)
        self._programs = StepPrograms(plan, mesh)
        self._slices: dict[str, Slices] = {}
        for name, parts in self.places.items():
            if not parts:  # another stage of the pipeline has it
                continue
            shape, places_of_parts = side_by_side([part.box for part in parts])
            for part, place in zip(parts, places_of_parts, strict=True):
                self._slices[name + part.index] = place
            blocks = torch.empty(shape, device=mesh.device, dtype=mesh.dtype)
            _attach(self, name, nn.Parameter(blocks))
            whole = initial_value(plan, name, seed)
            for part in parts:
                part.fill(self.block(name, part), whole.__getitem__)

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """Return a block of a parameter, as a view."""
        return self.get_parameter(name).detach()[self._slices[name + part.index]]

    def set_parameter(self, name: str, part: ParameterBlock, read: Callable[[Slices], Any]) -> None:
        """Set a block of a parameter to what `read` returns for its slices; padding is zero."""
        part.fill(self.block(name, part), read)

    def written_blocks(self, name: str) -> Iterator[tuple[ParameterBlock, torch.Tensor]]:
        """Yield the blocks of a parameter that this rank writes to files."""
        for part in written(self.places[name]):
            yield part, self.block(name, part)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return this rank's block of the logits, `[R, C]`, in the head's output layout.

        It is empty on the stages of a pipeline that do not have the head. The result has no
        gradient. The argument is the full batch, the same on every rank. Raises `ShapeError`, or
        `PlanError` for a batch that the plan cannot cut.
        """
        run = self._program(tokens_BT, "logits")
        blocks = run(self._blocks(), tokens_BT)
        if not run.makes:
            return torch.empty(0, 0, device=self.mesh.device, dtype=self.mesh.dtype)
        return _joined(run, blocks, run.makes)

    def loss(
        self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, step: int | None = None
    ) -> torch.Tensor:
        """Return the mean cross-entropy over the full batch, the same on every rank.

        It is differentiable. With `step`, dropout uses the masks of that step of a run with this
        seed. Raises `ShapeError` and `PlanError`.
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
        """Return the parameters as the blocks that programs take."""
        return {
            name + part.index: self.block(name, part).contiguous()
            for name, parts in self.places.items()
            for part in parts
        }


class _Loss(torch.autograd.Function):
    """Computes the loss and the gradients of all parameters; backward returns the gradients."""

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
        """Run the program up to the gradients."""
        blocks = run(model._blocks(), tokens_BT, targets_BT, inputs)
        ctx.gradients = [
            _joined(run, blocks, [f"{name}.grad{part.index}" for part in model.places[name]])
            for name, _ in model.named_parameters()
        ]
        return blocks["loss[0]"].view(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients times the gradient of the loss; they are multiplied in place.

        Raises `RuntimeError` at a second call: the gradients are the caller's then.
        """
        made, ctx.gradients = ctx.gradients, None
        if made is None:
            raise RuntimeError(
                "loss: expected one backward, got a second one: call loss again before it"
            )
        return (*(None,) * 5, *(gradient.mul_(gradients[0]) for gradient in made))


def _joined(run: StepProgram, blocks: Blocks, names: list[str]) -> torch.Tensor:
    """Concatenate blocks in the order of their slices."""
    if len(names) == 1:
        return blocks[names[0]]
    shape, places_of_blocks = side_by_side([run.box(name) for name in names])
    whole = blocks[names[0]].new_empty(shape)
    for name, place in zip(names, places_of_blocks, strict=True):
        whole[place] = blocks[name]
    return whole


def _attach(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter in nested submodules, so that its dotted name is `name`."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(last, parameter)


# Full parameters, gradients and logits


def _parameter(model: PartitionedModel, name: str) -> nn.Parameter | None:
    """Return a parameter; None on a rank that holds nothing of it."""
    if name not in model.places:
        raise ConfigError(
            f"parameter {name!r}: expected a name of {type(model.config).__name__}"
            ".parameter_shapes, like 'blocks.0.qkv.weight'"
        )
    return dict(model.named_parameters()).get(name)


def _full(model: PartitionedModel, name: str, block: torch.Tensor | None) -> torch.Tensor | None:
    """Gather the full tensor, without the padding of the vocabulary."""
    shape = padded_shape(model.plan, name)
    whole = gather_tensor(model.mesh, parameter_layout(model.plan, name), block, shape)
    if whole is None:
        return None
    return whole[tuple(slice(size) for size in model.config.parameter_shapes[name])]


def full_parameter(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """Return the full parameter on rank 0, None elsewhere; a collective call.

    Raises `ConfigError` for an unknown name.
    """
    return _full(model, name, _parameter(model, name))


def full_gradient(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """Return the full gradient on rank 0, None elsewhere; a collective call.

    Raises `ConfigError` for an unknown name, or before a backward.
    """
    parameter = _parameter(model, name)
    gradient = None if parameter is None else parameter.grad
    if parameter is not None and gradient is None:
        raise ConfigError(
            f"parameter {name!r}: expected a gradient, got none: call loss(...).backward() first"
        )
    return _full(model, name, gradient)


def full_logits(model: PartitionedModel, tokens_BT: torch.Tensor) -> torch.Tensor | None:
    """Return the logits `[B, T, V]` on rank 0, None elsewhere; a collective call, no gradients."""
    logits, layout = model(tokens_BT), logits_layout(model.plan)
    shape = (tokens_BT.numel(), padded_vocabulary(model.plan))
    held = logits if layout.held[model.mesh.rank] else None
    whole = gather_tensor(model.mesh, layout, held, shape)
    if whole is None:
        return None
    return whole[:, : model.config.vocabulary].view(*tokens_BT.shape, -1)


def load_parameter(
    model: PartitionedModel, name: str, value: torch.Tensor | NDArray[Any]
) -> None:  # fmt: skip
    """Set a parameter from its full value; this rank copies its blocks.

    Raises `ConfigError` for an unknown name, `ShapeError` for another shape.
    """
    _parameter(model, name)
    whole, expected = torch.as_tensor(value), model.config.parameter_shapes[name]
    if tuple(whole.shape) != expected:
        raise ShapeError(f"parameter {name!r}: expected shape {expected}, got {tuple(whole.shape)}")
    for part in model.places[name]:
        model.set_parameter(name, part, whole.__getitem__)
