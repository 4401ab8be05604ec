"""The settings of a training run: one frozen struct, which is also written to the log.

This module does not import torch, so that wrong settings are refused before torch is loaded.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from primepar.distributed.training.memory_size import memory_bytes
from primepar.distributed.training.optimizer_settings import HALF
from primepar.distributed.training.output_settings import OutputSettings
from primepar.distributed.training.setting_description import described as _at
from primepar.errors import ConfigError
from primepar.models import GPTConfig, ModelConfig
from primepar.operators.step_options import StepOptions
from primepar.plan.cost.chunks import MOST_CHUNKS

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
Recompute = Literal["none", "selective", "full"]

BATCH = 8
"""Sequences of a step where neither the settings nor a plan have them."""
TIMEOUT = 60.0
"""Seconds that a rank waits for another one."""
SIZES = ("layers", "hidden", "heads", "context", "vocabulary")
"""Settings of the model, GPTConfig's where neither the settings nor a plan have them."""
OPTIONS = (
    "plan", "steps", "data", "checkpoint", "resume", "override", "timeout", "save_before",
)  # fmt: skip
"""Settings that are options of the command too."""
LEAST_VOCABULARY = 256
"""An entry for each byte."""
_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "seed": 0,
    "batch": 1,
    "accumulate": 1,
    "vocabulary": LEAST_VOCABULARY,
    "average_every": 1,
    "average_after": 0,
    "evaluate_every": 0,
    "evaluate_batches": 0,
    "checkpoint_every": 0,
    "keep": 0,
}


class Settings(OutputSettings, frozen=True, kw_only=True):
    """Settings of `primepar train`.

    A setting that a plan file has too is None if it is not given: then the value of the plan is
    used, or a default. Raises `ConfigError` for a setting out of range, or one that needs another.
    """

    plan: Annotated[
        str | None,
        _at("parallelism.plan", "a plan file (.json), or a sequence for every linear operator",
            "P{s}x{s} on s * s processes"),
    ] = None  # fmt: skip
    chunks: Annotated[
        int | None,
        _at("parallelism.chunks", "chunks of a transfer and of the product next to it", "whole"),
    ] = None
    steps: Annotated[int, _at("training.steps", "training steps")] = 100
    batch: Annotated[
        int | None, _at("training.batch", "sequences of a step", f"the plan's, or {BATCH}")
    ] = None
    accumulate: Annotated[
        int, _at("training.accumulate", "micro-batches of a step, whose gradients are added")
    ] = 1
    recompute: Annotated[
        Recompute,
        _at("training.recompute", "activations that backward computes again: cheap ones, or all"),
    ] = "none"
    seed: Annotated[int, _at("training.seed", "seed of weights and batches")] = 0
    data: Annotated[
        str | None,
        _at("training.data",
            "text, read as bytes; the last tenth is held out; or tokens (.bin)",
            "the standard library's sources"),
    ] = None  # fmt: skip
    dtype: Annotated[Dtype, _at("training.dtype", "type of weights and activations")] = "float32"
    device: Annotated[
        DeviceChoice, _at("training.device", "auto is a GPU for each process where there is CUDA")
    ] = "auto"
    layers: Annotated[int | None, _at("model.layers", "transformer blocks", "the plan's, or 4")] = (
        None
    )
    hidden: Annotated[
        int | None, _at("model.hidden", "width of the model", "the plan's, or 192")
    ] = None
    heads: Annotated[int | None, _at("model.heads", "attention heads", "the plan's, or 4")] = None
    context: Annotated[
        int | None, _at("model.context", "tokens of a sequence", "the plan's, or 128")
    ] = None
    vocabulary: Annotated[
        int | None,
        _at(
            "model.vocabulary",
            "entries; above the data's the rest is padding",
            "the plan's, or the data's",
        ),
    ] = None
    average_every: Annotated[
        int | None,
        _at("averaging.every", "local steps of each replica between two averages",
            "gradients are averaged in every step"),
    ] = None  # fmt: skip
    average_after: Annotated[
        int, _at("averaging.after", "synchronous steps before the first local one")
    ] = 0
    evaluate_every: Annotated[
        int, _at("evaluation.every", "steps between evaluations; 0: only at the end")
    ] = 50
    evaluate_batches: Annotated[
        int, _at("evaluation.batches", "batches of an evaluation; 0: all that is held out")
    ] = 8
    checkpoint: Annotated[
        str | None, _at("checkpoint.folder", "write checkpoints into this folder", "none")
    ] = None
    checkpoint_every: Annotated[
        int, _at("checkpoint.every", "steps between checkpoints; 0: only at the end")
    ] = 0
    keep: Annotated[
        int, _at("checkpoint.keep", "keep this many checkpoints, the last ones; 0: all")
    ] = 3
    asynchronous: Annotated[
        bool,
        _at("checkpoint.asynchronous",
            "write while the training goes on, from a copy of the state in host memory"),
    ] = True  # fmt: skip
    resume: Annotated[
        bool, _at("checkpoint.resume", "continue from the last checkpoint, on any mesh")
    ] = False
    override: Annotated[
        bool, _at("checkpoint.override", "resume even if settings differ from the checkpoint's")
    ] = False
    weights: Annotated[
        str | None,
        _at(
            "weights.load",
            "begin with these: a safetensors file, or a Hugging Face folder",
            "drawn by the seed",
        ),
    ] = None
    save_weights: Annotated[
        str | None,
        _at(
            "weights.save",
            "write the final weights: a .safetensors file, or a folder for transformers",
            "none",
        ),
    ] = None
    timeout: Annotated[
        float, _at("faults.timeout", "seconds that a rank waits for another one before it ends")
    ] = TIMEOUT
    save_before: Annotated[
        float | None,
        _at("faults.save_before", "save and end this many seconds before the time limit", "never"),
    ] = None
    time_limit: Annotated[
        float | None,
        _at("faults.time_limit", "seconds from the start to the time limit",
            "that of the SLURM job"),
    ] = None  # fmt: skip
    device_memory: Annotated[
        str | None,
        _at("executor.device_memory",
            "bytes that blocks take on each device, like 512MiB; states are in host memory",
            "no limit"),
    ] = None  # fmt: skip
    verify: Annotated[bool, _at("checks.verify", "prove the program before the first step")] = True
    conform: Annotated[
        bool, _at("checks.conform", "compare what every rank does with the program, at every step")
    ] = False

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{shown(name)}: expected {least} or more, got {value}")
        if self.chunks is not None and not 1 <= self.chunks <= MOST_CHUNKS:
            raise ConfigError(
                f"{shown('chunks')}: expected a number from 1 to {MOST_CHUNKS}, got {self.chunks}"
            )
        for name in ("timeout", "save_before", "time_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{shown(name)}: expected a positive number, got {value}")
        for name in ("resume", "override", "checkpoint_every"):
            if getattr(self, name) and self.checkpoint is None:
                raise ConfigError(
                    f"{shown(name)}: expected a folder of checkpoints, got none: "
                    "add --checkpoint DIR"
                )
        self._check_averaging()
        self.check_optimizer(self.steps, self.dtype)
        self.check_output(self.conform)
        if self.plan_file is not None:
            self._check_model_of_plan()
        self.model  # noqa: B018  its own checks

    def _check_averaging(self) -> None:
        if self.average_after and self.average_every is None:
            raise ConfigError(
                "averaging.after: expected a period of averages, got none: add --set "
                "averaging.every=H"
            )
        if self.average_every is not None and self.dtype == "float16":
            raise ConfigError(
                "averaging.every: expected none with training.dtype float16, whose replicas would "
                f"skip different steps, got {self.average_every}: take bfloat16"
            )

    def check_device_memory(self) -> None:
        """Raise `ConfigError` for a limit together with what it does not cover."""
        if self.device_bytes is not None and self.average_every is not None:
            raise ConfigError(
                f"{shown('device_memory')}: expected none together with averaging.every, whose "
                f"averages are of blocks on the device, got {self.device_memory}: leave one of the "
                "two out"
            )
        if self.device_bytes is not None and self.dtype in HALF:
            raise ConfigError(
                f"{shown('device_memory')}: expected none with training.dtype {self.dtype}, whose "
                f"sums have wider elements, got {self.device_memory}: take float32"
            )

    @property
    def has_masters(self) -> bool:
        """Whether copies of the parameters in float32 are updated."""
        return self.masters and self.dtype in HALF

    def step_options(self, device_elements: int | None) -> StepOptions:
        """Return how the steps of a run are lowered, under a limit of device memory or without."""
        return StepOptions(
            self.clip,
            self.optimizer,
            self.chunks,
            device_elements,
            masters=self.has_masters,
            skips=self.dtype == "float16",
            adamw=self.adamw,
        )

    @property
    def device_bytes(self) -> int | None:
        """The limit of device memory in bytes, None without one. Raises `ConfigError`."""
        if self.device_memory is None:
            return None
        return memory_bytes(shown("device_memory"), self.device_memory)

    def _check_model_of_plan(self) -> None:
        """Raise `ConfigError` for a size that the model of the plan has, even if it is the same."""
        for name in SIZES:
            value = getattr(self, name)
            if value is not None:
                raise ConfigError(
                    f"{shown(name)}: expected none together with the plan file {self.plan}, which "
                    f"has a model, got {value}: leave one of the two out"
                )

    @property
    def plan_file(self) -> Path | None:
        """The path of a plan file, None if the plan is a sequence or not given."""
        if self.plan is None:
            return None
        path = Path(self.plan)
        is_file = path.is_file() and path.suffix != ".py"
        return path if path.suffix == ".json" or is_file else None

    @property
    def model(self) -> ModelConfig:
        """The model with the sizes of the settings."""
        sizes = {name: getattr(self, name) for name in SIZES}
        return GPTConfig(**{name: size for name, size in sizes.items() if size is not None})


def shown(name: str) -> str:
    """Return a setting's name in messages: `--steps` for an option, else `optimizer.lr`."""
    return f"--{name.replace('_', '-')}" if name in OPTIONS else key_of(name)


def key_of(name: str) -> str:
    """Return section and key of a setting in a file, like `optimizer.lr`."""
    return str(meta_of(name).extra["key"])


@cache
def meta_of(name: str) -> Any:
    """Return the description of a setting, with its key and its default in words as `extra`."""
    field = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
    return get_args(field.type)[1]
