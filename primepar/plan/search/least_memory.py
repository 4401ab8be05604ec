"""The least memory that any plan takes, in closed form, and why a model does not fit.

What operators keep adds up, and only the largest rest counts. Redistribution takes time and no
memory here. So once the largest rest is fixed, every operator is free to keep its least. Example:
options (keeps 5, rest 1) and (keeps 3, rest 4) of two equal operators: with a rest of 1 a plan
takes 5 + 5 + 1 bytes, with a rest of 4 it takes 3 + 3 + 4, which is the least. This is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil
from typing import Self

import numpy as np

from primepar.errors import PlanError
from primepar.plan.search.options import Catalogue, Options, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Vector
from primepar.plan.search.sequence_space import SequenceSpace

PARAMETERS = ("parameters", "gradients", "states")
"""Terms of `Cost` that a device holds at once when the optimizer starts."""


class LeastMemory:
    """The least bytes of a device under the plans of a planner, without a search.

    Sequences of one class hold the same, so that one of each class is considered.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.counts: Counter[object] = Counter(map(kind_of, planner.operators))
        catalogue = planner.catalogue
        if planner.candidates is None:
            links = planner.training.links
            space = SequenceSpace(planner.space, links.levels)
            catalogue = Catalogue(planner.model, planner.training, space.of, catalogue.layouts)
        self.options: dict[object, Options] = {
            kind_of(operator): catalogue.options(operator) for operator in planner.operators
        }

    @property
    def bytes(self) -> float:
        """The least sum of what operators keep, plus the largest rest; infinite without a plan."""
        if not all(map(len, self.options.values())):
            return np.inf
        peaks = np.unique(np.concatenate([some.running for some in self.options.values()]))
        return float((least_sums(self.counts, self.options, peaks) + peaks).min())

    @property
    def parameters(self) -> float:
        """A lower bound of what a device holds at once: parameters with gradients and states.

        A tied head has none of its own.
        """
        kinds = set(self.counts) - ({self.planner.key("head")} if self.planner.tied else set())
        return float(sum(self.counts[kind] * _of_parameters(self.options[kind]) for kind in kinds))

    def with_devices(self, devices: int) -> Self:
        """The same question for another number of devices."""
        planner, training = self.planner, self.planner.training
        asked = (planner.model, training.cluster, devices, training.batch, training.dtype)
        return type(self)(Planner.of(*asked, planner.space, part=planner.part))


def least_sums(
    counts: Mapping[object, int], options: Mapping[object, Options], peaks: Vector
) -> Vector:
    """The least sum that all operators keep, for each largest rest of `peaks` in ascending order.

    Infinite where an operator has no option whose own peak is so small.
    """
    total = np.zeros(len(peaks))
    for kind, count in counts.items():
        order = np.argsort(options[kind].running, kind="stable")
        least = np.minimum.accumulate(options[kind].kept[order])
        place = np.searchsorted(options[kind].running[order], peaks, side="right")
        total += count * np.concatenate([[np.inf], least])[place]
    return total


def _of_parameters(options: Options) -> float:
    return float(np.sum([options.terms[term] for term in PARAMETERS], axis=0).min())


def refuse_what_cannot_fit(planner: Planner, bound: float, whose: str) -> None:
    """Raise `PlanError` where parameters alone exceed `bound` bytes of a device in every plan.

    `whose` states whose bytes these are. A plan that is not refused may still not fit.
    """
    least = LeastMemory(planner)
    if least.parameters > bound:
        raise PlanError(
            f"expected a plan within the {bound:,.0f} bytes of {whose}, got none: parameters with "
            f"gradients and optimizer states alone take {ceil(least.parameters):,} bytes of each "
            f"of {planner.training.links.devices} devices, the smallest plan at most "
            f"{ceil(least.bytes):,}: {advice(least, bound)}"
        )


def advice(least: LeastMemory, bound: float) -> str:
    """What to ask instead: the smallest number of devices of the cluster that is enough, if any."""
    cluster, devices = least.planner.training.cluster, least.planner.training.links.devices
    whole = least.with_devices(1).parameters
    while (devices := 2 * devices) <= cluster.devices:
        if whole / devices <= bound and least.with_devices(devices).bytes <= bound:
            return f"take --devices {devices}"
    few = f"no number of the cluster's {cluster.devices} devices is enough"
    if whole <= bound * cluster.devices:
        return f"{few}: take a smaller --batch"
    return f"{few}, at least {ceil(whole / bound):,} are needed"
