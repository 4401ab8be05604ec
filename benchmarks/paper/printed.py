"""Numbers of the paper: Table 2 and the bars of figures 2 and 7 to 10, with their sources.

Labels printed in a figure are exact to their last digit. Heights of bars measured in the PDF are
accurate to about 0.01 of the figure's unit.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from primepar.plan.search.splits import Split

DEVICES: Final = (4, 8, 16, 32)
"""Numbers of GPUs of Table 2 and of figures 7 and 8."""
NAMES: Final = MappingProxyType(
    {
        "opt-6.7b": "OPT 6.7B",
        "opt-175b": "OPT 175B",
        "llama-2-7b": "Llama 2 7B",
        "llama-2-70b": "Llama 2 70B",
        "bloom-7b1": "BLOOM 7B1",
        "bloom-176b": "BLOOM 176B",
    }
)
"""Models of `primepar.models.sizes`, as the paper calls them."""

TABLE_2: Final = MappingProxyType(
    {
        "OPT": (85.3, 86.5, 170.9, 5357.3),
        "Llama 2": (86.5, 88.8, 185.9, 6070.3),
        "BLOOM": (85.4, 80.2, 165.8, 4153.0),
    }
)
"""Printed: milliseconds of the search for 4, 8, 16 and 32 GPUs, one thread of a Xeon Gold 5218."""

FIGURE_2: Final = MappingProxyType({"opt-6.7b": 0.415, "llama-2-70b": 0.384, "bloom-176b": 0.646})
"""Printed: share of all-reduces in a step of Megatron on 16 GPUs, in 4 copies, one in each node."""

FIGURE_7: Final = MappingProxyType(
    {
        "opt-6.7b": (1.16, 1.18, 1.16, 1.20),
        "opt-175b": (1.11, 1.35, 1.38, 1.39),
        "llama-2-7b": (1.16, 1.19, 1.20, 1.21),
        "llama-2-70b": (1.15, 1.21, 1.24, 1.26),
        "bloom-7b1": (1.15, 1.18, 1.18, 1.19),
        "bloom-176b": (1.11, 1.43, 1.68, 1.60),
    }
)
"""Printed: throughput over Megatron's, by the number of GPUs."""

FIGURE_8: Final = MappingProxyType(
    {
        "opt-6.7b": (0.89, 0.90, 0.93, 0.93),
        "opt-175b": (0.92, 0.80, 0.80, 0.79),
        "llama-2-7b": (0.90, 0.91, 0.93, 0.92),
        "llama-2-70b": (0.91, 0.88, 0.91, 0.89),
        "bloom-7b1": (0.89, 0.90, 0.93, 0.92),
        "bloom-176b": (0.92, 0.78, 0.69, 0.68),
    }
)
"""Printed: peak memory over Megatron's, by the number of GPUs."""


class Collectives(NamedTuple):
    """A group of bars of figure 9, left: an MLP under Megatron's plan and PrimePar's.

    `ratio` is printed: collective latency over Megatron's. `computing` is measured in the figure:
    the share of Megatron's time outside collectives.
    """

    model: str
    devices: int
    batch: int
    ratio: float
    computing: float


FIGURE_9: Final = (
    Collectives("opt-175b", 8, 8, 0.346, 0.547),
    Collectives("opt-175b", 8, 16, 0.622, 0.694),
    Collectives("llama-2-70b", 8, 8, 0.512, 0.528),
    Collectives("llama-2-70b", 8, 16, 0.591, 0.655),
    Collectives("opt-175b", 16, 8, 0.222, 0.258),
    Collectives("opt-175b", 16, 16, 0.199, 0.412),
    Collectives("llama-2-70b", 16, 8, 0.365, 0.373),
    Collectives("llama-2-70b", 16, 16, 0.230, 0.482),
)
FIGURE_9_MLP: Final = MappingProxyType(
    {
        "Megatron": (167, 168, 24, 165, 166, 364, 162, 164, 41, 377),
        "PrimePar": (81, 81, 82, 82, 157, 80, 88, 81, 88, 85, 82, 86, 82, 128),
    }
)
"""Printed, figure 9, right: milliseconds of the MLP of OPT-175B, 8 GPUs, batch 8, in order.

The redistribution of PrimePar's plan is drawn small and has no label.
"""

SPLITS: Final = (
    Split(2, 1, 16), Split(2, 2, 8), Split(2, 4, 4), Split(4, 1, 8), Split(4, 2, 4), Split(8, 1, 4),
)  # fmt: skip
"""Splits of 32 GPUs in figure 10."""


class Throughputs(NamedTuple):
    """Bars of one model in figure 10 by `SPLITS`, over Megatron's first; None is not drawn."""

    megatron: tuple[float | None, ...]
    primepar: tuple[float, ...]


FIGURE_10: Final = MappingProxyType(
    {
        "opt-6.7b": Throughputs(
            (1.00, 1.30, 1.87, 1.21, 1.56, 1.40), (1.24, 1.72, 1.88, 1.60, 1.57, 1.41)
        ),
        "opt-175b": Throughputs(
            (1.00, 0.94, 0.66, 0.87, 0.55, 0.50), (1.46, 1.16, 0.67, 1.08, 0.56, 0.51)
        ),
        "llama-2-7b": Throughputs(
            (1.00, 1.25, 1.87, 1.16, 1.56, 1.41), (1.47, 1.72, 1.89, 1.60, 1.58, 1.42)
        ),
        "llama-2-70b": Throughputs(
            (None, 1.00, 0.87, 0.93, 0.72, 0.65), (1.25, 1.26, 0.91, 1.17, 0.76, 0.68)
        ),
        "bloom-7b1": Throughputs(
            (1.00, 1.32, 1.89, 1.23, 1.57, 1.42), (1.36, 1.82, 1.90, 1.69, 1.59, 1.43)
        ),
        "bloom-176b": Throughputs(
            (1.00, 0.88, 0.58, 0.82, 0.48, 0.44), (1.40, 1.11, 0.61, 1.03, 0.51, 0.46)
        ),
    }
)
"""Measured in the figure: throughput over Megatron's at (2, 1, 16), Llama 2 70B's at (2, 2, 8)."""
