"""Programs under a limit of device memory."""

from __future__ import annotations

from functools import cache
from random import Random

from primepar.models import GPTConfig
from primepar.operators import StepOptions, lower_step
from primepar.partition import parse_sequence
from primepar.partition.patrickstar import PatrickStar
from primepar.passes import PASSES
from primepar.passes.offload import least_limit, offload
from primepar.plan.presets import uniform_plan
from primepar.schedule.program import Program

SMALL = GPTConfig(layers=1, hidden=8, heads=2, context=4, vocabulary=16)


@cache
def resident(sequence: str) -> Program:
    """A step of a small model with everything on the devices."""
    passes = [name for name in PASSES if name != "overlap"]
    plan = uniform_plan(SMALL, parse_sequence(sequence))
    return lower_step(plan, 2, 4, "update", StepOptions(clip=1.0), passes)


@cache
def limited(sequence: str) -> Program:
    """The same under the least limit."""
    return offload(resident(sequence), least_limit(resident(sequence)))


def random_sizes(random: Random) -> PatrickStar:
    """PatrickStar of some sizes that fit together."""
    hidden = random.randint(1, 3)
    sizes = {
        "layers": random.randint(1, 5), "hidden": hidden, "rows": random.randint(1, 3),
        "ranks": random.choice((1, 2, 2, 3)), "chunk": random.randint(1, 3) * hidden**2,
    }  # fmt: skip
    sizes["chunk"] += random.randint(0, hidden**2 - 1)
    least = PatrickStar(**sizes).least
    return PatrickStar(**sizes, device=least + random.choice((0, 0, 1, least // 2, 10 * least)))
