"""What does not fit is refused by a bound in closed form, which is never wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from planner_cases import BLOOM, SMALL, TWO_LEVELS
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.models.config import Family, ModelConfig
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.within import LeastMemory, advice, refuse_what_cannot_fit

FAMILIES: tuple[Family, ...] = ("gpt", "opt", "bloom", "llama")


def random_planner(random: Random) -> Planner:
    """A small model on up to eight devices, with sizes that are drawn."""
    heads = random.choice((2, 4, 8))
    model = ModelConfig.of(
        random.choice(FAMILIES), hidden=heads * random.choice((4, 8)), heads=heads,
        layers=random.choice((1, 2, 5)), context=random.choice((8, 32)),
        vocabulary=random.choice((24, 97, 512)), tied=random.random() < 0.5,
    )  # fmt: skip
    devices, batch = random.choice((1, 2, 4, 8)), random.choice((1, 2, 8))
    spaces: tuple[SpaceName, ...] = ("paper", "paper", "all")
    space = random.choice(spaces) if devices < 8 else "paper"
    return Planner.of(model, TWO_LEVELS, devices, batch, None, space, tradeoffs=True)


def least_sum(planner: Planner) -> float:
    """The least memory by trying every largest rest, with the planner's own options."""
    options = [planner.catalogue.options(operator) for operator in planner.operators]
    sums = []
    for rest in {float(rest) for some in options for rest in some.running}:
        fitting = [some.kept[some.running <= rest] for some in options]
        if all(map(len, fitting)):
            sums.append(rest + sum(float(kept.min()) for kept in fitting))
    return min(sums)


@pytest.mark.parametrize("first", range(0, 40 if IS_LONG else 20, 10))
def test_the_least_memory_is_that_of_all_sums(first: int) -> None:
    for seed in range(first, first + 10):
        planner = random_planner(Random(seed))
        assert LeastMemory(planner).bytes == pytest.approx(least_sum(planner), rel=1e-12)


def test_no_plan_holds_less_than_the_bound_of_its_parameters() -> None:
    for seed in range(12 if IS_LONG else 1):
        random = Random(seed)
        planner = random_planner(random)
        least = LeastMemory(planner).parameters
        for _ in range(3):
            numbers = [random.randrange(len(planner.options(name))) for name in planner.named]
            result = SearchResult.of(planner, 0.0, numbers)
            assert least <= result.memory
            assert least <= max(result.held)


def test_what_fits_is_not_refused_and_what_is_refused_has_a_reason() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 2, 4, None, "paper", tradeoffs=True)
    least = LeastMemory(planner)
    refuse_what_cannot_fit(planner, least.parameters, "a device")
    with pytest.raises(PlanError) as caught:
        refuse_what_cannot_fit(planner, np.floor(least.parameters) - 1, "a device")
    devices, whole = planner.training.links.devices, LeastMemory(planner).with_devices(1).parameters
    assert str(caught.value) == (
        f"expected a plan within the {np.floor(least.parameters) - 1:,.0f} bytes of a device, got "
        "none: parameters with gradients and optimizer states alone take "
        f"{np.ceil(least.parameters):,.0f} bytes of each of {devices} devices, the smallest plan "
        f"at most {np.ceil(least.bytes):,.0f}: take --devices 4"
    )
    assert advice(least, whole / 16 - 1) == (
        "no number of the cluster's 16 devices is enough, at least 17 are needed"
    )
    assert advice(least, whole / 16 + 1) == (
        "no number of the cluster's 16 devices is enough: take a smaller --batch"
    )


def test_the_smallest_number_of_devices_that_is_enough_is_named() -> None:
    for model in (BLOOM, replace(SMALL, layers=5)):
        least = LeastMemory(Planner.of(model, TWO_LEVELS, 1, 4, None, "paper"))
        sizes = {devices: least.with_devices(devices).bytes for devices in (2, 4, 8, 16)}
        for devices, size in sizes.items():
            enough = min(count for count in sizes if sizes[count] <= size)
            assert advice(least, size) == f"take --devices {enough}"
            assert enough <= devices
