"""What the paper leaves out and a reproduction has to choose: once, for all of its points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from msgspec.structs import replace as changed

from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.presets import PRESETS
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.sequence_space import SpaceName

LARGE: Final = 100e9
"""Parameters of the models that have a batch of their own."""


@dataclass(frozen=True)
class _Counting(Training):
    """Training in which so many bytes count for each parameter."""

    counted: int

    @cached_property
    def kept(self) -> int:
        """Bytes at rest for each parameter."""
        return self.counted


@dataclass(frozen=True)
class Setting:
    """A step of sequences of `positions` tokens through one block, in one data type.

    `batch` are those of figures 9 and 10. Figures 7 and 8 have `per_device` for every device, of
    models of up to 100 billion parameters and of larger ones, or `batch` too where that is None.

    `parameter` is how many bytes of memory count for each parameter; the paper's formula has the
    parameter itself and what is stashed, and neither gradients nor an optimizer. `scores` says how
    many copies of the attention's scores are kept from forward to backward: the paper's graph has
    softmax and its product with the values as operators of their own, and each keeps what its
    backward reads. The time of these is not counted.
    """

    batch: int = 8
    per_device: tuple[float, float] | None = (2.0, 0.5)
    positions: int = 2048
    dtype: str = "float32"
    alpha: float = 0.0
    """Seconds for a byte."""
    parameter: int = 4
    scores: int = 2
    blocks: int = 8
    """Blocks of the models that are cut into pipeline stages."""
    microbatches: int = 1
    """Of every replica of a pipeline."""
    machine: Cluster = field(default_factory=partial(load_cluster, "v100-8x4"))

    def model(self, name: str) -> ModelConfig:
        """One block of a model of the paper."""
        return replace(MODELS[name], layers=1, context=self.positions)

    def step(self, name: str, devices: int) -> int:
        """Sequences of a step of figures 7 and 8."""
        if self.per_device is None:
            return self.batch
        return int(self.per_device[MODELS[name].parameters > LARGE] * devices)

    def planner(
        self, name: str, devices: int, space: SpaceName = "paper", batch: int | None = None
    ) -> Planner:
        """The planner of a block on so many devices; without a batch, of figures 7 and 8."""
        self.machine.check_devices(devices)
        wires = ClusterLinks(self.machine, devices.bit_length() - 1)
        training = _Counting(wires, self.dtype, batch or self.step(name, devices), self.positions,
                             self.parameter)  # fmt: skip
        return Planner(self.model(name), training, space, self.alpha, part="blocks")

    def memory(self, found: SearchResult) -> float:
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


def megatron(planner: Planner) -> dict[int, SearchResult]:
    """Megatron's plans by their data-parallel degree, those that the sizes allow."""
    return dict(_megatron(planner))


def _megatron(planner: Planner) -> Iterator[tuple[int, SearchResult]]:
    devices, model = planner.training.wires.devices, planner.model
    for copies in (1 << bits for bits in range(devices.bit_length())):
        parts = devices // copies
        whole = (planner.training.batch % copies, model.heads % parts, model.kv_heads % parts)
        if not any(whole):
            yield copies, Given.beside(planner, megatron_sequences(planner, copies)).found


def megatron_sequences(planner: Planner, copies: int) -> dict[str, str]:
    """Sequences of Megatron's plan with so many copies, operator by operator."""
    parts = planner.training.wires.devices // copies
    roles = PRESETS["megatron"].roles(parts)
    found = {}
    for operator in planner.operators:
        own = [f"M{copies}"] * (copies > 1) + [roles.of(operator)] * (parts > 1)
        found[operator.name] = ",".join(own)
    return found


def other_settings() -> dict[str, Setting]:
    """The setting with one choice changed, and the one that was tried first."""
    inner, outer = SETTING.machine.links
    rings = {stream: changed(SETTING.machine, links=(inner, changed(outer, stream=stream)))
             for stream in (2.5e9, 4.7e9, None)}  # fmt: skip
    return {
        "8 sequences": replace(SETTING, per_device=None),
        "16 sequences": replace(SETTING, per_device=None, batch=16),
        "1 sequence for every GPU": replace(SETTING, per_device=(1.0, 1.0)),
        "a ring alone reaches 2.5 GB/s": replace(SETTING, machine=rings[2.5e9]),
        "4.7 GB/s": replace(SETTING, machine=rings[4.7e9]),
        "6.6 GB/s, as several do": replace(SETTING, machine=rings[None]),
        "8 sequences, 4.7 GB/s, AdamW": replace(
            SETTING, per_device=None, machine=rings[4.7e9], parameter=16
        ),
        "AdamW: 16 bytes for each parameter": replace(SETTING, parameter=16),
        "gradients, and no optimizer: 8 bytes": replace(SETTING, parameter=8),
        "no scores kept": replace(SETTING, scores=0),
    }
