"""What a training run is told: one frozen struct, from the command line and into the log.

This module needs no torch: everything that can be said about bad settings is said before it loads.
"""

from __future__ import annotations

from math import isqrt, lcm
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from primepar.errors import ConfigError, MeshError
from primepar.models import GPTConfig
from primepar.partition import parse_sequence
from primepar.plan import Plan, RowCuts, load_plan
from primepar.schedule import Sequence

Dtype = Literal["float32", "float64", "bfloat16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]

BATCH = 8
"""Sequences of a step where neither the options nor a plan say."""
SIZES = ("layers", "hidden", "heads", "context", "vocabulary")
"""Settings of the model, GPTConfig's where neither the options nor a plan say."""
_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "seed": 0,
    "batch": 1,
    "vocabulary": 256,
    "warmup": 0,
    "evaluate_every": 0,
    "checkpoint_every": 0,
}


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of `primepar train`; raises `ConfigError` where one is out of range or alone.

    What a plan can say too is None where it is not given: then the plan says it, or a default does.
    """

    sequence: str | None = None
    plan: str | None = None
    steps: int = 100
    seed: int = 0
    data: str | None = None
    dtype: Dtype = "float32"
    device: DeviceChoice = "auto"
    batch: int | None = None
    lr: float = 1e-3
    warmup: int = 20
    clip: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    context: int | None = None
    vocabulary: int | None = None
    evaluate_every: int = 50
    log: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0
    resume: bool = False
    trace: str | None = None
    weights: str | None = None
    save_weights: str | None = None
    no_verify: bool = False
    conform: bool = False

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{_option(name)}: expected {least} or more, got {value}")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{_option(name)}: expected a positive number, got {value}")
        for name in ("resume", "checkpoint_every"):
            if getattr(self, name) and self.checkpoint is None:
                raise ConfigError(
                    f"{_option(name)}: expected a folder of checkpoints, got none: "
                    "add --checkpoint DIR"
                )
        if self.trace is not None and not self.trace.endswith((".svg", ".json")):
            raise ConfigError(
                f"--trace: expected a name that ends with .svg (a picture) or .json "
                f"(a Chrome trace), got {self.trace!r}"
            )
        if self.plan is not None:
            self._check_beside_plan()
        self.model  # noqa: B018  its own checks

    def _check_beside_plan(self) -> None:
        """Raise `ConfigError` for what every plan says, even where it would say the same."""
        said = {"sequence": "has one for every operator"} | dict.fromkeys(SIZES, "has a model")
        for name, why in said.items():
            value = getattr(self, name)
            if value is not None:
                raise ConfigError(
                    f"{_option(name)}: expected none beside --plan, which {why}, got {value}: "
                    "leave one of the two out"
                )

    @property
    def model(self) -> GPTConfig:
        """Sizes of the model of the options, over bytes."""
        sizes = {name: getattr(self, name) for name in SIZES}
        return GPTConfig(**{name: size for name, size in sizes.items() if size is not None})

    def layout(self, processes: int) -> Plan | Sequence:
        """The plan for exactly `processes` devices, or where there is none `mesh`.

        Raises `PlanError` where the plan is for another mesh or does not cut the batch,
        `ConfigError` where its model cannot read bytes, or both say a batch.
        """
        if self.plan is None:
            return self.mesh(processes)
        plan = load_plan(Path(self.plan))
        plan.check_ranks(processes)
        if plan.batch is None:
            plan.check_batch(self.sizes(plan)[0], plan.model.context)
        elif self.batch is not None:
            raise ConfigError(
                f"--batch: expected none beside --plan, which has a batch of {plan.batch}, got "
                f"{self.batch}: leave it out, or take a plan for this one"
            )
        if plan.model.vocabulary < _AT_LEAST["vocabulary"]:
            raise ConfigError(
                f"--plan {self.plan}: expected a model with a vocabulary of 256 or more, "
                f"one entry for each byte, got {plan.model.vocabulary}: take another model"
            )
        return plan

    def sizes(self, layout: Plan | Sequence) -> tuple[int, int]:
        """Sequences of a batch and tokens of each."""
        batch = BATCH if self.batch is None else self.batch
        if isinstance(layout, Sequence):
            return batch, self.model.context
        return layout.batch or batch, layout.model.context

    def mesh(self, processes: int) -> Sequence:
        """Sequence over exactly `processes` devices that fits the model.

        By default P{s}x{s} on s * s processes. Raises `MeshError`, or `ConfigError` where a size
        is not a multiple of the slices that it is cut into.
        """
        sequence = parse_sequence(self._sequence_text(processes))
        if sequence.ranks != processes:
            raise MeshError(
                f"sequence {sequence}: expected {sequence.ranks} processes, got {processes}: start "
                f"{sequence.ranks} (--ranks {sequence.ranks}, or mpirun -n {sequence.ranks}), or "
                f"choose a sequence of {processes}, --sequence {examples(processes)}"
            )
        self._check_divided(sequence)
        return sequence

    def _check_divided(self, sequence: Sequence) -> None:
        """Whole sequences or parts of one on a device, whole heads, equal slices of all else."""
        rows, inputs, columns = (sequence.grid[dim] for dim in ("M", "N", "K"))
        model, cuts = self.model, RowCuts(rows, {f"sequence {sequence}": rows})
        refusal = cuts.refusal(self.sizes(sequence)[0], model.context)
        if refusal is not None:
            raise ConfigError(f"--batch: {refusal}, or another --sequence")
        divided = {
            "heads": (model.heads, columns),
            "hidden": (model.hidden, lcm(inputs, columns)),
            "vocabulary": (model.vocabulary, columns),
        }
        for name, (size, slices) in divided.items():
            if size % slices:
                raise ConfigError(
                    f"{_option(name)}: expected a multiple of {slices} for sequence {sequence}, "
                    f"got {size}: take {-(-size // slices) * slices}, or another --sequence"
                )

    def _sequence_text(self, processes: int) -> str:
        if self.sequence is not None:
            return self.sequence
        side = isqrt(processes)
        if side * side != processes:
            raise MeshError(
                f"processes: expected a square number for the default sequence, got {processes}: "
                f"choose one of {processes} devices, --sequence {examples(processes)}"
            )
        return f"P{side}x{side}"

    def arguments(self) -> list[str]:
        """The options that give these settings again, defaults left out."""
        words: list[str] = []
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words += [_option(field.name)] + ([] if value is True else [str(value)])
        return words


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def examples(devices: int) -> str:
    """A few sequences over exactly `devices` devices, the way a message lists them."""
    names = [f"{label}{devices}" for label in "KNM"]
    side = isqrt(devices)
    if side * side == devices:
        names.insert(0, f"P{side}x{side}")
    factor = next((f for f in range(2, side + 1) if devices % f == 0), None)
    if factor is not None:
        names.append(f"M{factor},K{devices // factor}")
    return f"{', '.join(names[:-1])} or {names[-1]}"
