"""Makes the operators of a planned model, each with this rank's blocks of its parameters."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import nn

from primepar.distributed.attention import PartitionedAttention
from primepar.distributed.embedding import PartitionedEmbedding, Rows
from primepar.distributed.linear import PartitionedLinear
from primepar.distributed.mesh import Mesh
from primepar.distributed.model_linear import BiasedLinear, TiedHead
from primepar.distributed.norm import PartitionedNorm
from primepar.distributed.redistribute import scatter_tensor
from primepar.distributed.stream import Stream
from primepar.models import Operator, initial_parameter
from primepar.plan import Plan, ends, lookup, padded_vocabulary, parameter_places, summed_rows


def padded_shape(plan: Plan, name: str) -> tuple[int, ...]:
    """Shape of a parameter with the vocabulary padded as the plan needs it."""
    padded, shape = padded_vocabulary(plan), plan.model.parameter_shapes[name]
    if name == "embedding.token":
        return (padded, *shape[1:])
    return (*shape[:-1], padded) if name == "head.weight" else shape


def padded(plan: Plan, name: str, whole: torch.Tensor) -> torch.Tensor:
    """A whole parameter with zeros where the vocabulary is padded."""
    room = whole.new_zeros(padded_shape(plan, name))
    room[tuple(slice(size) for size in whole.shape)] = whole
    return room


class Maker:
    """Makes modules by the operators' names, on every rank in one order: a collective call."""

    def __init__(self, plan: Plan, mesh: Mesh, seed: int) -> None:
        self.plan, self.mesh, self.seed, self.config = plan, mesh, seed, plan.model
        self.places = parameter_places(plan)
        self.shapes = plan.model.parameter_shapes

    def stream(self, name: str) -> Stream:
        """Where the output of an operator lies."""
        return Stream(self.mesh, ends(self.plan, name).output)

    def module(self, operator: Operator) -> nn.Module | None:
        """The operator as a module; None where it has neither parameters nor a state."""
        match operator.kind:
            case "embedding":
                return self.embedding
            case "norm":
                return self._norm(operator.name)
            case "linear":
                return self._linear(operator)
            case "attention":
                stream = self.stream(operator.name)
                return PartitionedAttention(stream, self.config, operator.name)
            case _:
                return None

    def whole(self, name: str) -> torch.Tensor:
        """A whole parameter before training, padded."""
        value = torch.from_numpy(np.asarray(initial_parameter(self.config, name, self.seed)))
        return padded(self.plan, name, value)

    def parameter(self, name: str) -> nn.Parameter:
        """This rank's block of a parameter that rests."""
        return nn.Parameter(
            scatter_tensor(self.mesh, self.places[name].layout, self.whole(name))
        )  # fmt: skip

    def optional(self, name: str) -> nn.Parameter | None:
        """The same; None where the model has no such parameter."""
        return self.parameter(name) if name in self.shapes else None

    @cached_property
    def embedding(self) -> PartitionedEmbedding:
        """The embedding, whose table a tied head shares."""
        position = self.optional("embedding.position")
        looked_up = Stream(self.mesh, lookup(self.plan))
        rows = Rows(looked_up, summed_rows(self.plan), self.stream("embedding"))
        return PartitionedEmbedding(rows, self.parameter("embedding.token"), position)

    def _norm(self, name: str) -> PartitionedNorm:
        weight, bias = self.parameter(f"{name}.weight"), self.optional(f"{name}.bias")
        return PartitionedNorm(self.stream(name), self.config.epsilon, weight, bias)

    def _linear(self, operator: Operator) -> PartitionedLinear:
        name, mesh = operator.name, self.mesh.under(self.plan.sequence(operator.name))
        source = ends(self.plan, operator.inputs[0]).output
        if name == "head" and self.config.tied:
            embedding, place = self.embedding, self.places["embedding.token"].layout
            table = self.whole("embedding.token")
            return TiedHead(mesh, table, source, name, lambda: embedding.token, place)
        bias = self.optional(f"{name}.bias")
        whole = self.whole(f"{name}.weight")
        return BiasedLinear(mesh, whole, source, name, self.stream(name), bias)
