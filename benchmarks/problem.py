"""What the executor is benchmarked on: an MLP, a block, or a whole GPT, as plain torch modules.

The parameters have the names of `primepar.models`; weights of torch's linear are transposed. The
columns of qkv go head by head: query, key, value.
Legend: B sequences, T positions, H hidden, A heads of this rank, D elements of a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from msgspec import Struct
from torch import nn
from torch.nn import functional

from primepar.models import ModelConfig

Between = Callable[[torch.Tensor], torch.Tensor]
Wholes = dict[str, torch.Tensor]
"""Tensors in full: `y` and `dx`, or `loss`; by `d` and its name the gradient of a parameter."""


def activation(x: torch.Tensor) -> torch.Tensor:
    """The activation of every contender: GELU by its tanh approximation."""
    return functional.gelu(x, approximate="tanh")


def same(x: torch.Tensor) -> torch.Tensor:
    """No communication."""
    return x


class PlainMlp(nn.Module):
    """fc1, activation and fc2; `enter` and `leave` are around the column and the row linear."""

    def __init__(self, model: ModelConfig, enter: Between = same, leave: Between = same) -> None:
        super().__init__()
        self.fc1 = nn.Linear(model.hidden, model.ffn, bias=False)
        self.fc2 = nn.Linear(model.ffn, model.hidden, bias=False)
        self.enter, self.leave = enter, leave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.fc2(activation(self.fc1(self.enter(x)))))


class PlainBlock(nn.Module):
    """One block; `enter` and `leave` are around the two pairs of a column and a row linear."""

    def __init__(self, model: ModelConfig, enter: Between = same, leave: Between = same) -> None:
        super().__init__()
        hidden, self.D = model.hidden, model.head_dim
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, eps=model.epsilon) for _ in range(2))
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.proj = nn.Linear(hidden, hidden, bias=False)
        self.fc1 = nn.Linear(hidden, model.ffn, bias=False)
        self.fc2 = nn.Linear(model.ffn, hidden, bias=False)
        self.enter, self.leave = enter, leave

    def forward(self, x_BTH: torch.Tensor) -> torch.Tensor:
        x_BTH = x_BTH + self.leave(self.attended(self.enter(self.norm1(x_BTH))))
        inner = activation(self.fc1(self.enter(self.norm2(x_BTH))))
        y_BTH: torch.Tensor = x_BTH + self.leave(self.fc2(inner))
        return y_BTH

    def attended(self, x_BTH: torch.Tensor) -> torch.Tensor:
        """Attention by the heads whose columns this rank has."""
        qkv = self.qkv(x_BTH)
        B, T, columns = qkv.shape
        q_BATD, k_BATD, v_BATD = (
            qkv.view(B, T, columns // (3 * self.D), 3, self.D).permute(3, 0, 2, 1, 4)
        )  # fmt: skip
        o_BATD = functional.scaled_dot_product_attention(q_BATD, k_BATD, v_BATD, is_causal=True)
        y_BTH: torch.Tensor = self.proj(o_BATD.transpose(1, 2).reshape(B, T, -1))
        return y_BTH


class PlainGpt(nn.Module):
    """Embeddings, blocks, a norm and a head; returns the logits."""

    def __init__(self, model: ModelConfig, enter: Between = same, leave: Between = same) -> None:
        super().__init__()
        self.token = nn.Embedding(model.vocabulary, model.hidden)
        self.position = nn.Embedding(model.context, model.hidden)
        self.blocks = nn.ModuleList(PlainBlock(model, enter, leave) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden, eps=model.epsilon)
        self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)
        self.register_buffer("places", torch.arange(model.context)[None], persistent=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTH = self.token(tokens_BT) + self.position(self.places)
        for block in self.blocks:
            x_BTH = block(x_BTH)
        logits: torch.Tensor = self.head(self.norm(x_BTH))
        return logits


def cross_entropy(logits: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """The mean over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def full_name(name: str) -> str:
    """The name of a module's parameter in `primepar.models`."""
    plain = name.partition(".")[0]
    return f"embedding.{plain}" if plain in ("token", "position") else name


def turned(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A linear weight transposed, in either direction; any other parameter as it is."""
    linear = tensor.ndim == 2 and not name.startswith(("embedding", "token", "position"))
    return tensor.T if linear else tensor


def load(module: nn.Module, wholes: Mapping[str, torch.Tensor], prefix: str = "") -> None:
    """Set the parameters of a module from full ones, whose names have `prefix` before them."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(turned(name, wholes[prefix + full_name(name)]))


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
