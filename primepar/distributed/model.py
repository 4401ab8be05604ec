"""A model partitioned by a plan: every operator works in its own layout, on this rank's block.

What one operator leaves is redistributed to where the next takes it, and the gradient back; where
the two agree nothing is sent. Legend: B sequences, T positions; R rows (tokens) and C columns of
this rank's block; V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from primepar.distributed.linear import PartitionedLinear
from primepar.distributed.loss import cross_entropy
from primepar.distributed.mesh import Mesh
from primepar.distributed.model_edge import Way
from primepar.distributed.model_elementwise import activate, drop_out
from primepar.distributed.model_maker import Maker
from primepar.errors import ShapeError
from primepar.models import Operator
from primepar.models.dropout import Draw
from primepar.plan import Plan, ends, parameter_places

_BRANCH_ENDS = ("proj", "fc2")


class PartitionedModel(nn.Module):
    """The model of a plan on a mesh; its parameters are this rank's blocks, under their names.

    Every rank makes it, and calls it, alike. Parameters start at `initial_parameter` of the seed;
    a vocabulary that the plan's cuts do not divide is padded with zeros. Raises `PlanError` if the
    mesh has another number of devices.
    """

    def __init__(self, plan: Plan, mesh: Mesh, seed: int = 0) -> None:
        super().__init__()
        plan.check_ranks(mesh.ranks)
        self.plan, self.config, self.mesh, self.seed = plan, plan.model, mesh, seed
        self.places = parameter_places(plan)
        make = Maker(plan, mesh, seed)
        self._streams = {each.name: make.stream(each.name) for each in plan.operators}
        self._ways: dict[str, list[Way]] = {}
        for operator in plan.operators:
            self._ways[operator.name] = self._ways_to(operator)
            module = make.module(operator)
            if module is not None:
                _attach(self, operator.name, module)

    def _ways_to(self, operator: Operator) -> list[Way]:
        """From every producer; a linear operator fetches its input itself."""
        if operator.kind == "linear":
            return []
        target = ends(self.plan, operator.name).input
        return [Way(self.mesh, ends(self.plan, name).output, target) for name in operator.inputs]

    def forward(self, tokens_BT: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        """This rank's block of the logits, where the head leaves them: `[R, C]`.

        Takes the whole batch, the same on every rank; with a draw, drops out. Raises `ShapeError`,
        or `PlanError` for a batch that the plan cannot cut.
        """
        self.plan.check_batch(*tokens_BT.shape)
        if tokens_BT.shape[1] > self.config.context:
            raise ShapeError(
                f"tokens: expected at most context={self.config.context} positions, "
                f"got {tokens_BT.shape[1]}: cut the sequences"
            )
        *operators, _ = self.plan.operators
        last = {source: each.name for each in operators for source in each.inputs}
        left: dict[str, torch.Tensor] = {}
        for operator in operators:
            inputs = [left[source] for source in operator.inputs]
            for source in set(operator.inputs):
                if last[source] == operator.name:
                    del left[source]
            left[operator.name] = self._work(operator, inputs or [tokens_BT], tokens_BT, draw)
        return left["head"]

    def _work(
        self,
        operator: Operator,
        inputs: list[torch.Tensor],
        tokens_BT: torch.Tensor,
        draw: Draw | None,
    ) -> torch.Tensor:
        """Output of one operator, of what its producers have left."""
        config, name = self.config, operator.name
        ways = self._ways[name]
        x, *others = [way(x) for way, x in zip(ways, inputs, strict=True)] if ways else inputs
        match operator.kind:
            case "activation":
                return activate(config, x)
            case "add":
                return x + others[0]
            case "attention":
                attend: Callable[..., torch.Tensor] = self.get_submodule(name)
                return attend(x, tokens_BT.shape[1], draw)
        work: Callable[..., torch.Tensor] = self.get_submodule(name)
        y_RC = work(x)
        probability = config.embedding_dropout if operator.kind == "embedding" else 0.0
        if name.endswith(_BRANCH_ENDS):
            probability = config.dropout
        return drop_out(self._streams[name], y_RC, probability, name, draw)

    def loss(
        self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, step: int | None = None
    ) -> torch.Tensor:
        """Mean cross-entropy over the whole batch, the same on every rank; differentiable.

        With a step, drops out what that step of a run with this seed drops. Raises `ShapeError`,
        `PlanError`, and `TrainingOrderError` before the backward of the last loss.
        """
        if targets_BT.shape != tokens_BT.shape:
            raise ShapeError(
                f"targets: expected a target for each token, shape {tuple(tokens_BT.shape)}, "
                f"got {tuple(targets_BT.shape)}"
            )
        draw = None if step is None else Draw(self.seed, step)
        logits_RC, stream = self(tokens_BT, draw), self._streams["loss"]
        (way,) = self._ways["loss"]
        targets = stream.rows(targets_BT.flatten())
        return cross_entropy(stream, self.config.vocabulary, way(logits_RC), targets)

    def away(self, name: str) -> bool:
        """Whether a parameter is away from home, between a training forward and its backward."""
        owner, _, part = name.rpartition(".")
        module = self.get_submodule(owner)
        return part == "weight" and isinstance(module, PartitionedLinear) and module.away


def _attach(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in its place in the tree, so that its parameters get their names."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
