"""What the paper leaves out and a reproduction has to choose: once, for all of its points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.ready import READY
from primepar.plan.search.given import Given
from primepar.plan.search.planner import Found, Planner
from primepar.plan.search.space import SpaceName


@dataclass(frozen=True)
class Setting:
    """A step of `batch` sequences of `positions` tokens through one block, in one data type.

    `scores` says how many copies of the attention's scores are kept from forward to backward: the
    paper's graph has softmax and its product with the values as operators of their own, and each
    keeps what its backward reads. The time of these is not counted.
    """

    batch: int = 8
    positions: int = 2048
    dtype: str = "float32"
    alpha: float = 0.0
    """Seconds for a byte."""
    scores: int = 2
    blocks: int = 8
    """Blocks of the models that are cut into pipeline stages."""
    microbatches: int = 1
    """Of every replica of a pipeline."""
    machine: Cluster = field(default_factory=partial(load_cluster, "v100-8x4"))

    def model(self, name: str) -> ModelConfig:
        """One block of a model of the paper."""
        return replace(MODELS[name], layers=1, context=self.positions)

    def planner(self, name: str, devices: int, space: SpaceName = "paper") -> Planner:
        """The planner of a block on so many devices."""
        return Planner.of(self.model(name), self.machine, devices, self.batch, self.dtype, space,
                          self.alpha, part="blocks")  # fmt: skip

    def memory(self, found: Found) -> float:
        """Bytes of a device: what the planner predicts, and the scores."""
        training, planner = found.planner.training, found.planner
        scores = training.batch * training.positions**2 * planner.model.heads
        layouts = planner.catalogue.layouts
        share = sum(
            layouts.share(int(planner.options(name).leaves[at]))
            for name, at in found.choices.items()
            if planner.named[name].kind == "attention"
        )
        return found.memory + self.scores * scores * share * training.item


SETTING = Setting()
"""The setting of every point of the reproduction."""


def megatron(planner: Planner) -> dict[int, Found]:
    """Megatron's plans by their data-parallel degree, those that the sizes allow."""
    return dict(_megatron(planner))


def _megatron(planner: Planner) -> Iterator[tuple[int, Found]]:
    devices, model = planner.training.wires.devices, planner.model
    for copies in (1 << bits for bits in range(devices.bit_length())):
        parts = devices // copies
        whole = (planner.training.batch % copies, model.heads % parts, model.kv_heads % parts)
        if not any(whole):
            yield copies, Given.beside(planner, megatron_sequences(planner, copies)).found


def megatron_sequences(planner: Planner, copies: int) -> dict[str, str]:
    """Sequences of Megatron's plan with so many copies, operator by operator."""
    parts = planner.training.wires.devices // copies
    roles = READY["megatron"].roles(parts)
    found = {}
    for operator in planner.operators:
        own = [f"M{copies}"] * (copies > 1) + [roles.of(operator)] * (parts > 1)
        found[operator.name] = ",".join(own)
    return found
