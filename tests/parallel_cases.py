"""What ranks do with a parallelized module, and the same on one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from primepar import parallelize
from primepar.distributed.parallel.regions import Region
from primepar.distributed.parallel.use import clip_grad_norm, full_state_dict, local_rows

BATCH, POSITIONS, VOCABULARY = 4, 8, 48


def llama(**changes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = {"num_hidden_layers": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes | config | changes)).double()


def gpt2(**changes: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": VOCABULARY, "n_positions": 16}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes | rates | changes)).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model


def tokens(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, POSITIONS), generator=generator)


def run(module: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and loss; the loss of transformers' models is in float32."""
    logits = module(input_ids=batch).logits
    scores, targets = logits[:, :-1].reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1)
    return logits, nn.functional.cross_entropy(scores, targets)


def compared(
    model: str, changes: dict[str, Any], plan: Any, regions: tuple[Region, ...] = ()
) -> dict[str, float]:
    """The largest differences between a parallelized model and the same on one process."""
    made: Callable[..., nn.Module] = globals()[model]
    plain = made(**changes)
    module = parallelize(deepcopy(plain), plan, torch.distributed.get_world_size(), regions)
    logits, loss = run(plain, tokens())
    loss.backward()
    own_logits, own_loss = run(module, local_rows(module, tokens()))
    own_loss.backward()
    own_loss = own_loss.detach() / torch.distributed.get_world_size()
    torch.distributed.all_reduce(own_loss)
    differences = {
        "logits": distance(own_logits, local_rows(module, logits)),
        "loss": distance(own_loss, loss),
        "gradients": max(gradient_distances(module, plain).values()),
    }
    return differences | {"trained": trained(module, plain)}


def distance(one: torch.Tensor, another: torch.Tensor) -> float:
    assert one.shape == another.shape, (one.shape, another.shape)
    return float((one.detach() - another).abs().max())


def gradient_distances(module: nn.Module, plain: nn.Module) -> dict[str, float]:
    parameters = dict(plain.named_parameters())
    distances = {}
    for name, parameter in module.named_parameters():
        gradient, expected = parameter.grad, parameters[name].grad
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor().reshape(expected.shape)
        distances[name] = distance(gradient, expected)
    return distances


def trained(module: nn.Module, plain: nn.Module, steps: int = 3) -> float:
    """The largest difference of a parameter after steps of AdamW with clipping."""
    for model in (module, plain):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(steps):
            optimizer.zero_grad()
            batch = tokens(step + 1)
            _, loss = run(model, batch if model is plain else local_rows(module, batch))
            loss.backward()
            if model is plain:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            else:
                clip_grad_norm(model, 0.5)
            optimizer.step()
    states = full_state_dict(module)
    expected = plain.state_dict()
    return max((distance(states[name], expected[name]) for name in states), default=0.0)


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """What some functions of this module return, by name and arguments."""
    return [globals()[name](*given) for name, given in cases]
