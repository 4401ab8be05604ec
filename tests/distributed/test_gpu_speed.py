"""One process on a GPU: a step of a GPT in bfloat16 next to the same model in plain torch.

No bound is set; `make gpu` prints the ratios with the results.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest
import torch
from backends import DEVICES
from test_gpu_blocks import seconds

from benchmarks.problem import PlainGpt, cross_entropy, load
from primepar.distributed import Mesh, PartitionedModel, load_parameter
from primepar.models import GPTConfig
from primepar.models.config import initial_parameter
from primepar.partition import parse_sequence
from primepar.plan import preset_plan

SIZES = {
    "cpu": (GPTConfig(layers=1, hidden=32, heads=2, context=16, vocabulary=64), 2),
    "cuda": (GPTConfig(layers=4, hidden=2048, heads=16, context=1024, vocabulary=32768), 4),
}
"""The model and its batch."""
ROUNDS = 10


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_next_to_plain_torch(
    device: str, record_property: Callable[[str, object], None]
) -> None:
    model, batch = SIZES[device]
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (
        torch.randint(0, model.vocabulary, (batch, model.context), generator=generator).to(device)
        for _ in range(2)
    )
    wholes = {
        name: torch.from_numpy(initial_parameter(model, name, 0)).float()
        for name in model.parameter_shapes
    }
    plain = PlainGpt(model)
    load(plain, wholes)
    plain.to(device, torch.bfloat16)
    partitioned = PartitionedModel(
        preset_plan("data", model, 1, batch), Mesh(parse_sequence(""), device, torch.bfloat16)
    )
    for name, whole in wholes.items():
        load_parameter(partitioned, name, whole)

    def plain_step() -> torch.Tensor:
        plain.zero_grad()
        loss = cross_entropy(plain(tokens).float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def partitioned_step() -> torch.Tensor:
        partitioned.zero_grad()
        loss = partitioned.loss(tokens, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    steps = {"primepar": partitioned_step, "plain": plain_step}
    losses = {name: float(step().detach()) for name, step in steps.items()}
    assert losses["primepar"] == pytest.approx(losses["plain"], rel=2.0**-7)
    if device == "cpu":
        return
    took: dict[str, list[float]] = {name: [] for name in steps}
    peaks = dict.fromkeys(steps, 0)
    for _ in range(ROUNDS):
        for name, step in steps.items():
            torch.cuda.reset_peak_memory_stats()
            took[name].append(seconds(step, 1))
            peaks[name] = torch.cuda.max_memory_allocated()
    ratio = median(a / b for a, b in zip(took["primepar"], took["plain"], strict=True))
    record_property(
        "a step of a GPT in bfloat16 over plain torch, seconds, median",
        f"{ratio:.3f} ({median(took['primepar']) * 1e3:.2f} ms)",
    )
    record_property(
        "the same, largest memory of the process during the step",
        f"{peaks['primepar'] / peaks['plain']:.3f}",
    )
