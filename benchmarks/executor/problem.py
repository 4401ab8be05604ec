"""What is benchmarked: an MLP, a block, or a whole GPT; sizes, tensors and the plain module.

Legend: B sequences, T positions, H hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import torch
from msgspec import Struct
from torch import nn

from benchmarks.executor.contender import Wholes
from benchmarks.executor.transformer import (
    Between,
    PlainBlock,
    PlainGpt,
    PlainMlp,
    cross_entropy,
    full_name,
    load,
    same,
    turned,
)
from primepar.models import ModelConfig

Kind = Literal["mlp", "block", "gpt"]
_TEXT = re.compile(r"(mlp|block|gpt):M=(\d+),h=(\d+)(?:,layers=(\d+))?")
SEQUENCES = 16
"""Sequences that the rows of an MLP or a block are divided into."""
MLP = ("fc1", "act", "fc2")
BLOCK = ("norm1", "qkv", "attention", "proj", "add1", "norm2", "fc1", "act", "fc2", "add2")
PREFIX = "blocks.0."
"""Of the names in an MLP or a block."""


class Problem(Struct, frozen=True):
    """One benchmarked case; an MLP or a block is that of a model of one layer."""

    ranks: int
    kind: Kind
    rows: int
    hidden: int
    layers: int = 1

    def __str__(self) -> str:
        layers = f",layers={self.layers}" if self.kind == "gpt" else ""
        return f"{self.kind}:M={self.rows},h={self.hidden}{layers} on {self.ranks} ranks"

    @classmethod
    def parse(cls, text: str, ranks: int) -> Problem:
        """Read `mlp:M=8192,h=512`. Raises `ValueError`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"expected mlp, block or gpt with sizes, as in mlp:M=8192,h=512, got {text!r}"
            )
        kind: Kind = match[1]  # type: ignore[assignment]
        return cls(ranks, kind, int(match[2]), int(match[3]), int(match[4] or 1))

    @property
    def batch(self) -> int:
        """Sequences."""
        return 8 if self.kind == "gpt" else SEQUENCES

    @property
    def model(self) -> ModelConfig:
        """The model, which has four heads if the ranks share them, as the demo has."""
        return ModelConfig.of(
            "gpt",
            layers=self.layers,
            hidden=self.hidden,
            heads=max(4, self.ranks),
            context=self.rows // self.batch,
            vocabulary=256,
        )

    @property
    def operators(self) -> tuple[str, ...] | None:
        """The operators of the part; None for the whole model."""
        if self.kind == "gpt":
            return None
        return tuple(PREFIX + name for name in (MLP if self.kind == "mlp" else BLOCK))

    @property
    def prefix(self) -> str:
        """What the names of the module's parameters lack."""
        return "" if self.kind == "gpt" else PREFIX

    @property
    def sequence_dim(self) -> int:
        """The dim of activations that sequence parallelism divides: M of [M, H], or T."""
        return 0 if self.kind == "mlp" else 1

    def module(self, enter: Between = same, leave: Between = same) -> nn.Module:
        """The plain module in full size, with the parameters of `tensors`."""
        kinds: dict[Kind, Callable[..., nn.Module]] = {
            "mlp": PlainMlp,
            "block": PlainBlock,
            "gpt": PlainGpt,
        }
        module = kinds[self.kind](self.model, enter, leave)
        load(module, self.tensors(), self.prefix)
        return module

    def tensors(self) -> Wholes:
        """Parameters, and `x` and `dy`, or `tokens` and `targets`: the same on every rank."""
        generator = torch.Generator().manual_seed(0)
        model = self.model
        tensors: Wholes = {}
        for name, shape in model.parameter_shapes.items():
            scale = 0.1 if len(shape) == 1 else shape[0] ** -0.5
            offset = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
            tensors[name] = offset + scale * torch.randn(shape, generator=generator)
        if self.kind == "gpt":
            shape = (self.batch, model.context + 1)
            tokens = torch.randint(0, model.vocabulary, shape, generator=generator)
            return tensors | {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
        shape = (self.rows, self.hidden)
        if self.kind == "block":
            shape = (self.batch, model.context, self.hidden)
        return tensors | {name: torch.randn(shape, generator=generator) for name in ("x", "dy")}

    def expected(self) -> Wholes:
        """What one device computes in float64."""
        module, tensors = self.module().double(), self.tensors()
        made: Wholes = {}
        if self.kind == "gpt":
            made["loss"] = cross_entropy(module(tensors["tokens"]), tensors["targets"])
            made["loss"].backward()  # type: ignore[no-untyped-call]
        else:
            x = tensors["x"].double().requires_grad_()
            made["y"] = module(x)
            torch.autograd.backward(made["y"], tensors["dy"].double())
            assert x.grad is not None
            made["dx"] = x.grad
        for name, parameter in module.named_parameters():
            full = self.prefix + full_name(name)
            assert parameter.grad is not None
            made[f"d{full}"] = turned(full, parameter.grad)
        return {name: tensor.detach() for name, tensor in made.items()}


PROBLEMS = (
    Problem(16, "mlp", 4096, 512),
    Problem(4, "mlp", 8192, 512),
    Problem(4, "mlp", 64, 64),
    Problem(4, "mlp", 2048, 1024),
    Problem(4, "block", 2048, 512),
    Problem(4, "gpt", 1024, 192, 4),
)
"""The cases of the targets, and a block."""
