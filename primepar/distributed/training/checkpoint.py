"""Checkpoints: one safetensors file of whole tensors, to which every rank writes its own slices.

Names and shapes are the model's own, `model.<parameter>`, `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`, whatever the mesh: a file saved under one sequence loads under another,
and opens in whatever reads safetensors. All ranks must see one file system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import product
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from primepar.distributed.runtime.training_state import TrainingState, written
from primepar.distributed.training.launch import World
from primepar.errors import CheckpointError
from primepar.files import publish, reason, reserve
from primepar.models import GPTConfig, ModelConfig

FORMAT = "primepar-checkpoint"
KINDS = {"model": "", "exp_avg": ".m", "exp_avg_sq": ".v"}
"""What a file calls the parameters and each moment of them -> how its name ends in a program."""
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16"}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAME = re.compile(r"step-(\d+)\.safetensors")


def latest(folder: str) -> Path | None:
    """The checkpoint of the highest step in a folder, None where there is none."""
    files = Path(folder).iterdir() if Path(folder).is_dir() else ()
    steps = {int(match[1]): path for path in files if (match := _NAME.fullmatch(path.name))}
    return steps[max(steps)] if steps else None


# Saving


def make_folder(folder: str) -> None:
    """Make the folder before the run. Raises `CheckpointError` if no file can be made in it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(
            f"--checkpoint {folder}: expected a folder to write to, got {reason(error)}: choose "
            "another one"
        ) from None


@dataclass(frozen=True)
class Sketch:
    """A safetensors file before its data: what stands first, and where each tensor begins."""

    head: bytes
    begins: dict[str, int]
    size: int

    @classmethod
    def of(cls, config: ModelConfig, step: int, dtype: torch.dtype) -> Sketch:
        """Lay the tensors of a run out one after another."""
        saved = {"format": FORMAT, "version": "1", "step": str(step), "model": _words(config)}
        entries: dict[str, Any] = {"__metadata__": saved}
        begins, at = {}, 0
        for kind in KINDS:
            for name, shape in config.parameter_shapes.items():
                begins[f"{kind}.{name}"], end = at, at + prod(shape) * dtype.itemsize
                entry = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (at, end)}
                entries[f"{kind}.{name}"], at = entry, end
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        return cls(head, {key: len(head) + begin for key, begin in begins.items()}, len(head) + at)


def save(folder: str, step: int, state: TrainingState, world: World) -> Path:
    """Write the checkpoint of `step`; a collective call, after which the file is whole.

    It gets its name when every rank has written its part. Raises `CheckpointError` where it
    cannot be written.
    """
    path = Path(folder, f"step-{step:08d}.safetensors")
    part = path.with_suffix(".part")
    sketch = Sketch.of(state.plan.model, step, state.mesh.dtype)
    try:
        _save(path, part, sketch, state, world)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    return path


def _save(path: Path, part: Path, sketch: Sketch, state: TrainingState, world: World) -> None:
    with world.agreement(f"{path} opened"), _writing(path):
        if world.rank == 0:
            _open(part, sketch)
    with world.agreement(f"{path} filled"), _writing(path):
        _fill(part, sketch, state)
    with world.agreement(f"{path} named"), _writing(path):
        if world.rank == 0:
            _name(part, path)


def _open(part: Path, sketch: Sketch) -> None:
    """Begin a file; drop what a kill left."""
    for left in part.parent.glob("step-*.part"):
        left.unlink()
    reserve(part, sketch.head, sketch.size)


def _fill(part: Path, sketch: Sketch, state: TrainingState) -> None:
    """Write the blocks that are this rank's to write."""
    for name, shape in state.plan.model.parameter_shapes.items():
        for own, (kind, ending) in product(written(state.places[name]), KINDS.items()):
            block = state.block(name + ending, own)[own.own].cpu()
            bits = block.view(_BITS[block.element_size()]).numpy()
            whole = np.memmap(part, bits.dtype, "r+", sketch.begins[f"{kind}.{name}"], shape)
            whole[own.whole] = bits
            whole.flush()


def _name(part: Path, path: Path) -> None:
    publish(part, path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected to write a checkpoint, got {reason(error)}: choose another "
            "--checkpoint folder or make room"
        ) from None


# Loading


def load(path: Path, state: TrainingState) -> int:
    """Fill a state with this rank's slices, and return the step.

    Raises `CheckpointError` if the file is cut short, no checkpoint, or of another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            step = _checked(path, file.metadata() or {}, state.plan.model)
            for name, parts in state.places.items():
                for part, (kind, ending) in product(parts, KINDS.items()):
                    read = file.get_slice(f"{kind}.{name}").__getitem__
                    part.fill(state.block(name + ending, part), read)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected a whole checkpoint, got {' '.join(str(error).split())}: delete it "
            "to resume from the one before"
        ) from None
    return step


def _checked(path: Path, saved: dict[str, str], config: ModelConfig) -> int:
    if saved.get("format") != FORMAT or saved.get("version") != "1":
        raise CheckpointError(
            f"{path}: expected {FORMAT} version 1, got {saved.get('format', 'no format')} version "
            f"{saved.get('version', 'none')}: give a folder that primepar train wrote"
        )
    if saved["model"] != _words(config):
        raise CheckpointError(
            f"{path}: expected a checkpoint of the model {_words(config)}, got one of "
            f"{saved['model']}: give the options of that run"
        )
    return int(saved["step"])


def _words(config: ModelConfig) -> str:
    """The sizes as the options give them; every field of a model that options do not give."""
    names = ("layers", "hidden", "heads", "context", "vocabulary")
    sizes = {name: getattr(config, name) for name in names}
    if config == GPTConfig(**sizes):
        return " ".join(f"--{name} {size}" for name, size in sizes.items())
    return " ".join(f"{each.name}={getattr(config, each.name)}" for each in fields(ModelConfig))
