"""Activations of a layer, as the planner counts them, next to Korthikanti et al., Table 2.

The formulas are in bytes over s b h, for t devices, where attention keeps no scores: they are
computed again. They include masks of dropout, which the planner's models here do not have. They
keep the inputs of both norms in 2 bytes; here those are kept in float32, so 4 s b h more.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.external.predicted import DTYPE, cluster, model, priced_by
from benchmarks.external.published import RUNS, TOKENS, TrainingRun
from primepar.plan.search.splits import Split, Splits
from primepar.plan.search.stage_cost import Recompute, TrainingOptions


class LayerMemory(NamedTuple):
    """One configuration of a model: bytes of a layer over s b h."""

    name: str
    configuration: str
    formula: float
    masks: float
    """The part of the formula that is masks."""
    norms: float
    """What the inputs of norms take here beyond the formula."""
    counted: float


def layer_memory() -> list[LayerMemory]:
    """Rows for every model of Korthikanti et al."""
    rows = []
    for run in RUNS:
        if run.paper == "Korthikanti" and run.recomputed == "all":
            t = run.tensor
            name = run.name.split()[0]
            rows += [
                LayerMemory(name, "tensor, selective", 10 + 24 / t, 2, 4,
                            _counted(run, "megatron", "none")),
                LayerMemory(name, "tensor, sequence, selective", 34 / t, 2 / t, 4 / t,
                            _counted(run, "megatron-sp", "none")),
                LayerMemory(name, "full recomputation", 2, 0, 0, _counted(run, "megatron", "full")),
            ]  # fmt: skip
    return rows


def _counted(run: TrainingRun, method: str, recompute: Recompute) -> float:
    """What one more layer adds to the stash of a micro-batch on a device, over s b h."""
    size = run.micro_batch or 1
    two, three = (_stash(run, size, method, recompute, layers) for layers in (2, 3))
    return (three - two) / (TOKENS * size * run.hidden)


def _stash(run: TrainingRun, size: int, method: str, recompute: Recompute, layers: int) -> float:
    on = cluster(run.hidden // run.heads)
    splits = Splits(model(run, layers), on, run.tensor, size, DTYPE)
    split, options = Split(1, 1, run.tensor), TrainingOptions(recompute=recompute)
    return priced_by(splits, split, size, method, options).stage_bytes[0].stash
