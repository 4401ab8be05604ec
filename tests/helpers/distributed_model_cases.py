"""What the ranks of the tests of planned models do: each function runs on every rank."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import sent_traffic
import torch
from distributed_ranks import device_of_rank
from numpy.typing import NDArray

from primepar.distributed import Mesh, full_gradient
from primepar.distributed.modules.model import PartitionedModel, full_logits, load_parameter
from primepar.distributed.modules.weights import load_weights
from primepar.models import ModelConfig
from primepar.partition import parse_sequence
from primepar.plan import Plan, preset_plan

Arrays = dict[str, NDArray[Any]]
BATCH = 8
STEP, SEED = 3, 11
NORM_WEIGHTS = ("norm.weight", "norm1.weight", "norm2.weight")
_SIZES: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 8, "context": 6, "vocabulary": 37}
_DROPS: dict[str, Any] = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3}
_ONE = {"layers": 1}
_LLAMA = {**_SIZES, "heads": 16, "kv_heads": 8, "head_dim": 4, "ffn": 48}
MODELS = {
    "gpt2": ModelConfig.of("gpt2", **_SIZES | _ONE),
    "opt": ModelConfig.of("opt", **_SIZES | _ONE),
    "llama": ModelConfig.of("llama", **_LLAMA | _ONE),
    "bloom": ModelConfig.of("bloom", **_SIZES),
    "gpt2-dropout": ModelConfig.of("gpt2", **_SIZES | _ONE, **_DROPS),
    "llama-tied": ModelConfig.of("llama", **_LLAMA, tied=True, attention_bias=True),
}
"""Head dims are even, 8 devices divide heads and hidden, and none divides the vocabulary."""


def parameters(config: ModelConfig) -> Arrays:
    """Parameters without zeros and ones, so that all of them have different effects."""
    generator = np.random.default_rng(5)
    return {
        name: generator.normal(1.0 if name.endswith(NORM_WEIGHTS) else 0.0, 0.3, shape)
        for name, shape in config.parameter_shapes.items()
    }


def batch(
    config: ModelConfig, sequences: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and targets."""
    shape = (sequences or BATCH, config.context + 1)
    tokens = np.random.default_rng(7).integers(0, config.vocabulary, shape)
    return tokens[:, :-1], tokens[:, 1:]


def mesh_of(ranks: int) -> Mesh:
    """A mesh in float64 for plans with a sequence for every operator, on GPUs under NCCL."""
    return Mesh(parse_sequence(f"M{ranks}"), device_of_rank(), torch.float64)


def planned(name: str, plan: str | Plan, mesh: Mesh) -> PartitionedModel:
    """A model under a plan, or under the preset plan of that name, with these parameters."""
    config = MODELS[name]
    if isinstance(plan, str):
        plan = preset_plan(plan, config, mesh.ranks, BATCH)
    model = PartitionedModel(plan, mesh, seed=SEED)
    for parameter, whole in parameters(config).items():
        load_parameter(model, parameter, whole)
    return model


class Result(NamedTuple):
    """What one rank has of a training step; whole gradients are on rank 0 alone.

    `sent` are elements.
    """

    loss: float
    gradients: Arrays
    blocks: Arrays
    sent: Fraction


def step(name: str, plan: str | Plan, mesh: Mesh) -> Result:
    """One training step of a model under a plan, on the plan's batch if it has one."""
    model = planned(name, plan, mesh)
    sent_traffic.clear()
    tokens_BT, targets_BT = (
        torch.from_numpy(part).to(mesh.device) for part in batch(model.config, model.plan.batch)
    )
    loss = model.loss(tokens_BT, targets_BT, STEP if model.config.dropout else None)
    loss.backward()  # type: ignore[no-untyped-call]
    sent = sum(sent_traffic.ELEMENTS.values(), Fraction(0))
    whole = {
        parameter: full_gradient(model, parameter) for parameter in model.config.parameter_shapes
    }
    local = {parameter: block.grad for parameter, block in model.named_parameters()}
    return Result(loss.item(), arrays(whole), arrays(local), sent)


def arrays(tensors: dict[str, torch.Tensor | None]) -> Arrays:
    """Those that are there, as arrays of their own."""
    return {
        name: tensor.cpu().numpy().copy() for name, tensor in tensors.items() if tensor is not None
    }


def steps(ranks: int, cases: list[tuple[str, str | Plan]]) -> list[Result]:
    """One step of several models under their plans, in one world."""
    mesh = mesh_of(ranks)
    return [step(name, plan, mesh) for name, plan in cases]


def logits(ranks: int, asked: list[tuple[ModelConfig, str, str]]) -> list[NDArray[Any] | None]:
    """Logits in float32 of configurations under preset plans, with the weights of a folder."""
    mesh = Mesh(parse_sequence(f"M{ranks}"), dtype=torch.float32)
    results = []
    for config, plan, folder in asked:
        model = PartitionedModel(preset_plan(plan, config, ranks), mesh)
        load_weights(folder, model)
        whole = full_logits(model, torch.from_numpy(tokens_of(config)))
        results.append(None if whole is None else whole.numpy())
    return results


def tokens_of(config: ModelConfig) -> NDArray[np.int64]:
    """Four sequences of ten tokens."""
    return np.random.default_rng(1).integers(0, config.vocabulary, (4, 10))
