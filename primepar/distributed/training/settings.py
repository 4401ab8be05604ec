"""The settings of a training run: one table, which is also written to the log.

From it follow the keys of a settings file, `--set`, what `--show-config` prints, and the checks of
single values. This module does not import torch, so that wrong settings are refused before torch
is loaded.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from math import cos, pi
from pathlib import Path
from sys import float_info
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from primepar.errors import ConfigError
from primepar.models import GPTConfig, ModelConfig
from primepar.operators.optimizers import AdamWConstants
from primepar.operators.step_options import StepOptions
from primepar.passes.chunk_transfers import MOST_CHUNKS

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]

BATCH = 8
"""Sequences of a step where neither the settings nor a plan have them."""
TIMEOUT = 60.0
"""Seconds that a rank waits for another one."""
LOSS_SCALE = 2.0**16
"""The first scale of the loss in float16, as of torch.amp.GradScaler."""
HALF = ("bfloat16", "float16")
"""Types of weights that have copies in float32."""
SIZES = ("layers", "hidden", "heads", "context", "vocabulary")
"""Settings of the model, GPTConfig's where neither the settings nor a plan have them."""
OPTIONS = (
    "plan", "steps", "data", "checkpoint", "resume", "timeout", "save_before", "verbose",
)  # fmt: skip
"""Settings that are options of the command too."""
TOKENS = ".bin"
"""How the name of a file of tokens ends; any other file is text."""
LEAST_VOCABULARY = 256
"""An entry for each byte."""
_NEEDS = (
    ("resume", "checkpoint", "a folder of checkpoints", "--checkpoint DIR"),
    ("override", "checkpoint", "a folder of checkpoints", "--checkpoint DIR"),
    ("checkpoint_every", "checkpoint", "a folder of checkpoints", "--checkpoint DIR"),
    ("average_after", "average_every", "a period of averages", "--set averaging.every=H"),
    ("time_limit", "save_before", "the seconds to save in too", "--save-before SECONDS"),
)
"""A setting, another one that it needs, that one in words, and what to write."""
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(I?)B|B)?"
"""A number of bytes, the letter of its unit, and whether that is a power of 1024."""
# Of a number, the range in words is what its type describes.
Count = Annotated[int, Meta(ge=1, description="an integer of 1 or more")]
Natural = Annotated[int, Meta(ge=0, description="an integer of 0 or more")]
Chunks = Annotated[
    int, Meta(ge=1, le=MOST_CHUNKS, description=f"an integer from 1 to {MOST_CHUNKS}")
]
Entries = Annotated[
    int, Meta(ge=LEAST_VOCABULARY, description=f"an integer of {LEAST_VOCABULARY} or more")
]
Positive = Annotated[float, Meta(gt=0, le=float_info.max, description="a positive number")]
NotNegative = Annotated[float, Meta(ge=0, le=float_info.max, description="a number of 0 or more")]
Share = Annotated[float, Meta(ge=0, lt=1, description="a number of 0 or more, less than 1")]
TraceName = Annotated[str, Meta(pattern=r"\.(svg|json)$", description="a name that ends with .svg "
                                "(a picture) or .json (a Chrome trace)")]  # fmt: skip
Size = Annotated[str, Meta(pattern=rf"(?i)^(?=[\d.]*[1-9]){_SIZE}$", description="bytes above 0, "
                           "as a number or like 512MiB, 64KiB or 2GB")]  # fmt: skip
_KINDS: dict[type, str] = {int: "an integer", str: "a string", bool: "true or false"}


def _at(key: str, meaning: str, otherwise: str = "") -> Meta:
    """Describe a setting: its key in a file, its meaning, and its default where that is None."""
    return Meta(description=meaning, extra={"key": key, "otherwise": otherwise})


# fmt: off
class Settings(Struct, frozen=True, kw_only=True):
    """Settings of `primepar train`.

    A setting that a plan file has too is None if it is not given: then the value of the plan is
    used, or a default. Raises `ConfigError` for a setting out of range, or one that needs another.
    """

    plan: Annotated[str | None, _at("parallelism.plan",
        "a plan file (.json), or one sequence for every linear operator, like K,P2x2",
        "P{s}x{s} on s * s processes")] = None
    chunks: Annotated[Chunks | None, _at("parallelism.chunks",
        "chunks of a transfer and of the product next to it", "whole")] = None
    steps: Annotated[Count, _at("training.steps", "training steps")] = 100
    batch: Annotated[Count | None, _at("training.batch",
        "sequences of a step", f"the plan's, or {BATCH}")] = None
    accumulate: Annotated[Count, _at("training.accumulate",
        "micro-batches of a step, whose gradients are added")] = 1
    recompute: Annotated[Literal["none", "selective", "full"], _at("training.recompute",
        "activations that backward computes again: cheap ones, or all")] = "none"
    seed: Annotated[Natural, _at("training.seed", "seed of weights and batches")] = 0
    data: Annotated[str | None, _at("training.data",
        "text: a file, a folder or '*.txt'; the last tenth is held out; or tokens (.bin)",
        "the standard library's sources")] = None
    tokenizer: Annotated[str | None, _at("training.tokenizer",
        "a tokenizer.json, or entries of one to train on the text", "the text is bytes")] = None
    dtype: Annotated[Dtype, _at("training.dtype", "type of weights and activations")] = "float32"
    device: Annotated[DeviceChoice, _at("training.device",
        "auto is a GPU for each process where there is CUDA")] = "auto"

    layers: Annotated[Count | None, _at("model.layers",
        "transformer blocks", "the plan's, or 4")] = None
    hidden: Annotated[Count | None, _at("model.hidden",
        "width of the model", "the plan's, or 192")] = None
    heads: Annotated[Count | None, _at("model.heads", "attention heads", "the plan's, or 4")] = None
    context: Annotated[Count | None, _at("model.context",
        "tokens of a sequence", "the plan's, or 128")] = None
    vocabulary: Annotated[Entries | None, _at("model.vocabulary",
        "entries; above the data's the rest is padding", "the plan's, or the data's")] = None

    optimizer: Annotated[Literal["adamw", "sgd"], _at("optimizer.name",
        "AdamW, or plain SGD without moments")] = "adamw"
    lr: Annotated[Positive, _at("optimizer.lr", "learning rate after the warm-up")] = 1e-3
    warmup: Annotated[Natural, _at("optimizer.warmup", "steps of the warm-up")] = 20
    schedule: Annotated[Literal["constant", "linear", "cosine"], _at("optimizer.schedule",
        "rate after the warm-up: constant, or falling")] = "constant"
    lr_min: Annotated[NotNegative, _at("optimizer.lr_min",
        "rate at the end of a falling schedule")] = 0.0
    decay_steps: Annotated[int | None, _at("optimizer.decay_steps",
        "step at which it reaches optimizer.lr_min", "training.steps")] = None
    beta1: Annotated[Share, _at("optimizer.beta1", "AdamW: weight of the old first moment")] = 0.9
    beta2: Annotated[Share, _at("optimizer.beta2", "AdamW: weight of the old second moment")] = 0.95
    epsilon: Annotated[Positive, _at("optimizer.epsilon",
        "AdamW: added to the root of the second moment")] = 1e-8
    weight_decay: Annotated[NotNegative, _at("optimizer.weight_decay",
        "AdamW: decay of the weights of linear layers")] = 0.1
    clip: Annotated[Positive | None, _at("optimizer.clip",
        "scale gradients of a larger norm down to this one", "any norm")] = None
    sharded: Annotated[bool, _at("optimizer.sharded",
        "replicas of a block share its moments and update (ZeRO-1)")] = False
    masters: Annotated[bool, _at("optimizer.masters",
        "in half precision, update copies of the parameters in float32")] = True
    loss_scale: Annotated[Positive | None, _at("optimizer.loss_scale",
        "first scale of the loss in float16", f"{LOSS_SCALE:.0f} in float16")] = None
    loss_scale_every: Annotated[Count, _at("optimizer.loss_scale_every",
        "good steps after which the scale is doubled")] = 2000

    average_every: Annotated[Count | None, _at("averaging.every",
        "local steps of each replica between two averages",
        "gradients are averaged in every step")] = None
    average_after: Annotated[Natural, _at("averaging.after",
        "synchronous steps before the first local one")] = 0

    evaluate_every: Annotated[Natural, _at("evaluation.every",
        "steps between evaluations; 0: only at the end")] = 50
    evaluate_batches: Annotated[Natural, _at("evaluation.batches",
        "batches of an evaluation; 0: all that is held out")] = 8

    checkpoint: Annotated[str | None, _at("checkpoint.folder",
        "write checkpoints into this folder", "none")] = None
    checkpoint_every: Annotated[Natural, _at("checkpoint.every",
        "steps between checkpoints; 0: only at the end")] = 0
    keep: Annotated[Natural, _at("checkpoint.keep",
        "keep this many checkpoints, the last ones; 0: all")] = 3
    asynchronous: Annotated[bool, _at("checkpoint.asynchronous",
        "write while the training goes on, from a copy of the state in host memory")] = True
    resume: Annotated[bool, _at("checkpoint.resume",
        "continue from the last checkpoint, on any mesh")] = False
    override: Annotated[bool, _at("checkpoint.override",
        "resume even if settings differ from the checkpoint's")] = False

    weights: Annotated[str | None, _at("weights.load",
        "begin with these: a safetensors file, or a Hugging Face folder",
        "drawn by the seed")] = None
    save_weights: Annotated[str | None, _at("weights.save",
        "write the final weights: a .safetensors file, or a folder for transformers",
        "none")] = None

    log: Annotated[str | None, _at("output.log",
        "write the log here, as JSON lines", "none")] = None
    trace: Annotated[TraceName | None, _at("output.trace",
        "write the timeline of one step: .svg, or .json for Perfetto", "none")] = None
    tensorboard: Annotated[str | None, _at("output.tensorboard",
        "write curves for TensorBoard into this folder", "none")] = None
    verbose: Annotated[bool, _at("output.verbose",
        "print at which file of the reading path the run is")] = False
    peak_tflops: Annotated[Positive | None, _at("output.peak_tflops",
        "what a device can do, in 10^12 operations a second, for MFU",
        "from the name of the GPU, if known")] = None

    timeout: Annotated[Positive, _at("faults.timeout",
        "seconds that a rank waits for another one before it ends")] = TIMEOUT
    save_before: Annotated[Positive | None, _at("faults.save_before",
        "save and end this many seconds before the time limit", "never")] = None
    time_limit: Annotated[Positive | None, _at("faults.time_limit",
        "seconds from the start to the time limit", "that of the SLURM job")] = None

    device_memory: Annotated[Size | None, _at("executor.device_memory",
        "bytes that blocks take on each device, like 512MiB; states are in host memory",
        "no limit")] = None

    verify: Annotated[bool, _at("checks.verify", "prove the program before the first step")] = True
    conform: Annotated[bool, _at("checks.conform",
        "compare what every rank does with the program, at every step")] = False
    # fmt: on

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            of_type(shown(name), name, getattr(self, name), str(getattr(self, name)))
        for name, needed, what, instead in _NEEDS:
            if getattr(self, name) and getattr(self, needed) is None:
                raise ConfigError(f"{shown(name)}: expected {what}, got none: add {instead}")
        constant, both = self.schedule == "constant", "leave one of the two out"
        falling = "add --set optimizer.schedule=cosine, or linear"
        # A setting, what it does not fit if that is so, the reason, what to write instead.
        conflicts: list[tuple[str, bool, str, str]] = [
            ("average_every", self.dtype == "float16", "with training.dtype float16, whose "
             "replicas would skip different steps", "take bfloat16"),
            ("loss_scale", self.dtype != "float16", f"with training.dtype {self.dtype}, whose "
             "gradients have the range of float32", "leave it out, or take float16"),
            ("lr_min", constant, "with optimizer.schedule constant", falling),
            ("decay_steps", constant, "with optimizer.schedule constant", falling),
            ("tokenizer", (self.data or "").endswith(TOKENS),
             f"with {self.data}, which has tokens", both),
            ("trace", self.conform, "together with checks.conform, which watches every step "
             "itself", both),
            ("device_memory", self.average_every is not None, "together with averaging.every, "
             "whose averages are of blocks on the device", both),
            ("device_memory", self.dtype in HALF, f"with training.dtype {self.dtype}, whose sums "
             "have wider elements", "take float32"),
            *((size, self.plan_file is not None,  # even if it is the same
               f"together with the plan file {self.plan}, which has a model", both)
              for size in SIZES),
        ]  # fmt: skip
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        for name, conflicting, why, instead in conflicts:
            value = getattr(self, name)
            if conflicting and value != defaults[name]:
                raise ConfigError(f"{shown(name)}: expected none {why}, got {value}: {instead}")
        last = self.steps if self.decay_steps is None else self.decay_steps
        if not constant and self.lr_min > self.lr:
            raise ConfigError(
                f"optimizer.lr_min: expected at most optimizer.lr {self.lr}, got {self.lr_min}"
            )
        if not constant and last <= self.warmup:
            name = "training.steps" if self.decay_steps is None else "optimizer.decay_steps"
            raise ConfigError(
                f"{name}: expected more than the {self.warmup} steps of optimizer.warmup with "
                f"optimizer.schedule {self.schedule}, got {last}: take a shorter warm-up"
            )
        self.model  # noqa: B018  its own checks

    @property
    def device_bytes(self) -> int | None:
        """The limit of device memory in bytes, None without one. A part of a byte is dropped."""
        match = re.fullmatch(_SIZE, (self.device_memory or "").upper())
        if match is None:
            return None
        number, letter, binary = match.groups()
        return int(Fraction(number) * (1024 if binary else 1000) ** " KMGT".index(letter or " "))

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
            adamw=AdamWConstants(self.beta1, self.beta2, self.epsilon, self.weight_decay),
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; the first step is 1.

        It grows linearly over `warmup` steps. Then it is constant, or falls to `lr_min` at
        `decay_steps`, and stays there.
        """
        if step < self.warmup or self.schedule == "constant":
            return self.lr * min(1.0, step / max(1, self.warmup))
        last = self.steps if self.decay_steps is None else self.decay_steps
        passed = min(1.0, (step - self.warmup) / max(1, last - self.warmup))
        left = 1 - passed if self.schedule == "linear" else (1 + cos(pi * passed)) / 2
        return self.lr_min + (self.lr - self.lr_min) * left

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


def meta_of(name: str) -> Any:
    """Return the description of a setting; `extra` has its key, and its default in words."""
    return get_args(types()[name])[-1]


def of_type(where: str, name: str, value: Any, text: str, strict: bool = True) -> Any:
    """Return a value in the type of a setting. Raises `ConfigError`, which shows the `text`."""
    try:
        return msgspec.convert(value, types()[name], strict=strict)
    except msgspec.ValidationError:
        kind, *limits, _ = get_args(types()[name])
        if type(None) in get_args(kind):
            kind, *limits = get_args(get_args(kind)[0]) or get_args(kind)[:1]
        choices = get_args(kind)
        words = limits[0].description if limits else _KINDS.get(kind)
        expected = words or f"one of {', '.join(choices)}"
        raise ConfigError(f"{where}: expected {expected}, got {text}") from None


@cache
def types() -> dict[str, Any]:
    """Return the annotated type of every setting, in the order of the table."""
    return {field.name: field.type for field in msgspec.structs.fields(Settings)}
