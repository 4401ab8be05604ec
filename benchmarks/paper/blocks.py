"""Figures 2, 7 and 8: a block's all-reduces under Megatron; throughput and memory over Megatron's.

Megatron's plan is the fastest over all degrees of data parallelism, by the same cost model.
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
    """One model on a number of devices: ratios to the fastest Megatron plan, and the paper's."""

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
        """Throughput over Megatron's in the paper's figure 7."""
        return FIGURE_7[self.model][DEVICES.index(self.devices)]

    @property
    def printed_share(self) -> float:
        """Peak memory over Megatron's in the paper's figure 8."""
        return FIGURE_8[self.model][DEVICES.index(self.devices)]


def point(
    model: str, devices: int, setting: Setting = SETTING, space: SpaceName = "paper"
) -> PaperPoint:
    """The best plan of a space, compared with the fastest Megatron plan."""
    planner = setting.planner(model, devices, space)
    result = search(planner)
    plain = planner if space == "paper" else setting.planner(model, devices)
    copies, fastest_megatron = min(megatron(plain).items(), key=lambda item: item[1].seconds)
    return PaperPoint(
        model, devices, copies, result.seconds, fastest_megatron.seconds, setting.memory(result),
        setting.memory(fastest_megatron), result.sequences,
    )  # fmt: skip


def reduced(model: str, batch: int, setting: Setting = SETTING) -> float:
    """Figure 2: share of all-reduces in Megatron's step on 16 devices, one copy on each node."""
    changed_setting = replace(setting, batch=batch, per_device=None)
    seconds, without_sending = (
        megatron(case.planner(model, 16))[16 // setting.machine.devices_per_node].seconds
        for case in (changed_setting, without_links(changed_setting))
    )
    return 1 - without_sending / seconds


def without_links(setting: Setting) -> Setting:
    """The setting with links on which sending takes no time."""
    link = Link(setting.machine.devices, 0.0, 1e300, False)
    return replace(setting, machine=changed(setting.machine, links=(link,)))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of numbers above 0."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))
