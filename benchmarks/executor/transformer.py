"""A GPT of plain torch modules, with the parameters and the names of `primepar.models`.

Weights of torch's linear are transposed. The columns of qkv go head by head: query, key, value.
Legend: B sequences, T positions, H hidden, A heads of this rank, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from primepar.models import ModelConfig

Between = Callable[[torch.Tensor], torch.Tensor]


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
