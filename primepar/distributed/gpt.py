"""The decoder-only transformer of `primepar.models`, every operator of it partitioned.

The stream lies in the output layout of the linear operators, rows by whole sequences and columns
by whole heads, so that attention and GELU are local; each linear operator fetches its input from
there and leaves its output there. Legend: B sequences, T positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from math import lcm
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from primepar.distributed.attention import attention
from primepar.distributed.embedding import PartitionedEmbedding
from primepar.distributed.linear import PartitionedLinear
from primepar.distributed.loss import cross_entropy
from primepar.distributed.mesh import Mesh
from primepar.distributed.norm import PartitionedNorm
from primepar.distributed.stream import Stream
from primepar.errors import ConfigError, ShapeError
from primepar.models import GPTConfig, initial_parameter


class _Maker:
    """Makes the parts of a model by their names, with their first values."""

    def __init__(self, config: GPTConfig, stream: Stream, seed: int) -> None:
        self.config, self.stream, self.seed = config, stream, seed

    def value(self, name: str) -> torch.Tensor:
        value: NDArray[Any] = initial_parameter(self.config, name, self.seed)
        return torch.from_numpy(value)

    def linear(self, name: str) -> PartitionedLinear:
        return PartitionedLinear(self.stream.mesh, self.value(f"{name}.weight"), name=name)

    def norm(self, name: str) -> PartitionedNorm:
        weight_H, bias_H = self.value(f"{name}.weight"), self.value(f"{name}.bias")
        return PartitionedNorm(self.stream, weight_H, bias_H)

    def embedding(self) -> PartitionedEmbedding:
        token_VH, position_TH = self.value("embedding.token"), self.value("embedding.position")
        return PartitionedEmbedding(self.stream, token_VH, position_TH)


class Block(nn.Module):
    """Attention and MLP, each on the norm of the stream and added to it."""

    def __init__(self, make: _Maker, layer: int) -> None:
        super().__init__()
        self.head_dim = make.config.head_dim
        self.norm1 = make.norm(f"blocks.{layer}.norm1")
        self.qkv = make.linear(f"blocks.{layer}.qkv")
        self.proj = make.linear(f"blocks.{layer}.proj")
        self.norm2 = make.norm(f"blocks.{layer}.norm2")
        self.fc1 = make.linear(f"blocks.{layer}.fc1")
        self.fc2 = make.linear(f"blocks.{layer}.fc2")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's block of the stream, `[B, T, H]` cut, to the same."""
        x = x + self.proj(attention(self.qkv(self.norm1(x)), self.head_dim))
        hidden = functional.gelu(self.fc1(self.norm2(x)), approximate="tanh")
        out: torch.Tensor = x + self.fc2(hidden)
        return out


class GPT(nn.Module):
    """A GPT on a mesh; its parameters are this rank's blocks, under their names in the config.

    Every rank makes it, and calls it, alike. Raises `ConfigError` if the sequence's slices do not
    divide the config's sizes, `SequenceError` if the sequence cannot run it.
    """

    def __init__(self, config: GPTConfig, mesh: Mesh, seed: int = 0) -> None:
        super().__init__()
        stream = Stream(mesh)
        check_config(config, mesh, stream)
        make = _Maker(config, stream, seed)
        self.config, self.mesh, self.stream = config, mesh, stream
        self.embedding = make.embedding()
        self.blocks = nn.ModuleList(Block(make, layer) for layer in range(config.layers))
        self.norm = make.norm("norm")
        self.head = make.linear("head")

    def check_batch(self, batch: int) -> None:
        """Raise `ShapeError` unless every rank gets whole sequences of a batch."""
        slices = self.stream.row_slices
        if batch < 1 or batch % slices:
            raise ShapeError(
                f"batch: expected a positive multiple of the {slices} slices of M in sequence "
                f"{str(self.mesh.sequence)!r}, got {batch}: "
                f"take {max(1, -(-batch // slices)) * slices}"
            )

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """This rank's block of the logits, `[B / slices of M, T, V / slices of K]`.

        Takes the whole batch, the same on every rank. Raises `ShapeError`.
        """
        self.check_batch(len(tokens_BT))
        if tokens_BT.shape[1] > self.config.context:
            raise ShapeError(
                f"tokens: expected at most context={self.config.context} positions, "
                f"got {tokens_BT.shape[1]}: cut the sequences"
            )
        x = self.embedding(self.stream.rows(tokens_BT))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the whole batch, the same on every rank; differentiable.

        Raises `ShapeError`, and `TrainingOrderError` before the backward of the last loss.
        """
        if targets_BT.shape != tokens_BT.shape:
            raise ShapeError(
                f"targets: expected a target for each token, shape {tuple(tokens_BT.shape)}, "
                f"got {tuple(targets_BT.shape)}"
            )
        return cross_entropy(self.stream, self(tokens_BT), self.stream.rows(targets_BT))


def check_config(config: GPTConfig, mesh: Mesh, stream: Stream) -> None:
    """Raise `ConfigError` unless heads, hidden and vocabulary are multiples of their slices."""
    columns, inputs = stream.column_slices, mesh.sequence.grid["N"]
    needed = {
        "hidden": (config.hidden, lcm(columns, inputs)),
        "heads": (config.heads, columns),
        "vocabulary": (config.vocabulary, columns),
    }
    for name, (size, slices) in needed.items():
        if size % slices:
            raise ConfigError(
                f"{name}: expected a multiple of {slices} for sequence {str(mesh.sequence)!r}, "
                f"got {size}: take {-(-size // slices) * slices}, or another sequence"
            )
