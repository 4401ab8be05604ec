"""The most elements that are live at once in forward and backward of an MLP, before and after."""

from __future__ import annotations

import pytest
from test_passes import assert_same

from primepar.models import ModelConfig
from primepar.operators import StepPart, lower_part
from primepar.passes import PASSES
from primepar.passes.liveness import peaks, sizes_of
from primepar.plan import preset_plan

OPERATORS = [f"blocks.0.{name}" for name in ("fc1", "act", "fc2")]


def mlp(preset: str, *without: str) -> StepPart:
    """M = h = 64 on 4 ranks: x, dy and both weights have M h elements or 4 M h in all."""
    config = ModelConfig.of(
        "gpt2", mlp_bias=False, layers=1, hidden=64, heads=4, vocabulary=64, context=8
    )
    passes = [name for name in PASSES if name not in without]
    return lower_part(preset_plan(preset, config, 4), OPERATORS, 8, 8, passes)


def new_elements(part: StepPart) -> float:
    """The peak of backward above x, dy and the weights, in units of M h elements; y is new."""
    size, held = sizes_of(part.backward), sizes_of(part.forward)
    initial, ends = (part.forward.initial or ())[0], (part.forward.final or ())[0]
    given = sum(held(name) or 0 for name in initial)
    given += sum(size(name) or 0 for name in (part.backward.initial or ())[0] if "dy" in name)
    y = sum(held(name) or 0 for name in ends if name not in part.kept[0])
    (peak,) = set(peaks(part.backward))
    return (peak + y - given) / 64**2


@pytest.mark.parametrize(
    ("preset", "before", "after"),
    [
        ("megatron", 5, 4),
        ("megatron-sp", 5, 4),
        ("stationary", 5.5, 5.25),
        ("primepar", 6.25, 6.25),
        ("data", 9.25, 9),
    ],
)
def test_di_after_dw_lowers_the_peak(preset: str, before: float, after: float) -> None:
    old, new = mlp(preset, "make-late"), mlp(preset)
    assert (new_elements(old), new_elements(new)) == (before, after)
    assert_same(old.backward, new.backward)
