"""Modules to parallelize: a user's own, some that cannot be, and transformers' classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from primepar.distributed import Region

BATCH, POSITIONS, VOCABULARY, RATE = 4, 8, 48, 1e-2
REGIONS = (
    Region(("blocks.*.qkv",), ("blocks.*.out",), sections=3),
    Region(("blocks.*.fc1",), ("blocks.*.fc2",)),
)
BLOCK_REGIONS = (Region(("qkv",), ("out",), sections=3), Region(("fc1",), ("fc2",)))
"""Of a block alone."""


class Block(nn.Module):
    """A user's own block: the number of heads is that of the columns that are there."""

    def __init__(self, hidden: int = 32, head: int = 8) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden, bias=False)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.fc2(gelu(self.fc1(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """A user's own model; `mix` is over positions, as in an MLP-mixer."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.mix = nn.Linear(POSITIONS, POSITIONS)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(input_ids)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Uneven(nn.Module):
    """Two layers of any sizes; the second one may be given fewer columns than the first has."""

    def __init__(self, inner: int = 32, leaving: int = 32) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, inner, bias=False)
        self.fc2 = nn.Linear(leaving, 32, bias=False)


class OwnNorm(Block):
    """A wrong one: the norm of the heads is a parameter inside a region."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (-1, 8)) for part in self.qkv(x).chunk(3, -1))
        mixed = scaled_dot_product_attention(q * self.scale, k, v)
        out: torch.Tensor = self.out(mixed.flatten(2))
        scaled: torch.Tensor = self.fc2(gelu(self.fc1(out)))
        return scaled


class TwoTypes(Block):
    """A wrong one: its layers have two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1.double()


def uneven(**sizes: int) -> nn.Module:
    return Uneven(**sizes)


def own(blocks: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return Transformer(blocks).double()


def llama(**changes: Any) -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = {"num_hidden_layers": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 16}
    return with_biases(LlamaForCausalLM(LlamaConfig(**sizes | config | changes)))


def gpt2(**changes: Any) -> nn.Module:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": VOCABULARY, "n_positions": 16}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    return with_biases(GPT2LMHeadModel(GPT2Config(**sizes | rates | ids | changes)))


def with_biases(model: nn.Module) -> nn.Module:
    """In float64, with biases that are not zero."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model.double()


def made(model: str, changes: dict[str, Any]) -> nn.Module:
    maker: Callable[..., nn.Module] = globals()[model]
    return maker(**changes)
