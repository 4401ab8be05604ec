"""What ranks do with a parallelized module, and the same on one process."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from primepar import PrimeParError, parallelize
from primepar.distributed.parallel.regions import Region
from primepar.distributed.parallel.use import clip_grad_norm, full_state_dict, local_rows

BATCH, POSITIONS, VOCABULARY, RATE = 4, 8, 48, 1e-2
REGIONS = (
    Region(("blocks.*.qkv",), ("blocks.*.out",), sections=3),
    Region(("blocks.*.fc1",), ("blocks.*.fc2",)),
)


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

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.mix = nn.Linear(POSITIONS, POSITIONS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def own() -> nn.Module:
    torch.manual_seed(0)
    return Transformer().double()


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


def tokens(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, POSITIONS), generator=generator)


def run(module: Callable[..., Any], batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and loss; transformers' own loss is in float32."""
    out = module(input_ids=batch)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    scores, targets = logits[:, :-1].reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1)
    return logits, cross_entropy(scores, targets)


def compared(
    model: str, changes: dict[str, Any], plan: Any, regions: tuple[Region, ...] = (), steps: int = 2
) -> dict[str, Any]:
    """The largest differences between a parallelized model and the same on one process."""
    plain = made(model, changes)
    module = parallelize(deepcopy(plain), plan, dist.get_world_size(), regions)
    logits, loss = run(plain, tokens())
    torch.autograd.backward(loss)
    own_logits, own_loss = run(module, local_rows(module, tokens()))
    torch.autograd.backward(own_loss)
    gradients = gradient_distances(module, plain)
    assert max(gradients.values()) < min(
        float(p.grad.abs().max()) for p in plain.parameters() if p.grad is not None
    )
    return {
        "logits": distance(own_logits, local_rows(module, logits)),
        "loss": distance(averaged_loss(own_loss), loss),
        "gradients": max(gradients.values()),
        **trained(module, plain, steps),
    }


def averaged_loss(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.detach() / dist.get_world_size()
    dist.all_reduce(loss)
    return loss


def distance(one: torch.Tensor, another: torch.Tensor) -> float:
    assert one.shape == another.shape, (one.shape, another.shape)
    return float((one.detach() - another.detach()).abs().max())


def gradient_distances(module: nn.Module, plain: nn.Module) -> dict[str, float]:
    parameters = dict(plain.named_parameters())
    distances = {}
    for name, parameter in module.named_parameters():
        gradient, expected = parameter.grad, parameters[name].grad
        assert gradient is not None
        assert expected is not None
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor().reshape(expected.shape)
        distances[name] = distance(gradient, expected)
    assert distances.keys() == parameters.keys()
    return distances


def trained(module: nn.Module, plain: nn.Module, steps: int) -> dict[str, float]:
    """The largest differences of losses and parameters over steps of AdamW with clipping."""
    losses: list[list[torch.Tensor]] = []
    for model in (module, plain):
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        losses.append([])
        for step in range(steps):
            optimizer.zero_grad()
            batch = tokens(step + 1)
            _, loss = run(model, batch if model is plain else local_rows(module, batch))
            torch.autograd.backward(loss)
            clip = nn.utils.clip_grad_norm_
            norm = clip(model.parameters(), 0.5) if model is plain else clip_grad_norm(model, 0.5)
            optimizer.step()
            losses[-1] += [loss.detach() if model is plain else averaged_loss(loss), norm]
    states, expected = full_state_dict(module), plain.state_dict()
    assert dist.get_rank() or states.keys() == expected.keys()
    return {
        "losses": max(distance(got, wanted) for got, wanted in zip(*losses, strict=True)),
        "trained": max((distance(states[name], expected[name]) for name in states), default=0.0),
    }


def compiled(backend: str, plan: str) -> dict[str, float]:
    """The difference that torch.compile makes to a parallelized module."""
    plain = own()
    module = parallelize(deepcopy(plain), plan, dist.get_world_size(), REGIONS)
    logits, loss = run(plain, tokens())
    torch.autograd.backward(loss)
    own_logits, own_loss = run(torch.compile(module, backend=backend), local_rows(module, tokens()))
    torch.autograd.backward(own_loss)
    return {
        "logits": distance(own_logits, local_rows(module, logits)),
        "gradients": max(gradient_distances(module, plain).values()),
    }


def refused(model: str, changes: dict[str, Any], plan: Any, ranks: int = 4) -> str:
    """The message of an error; no layer is replaced."""
    plain = made(model, changes)
    kinds = [type(part) for part in plain.modules()]
    try:
        parallelize(plain, plan, ranks)
    except PrimeParError as error:
        assert [type(part) for part in plain.modules()] == kinds
        return f"{type(error).__name__}: {error}"
    return "accepted"


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """What some functions of this module return, by name and arguments."""
    torch.set_num_threads(1)
    return [globals()[name](*given) for name, given in cases]
