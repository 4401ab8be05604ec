"""A whole transformer, partitioned by any plan, on emulated devices.

Every operator works on the blocks that its ranks hold; whatever moves between ranks does so by
programs through `emulate`. The oracle is `Transformer`, on one device.

Legend: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from primepar.errors import WrongDataError
from primepar.models import ModelConfig, Operator
from primepar.models.dropout import Draw
from primepar.plan.layouts import ends, padded_vocabulary, parameter_places
from primepar.plan.plan import Plan
from primepar.reference.layers import Array, Tokens
from primepar.reference.partitioned_attention import PartitionedAttention
from primepar.reference.partitioned_devices import Blocks, Devices, spread, whole
from primepar.reference.partitioned_linear import PartitionedLinear
from primepar.reference.partitioned_local import (
    Partitioned,
    PartitionedActivation,
    PartitionedAdd,
    PartitionedNorm,
)
from primepar.reference.partitioned_step import Step
from primepar.reference.partitioned_vocabulary import PartitionedEmbedding, PartitionedLoss
from primepar.reference.transformer_checks import check_pair, check_parameters
from primepar.schedule.layout import Layout

PARTITIONED: dict[str, Callable[[Step, Operator], Partitioned]] = {
    "embedding": PartitionedEmbedding,
    "norm": PartitionedNorm,
    "linear": PartitionedLinear,
    "attention": PartitionedAttention,
    "activation": PartitionedActivation,
    "add": PartitionedAdd,
    "loss": PartitionedLoss,
}
"""`Operator.kind` -> the operator on all ranks."""


class ModelStep(NamedTuple):
    """What a training step makes: the loss, whole gradients, and the elements each rank sent."""

    loss: float
    gradients: dict[str, Array]
    sent: list[Fraction]


class EmulatedModel:
    """A model of whole `parameters`, each rank holding the blocks that the plan gives it.

    `parameters[name]` is the block of every rank; the vocabulary is padded with zeros to what the
    plan divides. Raises `ConfigError` if a parameter is missing, unknown or of another shape, and
    `PlanError` if the plan is for another model.
    """

    def __init__(self, config: ModelConfig, plan: Plan, parameters: Mapping[str, Array]) -> None:
        plan.check_model(config)
        check_parameters(config, parameters)
        self.config, self.plan = config, plan
        self.places = parameter_places(plan)
        self.parameters: dict[str, Blocks] = {
            name: spread(self._padded(name, array), self.places[name].layout)
            for name, array in parameters.items()
        }

    def loss_and_gradients(
        self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None
    ) -> ModelStep:
        """Mean cross-entropy in nats and its gradient by every parameter, without the padding.

        With a `draw` the configuration's dropouts are on. Raises `ConfigError` for tokens out of
        range, `PlanError` for a batch that the plan cannot cut, and `WrongDataError` if two
        ranks disagree on a replica.
        """
        check_pair(self.config, tokens_BT, targets_BT)
        batch, positions = tokens_BT.shape
        self.plan.check_batch(batch, positions)
        step = Step(
            self.plan,
            Devices(self.plan.ranks),
            self.places,
            self.parameters,
            tokens_BT.reshape(-1),
            targets_BT.reshape(-1),
            positions,
            draw,
        )
        parts = {each.name: PARTITIONED[each.kind](step, each) for each in self.plan.operators}
        losses = self._forward(step, parts)
        self._backward(step, parts, losses)
        gradients = {name: self._whole(name, step.gradients[name]) for name in self.parameters}
        loss = whole(losses, Layout((1,), (((0,),),) * self.plan.ranks))
        return ModelStep(float(loss[0]), gradients, step.devices.sent)

    def _forward(self, step: Step, parts: Mapping[str, Partitioned]) -> Blocks:
        outputs: dict[str, Blocks] = {}
        for operator in self.plan.operators:
            needed = ends(self.plan, operator.name).input
            inputs = [
                step.devices.redistributed(outputs[name], ends(self.plan, name).output, needed)
                for name in operator.inputs
            ]
            outputs[operator.name] = parts[operator.name].forward(*inputs)
        return outputs["loss"]

    def _backward(self, step: Step, parts: Mapping[str, Partitioned], losses: Blocks) -> None:
        gradients: dict[str, Blocks] = {"loss": [np.ones_like(loss) for loss in losses]}
        for operator in reversed(self.plan.operators):
            found = parts[operator.name].backward(gradients.pop(operator.name))
            left = ends(self.plan, operator.name).input_gradient
            for name, blocks in zip(operator.inputs, found, strict=True):
                moved = step.devices.redistributed(blocks, left, ends(self.plan, name).output)
                if name in gradients:
                    moved = [a + b for a, b in zip(gradients[name], moved, strict=True)]
                gradients[name] = moved

    def _padded(self, name: str, array: Array) -> Array:
        """The parameter with zeros for what the vocabulary is padded with."""
        dims = {"embedding.token": 0, "head.weight": 1}
        if name not in dims:
            return array
        more = [(0, 0), (0, 0)]
        more[dims[name]] = (0, padded_vocabulary(self.plan) - self.config.vocabulary)
        return np.pad(array, more)

    def _whole(self, name: str, blocks: Blocks) -> Array:
        shape = self.config.parameter_shapes[name]
        try:
            array = whole(blocks, self.places[name].layout)
        except WrongDataError as error:
            raise WrongDataError(f"{name}: {error}") from None
        return array[tuple(slice(size) for size in shape)]
