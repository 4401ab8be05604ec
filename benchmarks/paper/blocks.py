"""Figures 2, 7 and 8: a block's all-reduces under Megatron, throughput and peak memory over its.

Megatron is the fastest of its plans over all degrees of data parallelism, costed by the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, log

from msgspec.structs import replace as changed

from benchmarks.paper.printed import DEVICES, FIGURE_7, FIGURE_8
from benchmarks.paper.setting import SETTING, Setting, megatron
from primepar.plan.cluster import Link
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName


@dataclass(frozen=True)
class PaperPoint:
    """One model on so many devices: ratios to the fastest Megatron, and the paper's."""

    model: str
    devices: int
    copies: int
    """Megatron's degree of data parallelism."""
    seconds: float
    megatron_seconds: float
    memory: float
    megatron_memory: float
    sequences: dict[str, str]

    @property
    def speed(self) -> float:
        """Throughput over Megatron's."""
        return self.megatron_seconds / self.seconds

    @property
    def share(self) -> float:
        """Peak memory over Megatron's."""
        return self.memory / self.megatron_memory

    @property
    def printed_speed(self) -> float:
        """That of the paper's figure 7."""
        return FIGURE_7[self.model][DEVICES.index(self.devices)]

    @property
    def printed_share(self) -> float:
        """That of the paper's figure 8."""
        return FIGURE_8[self.model][DEVICES.index(self.devices)]


def point(
    model: str, devices: int, setting: Setting = SETTING, space: SpaceName = "paper"
) -> PaperPoint:
    """The best plan of a space beside the fastest Megatron."""
    planner = setting.planner(model, devices, space)
    found = search(planner)
    plain = planner if space == "paper" else setting.planner(model, devices)
    copies, other = min(megatron(plain).items(), key=lambda each: each[1].seconds)
    return PaperPoint(
        model, devices, copies, found.seconds, other.seconds, setting.memory(found),
        setting.memory(other), found.sequences,
    )  # fmt: skip


def reduced(model: str, batch: int, setting: Setting = SETTING) -> float:
    """Figure 2: share of all-reduces of Megatron's step on 16 devices, in a copy on each node."""
    own = replace(setting, batch=batch, per_device=None)
    took, free = (
        megatron(each.planner(model, 16))[16 // setting.machine.devices_per_node].seconds
        for each in (own, without_links(own))
    )
    return 1 - free / took


def without_links(setting: Setting) -> Setting:
    """The same where nothing takes time to send."""
    link = Link(setting.machine.devices, 0.0, 1e300, False)
    return replace(setting, machine=changed(setting.machine, links=(link,)))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of numbers above 0."""
    logs = [log(each) for each in values]
    return exp(sum(logs) / len(logs))
