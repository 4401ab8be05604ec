"""Settings that the paper does not state and a reproduction has to choose, once for all points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from msgspec.structs import replace as changed

from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.presets import PRESETS
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given, SearchResult
from primepar.plan.search.sequence_space import SpaceName

LARGE: Final = 100e9
"""Parameters of the models that have a batch of their own."""


@dataclass(frozen=True)
class _Counting(Training):
    """Training in which each parameter counts as `counted` bytes."""

    counted: int = field(kw_only=True)

    def parameter(
        self,
        elements: float,
        whole: float,
        summed: Sequence[int],
        held: Sequence[int],
        tensors: int = 1,
    ) -> dict[str, float]:
        """Terms of a cost for a parameter: all that is kept of it counts as the parameter."""
        terms = super().parameter(elements, whole, summed, held, tensors)
        return terms | {"parameters": elements * self.counted, "gradients": 0.0, "states": 0.0}


@dataclass(frozen=True)
class Setting:
    """A step of sequences of `positions` tokens through one block, in one data type.

    `batch` is the number of sequences in figures 9 and 10. Figures 7 and 8 have `per_device`
    sequences for every device: the first number for models of up to 100 billion parameters, the
    second for larger ones. Where it is None they have `batch` too.

    `parameter` is the bytes of memory counted for each parameter: the paper's formula has the
    parameter itself and the stash, and neither gradients nor an optimizer. `scores` is the number
    of copies of the attention scores kept from forward to backward: in the paper's graph softmax
    and the product with the values are two operators, and each keeps what its backward reads. The
    time of these is not counted.
    """

    batch: int = 8
    per_device: tuple[float, float] | None = (2.0, 0.5)
    positions: int = 2048
    dtype: str = "float32"
    parameter: int = 4
    scores: int = 2
    blocks: int = 8
    """Blocks of a model that is cut into pipeline stages."""
    microbatches: int = 1
    """Of every replica of a pipeline."""
    machine: Cluster = field(default_factory=partial(load_cluster, "v100-8x4"))

    def model(self, name: str) -> ModelConfig:
        """One block of a model of the paper."""
        return replace(MODELS[name], layers=1, context=self.positions)

    def step(self, name: str, devices: int) -> int:
        """Number of sequences of a step in figures 7 and 8."""
        if self.per_device is None:
            return self.batch
        return int(self.per_device[MODELS[name].parameters > LARGE] * devices)

    def planner(
        self, name: str, devices: int, space: SpaceName = "paper", batch: int | None = None
    ) -> Planner:
        """The planner of a block on `devices` devices; `batch` None is that of figures 7 and 8."""
        self.machine.check_devices(devices)
        links = ClusterLinks(self.machine, devices.bit_length() - 1)
        training = _Counting(links, self.dtype, batch or self.step(name, devices), self.positions,
                             counted=self.parameter)  # fmt: skip
        return Planner(self.model(name), training, space, part="blocks")

    def memory(self, result: SearchResult) -> float:
        """Bytes of a device: those that the planner predicts, plus the scores."""
        training, planner = result.planner.training, result.planner
        scores = training.batch * training.positions**2 * planner.model.heads
        layouts = planner.catalogue.layouts
        share = sum(
            layouts.share(int(planner.options(name).leaves[number]))
            for name, number in result.choices.items()
            if planner.named[name].kind == "attention"
        )
        return result.memory + self.scores * scores * share * training.item


SETTING = Setting()
"""The setting of every point of the reproduction."""


def megatron(planner: Planner) -> dict[int, SearchResult]:
    """Megatron's plans by their degree of data parallelism, where sizes divide."""
    return dict(_megatron(planner))


def _megatron(planner: Planner) -> Iterator[tuple[int, SearchResult]]:
    devices, model = planner.training.links.devices, planner.model
    for copies in (1 << bits for bits in range(devices.bit_length())):
        parts = devices // copies
        whole = (planner.training.batch % copies, model.heads % parts, model.kv_heads % parts)
        if not any(whole):
            yield copies, Given.with_sequences(planner, megatron_sequences(planner, copies)).result


def megatron_sequences(planner: Planner, copies: int) -> dict[str, str]:
    """Sequences of Megatron's plan with `copies` data-parallel copies, operator by operator."""
    parts = planner.training.links.devices // copies
    roles = PRESETS["megatron"].roles(parts)
    sequences = {}
    for operator in planner.operators:
        elements = [f"M{copies}"] * (copies > 1) + [roles.of(operator)] * (parts > 1)
        sequences[operator.name] = ",".join(elements)
    return sequences


def other_settings() -> dict[str, Setting]:
    """The setting with one choice changed, and the setting that was tried first."""
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
