"""Checkpoints: one safetensors file of full tensors, into which every rank writes its own slices.

Names and shapes are those of the model, `model.<parameter>`, `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`, and do not depend on the mesh. In half precision `master.<parameter>` is
the copy in float32; without it in the file the copy is the parameter. So a file saved under one
sequence loads under another, and any reader of safetensors can open it. All ranks must share one
file system.

Under local SGD the replicas differ between averages, and their moments always do. Then the file
has the tensors of every replica, `replica1.model.<parameter>`, and loads for as many replicas. A
file without replicas loads for any number of them, which then begin alike.
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
from primepar.operators import MASTER

FORMAT = "primepar-checkpoint"
KINDS = {"": "model", f".{MASTER}": "master", ".m": "exp_avg", ".v": "exp_avg_sq"}
"""Suffix of a tensor in a program, empty for a parameter -> its prefix in the file."""
_DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAME = re.compile(r"step-(\d+)\.safetensors")


def latest(folder: str) -> Path | None:
    """Return the checkpoint of the highest step in a folder, None if there is none."""
    files = Path(folder).iterdir() if Path(folder).is_dir() else ()
    steps = {int(match[1]): path for path in files if (match := _NAME.fullmatch(path.name))}
    return steps[max(steps)] if steps else None


# Saving


def make_folder(folder: str) -> None:
    """Create the folder before the run. Raises `CheckpointError` if it is not writable."""
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
    """A safetensors file without its data: the header, and the byte where each tensor begins."""

    head: bytes
    begins: dict[str, int]
    size: int

    @classmethod
    def of(cls, state: TrainingState, step: int) -> Sketch:
        """Place the tensors of a run one after another."""
        config = state.plan.model
        saved = {"format": FORMAT, "version": "1", "step": str(step), "model": _words(config)}
        if state.replicas > 1:
            saved["replicas"] = str(state.replicas)
        entries: dict[str, Any] = {"__metadata__": saved}
        begins, offset = {}, 0
        for replica in range(state.replicas):
            for suffix, (name, shape) in product(state.kinds, config.parameter_shapes.items()):
                key = _key(name, suffix, replica if state.replicas > 1 else None)
                dtype = state.dtype(suffix)
                begins[key], end = offset, offset + prod(shape) * dtype.itemsize
                entry = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (offset, end)}
                entries[key], offset = entry, end
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        return cls(
            head, {key: len(head) + begin for key, begin in begins.items()}, len(head) + offset
        )


def save(folder: str, step: int, state: TrainingState, world: World) -> Path:
    """Write the checkpoint of `step`, and return its path; a collective call.

    The file gets its final name after every rank has written its part. Raises `CheckpointError`
    if it cannot be written.
    """
    path = Path(folder, f"step-{step:08d}.safetensors")
    part = path.with_suffix(".part")
    sketch = Sketch.of(state, step)
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
    """Create the file, and delete the partial files of a killed run."""
    for partial in part.parent.glob("step-*.part"):
        partial.unlink()
    reserve(part, sketch.head, sketch.size)


def _fill(part: Path, sketch: Sketch, state: TrainingState) -> None:
    """Write the blocks that this rank is responsible for."""
    replica = state.replica if state.replicas > 1 else None
    for name, shape in state.plan.model.parameter_shapes.items():
        blocks = written(state.places_in_replica[name])
        for parameter_block, suffix in product(blocks, state.kinds):
            held = state.block(f"{name}{suffix}", parameter_block)
            block = held[parameter_block.unpadded].cpu()
            bits = block.view(_BITS[block.element_size()]).numpy()
            begin = sketch.begins[_key(name, suffix, replica)]
            whole = np.memmap(part, bits.dtype, "r+", begin, shape)
            whole[parameter_block.whole] = bits
            whole.flush()


def _key(name: str, suffix: str, replica: int | None) -> str:
    """Return the name of a tensor in the file: `model.<name>`, or `replica1.exp_avg.<name>`."""
    return f"{'' if replica is None else f'replica{replica}.'}{KINDS[suffix]}.{name}"


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
    """Fill a state with this rank's slices of a checkpoint, and return its step.

    Raises `CheckpointError` if the file is truncated, not a checkpoint, or of another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            saved = file.metadata() or {}
            step = _checked(path, saved, state)
            replica = state.replica if "replicas" in saved else None
            keys = set(file.keys())
            _check_moments(path, keys, state, replica)
            for name, parts in state.places.items():
                for part, suffix in product(parts, state.kinds):
                    key = _key(name, suffix, replica)
                    key = key if key in keys else _key(name, "", replica)
                    read = file.get_slice(key).__getitem__
                    part.fill(state.block(f"{name}{suffix}", part), read)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected a whole checkpoint, got {' '.join(str(error).split())}: delete it "
            "to resume from the one before"
        ) from None
    return step


def _checked(path: Path, saved: dict[str, str], state: TrainingState) -> int:
    config = state.plan.model
    if saved.get("format") != FORMAT or saved.get("version") != "1":
        raise CheckpointError(
            f"{path}: expected {FORMAT} version 1, got {saved.get('format', 'no format')} version "
            f"{saved.get('version', 'none')}: give a folder that primepar train wrote"
        )
    if saved["model"] != _words(config):
        raise CheckpointError(
            f"{path}: expected a checkpoint of the model {_as_settings(_words(config))}, got one "
            f"of {_as_settings(saved['model'])}: give the settings of that run"
        )
    replicas = int(saved.get("replicas", "1"))
    if replicas not in (1, state.replicas):
        raise CheckpointError(
            f"{path}: expected a checkpoint of {state.replicas} replica"
            f"{'s' * (state.replicas > 1)}, got one of {replicas}: resume with averaging.every and "
            f"a plan of {replicas} replicas"
        )
    return int(saved["step"])


def _check_moments(path: Path, keys: set[str], state: TrainingState, replica: int | None) -> None:
    """Raise `CheckpointError` if the file is of a run with another optimizer."""
    first = next(iter(state.places))
    for suffix in KINDS.keys() - {f".{MASTER}"}:
        if (_key(first, suffix, replica) in keys) != (suffix in state.kinds):
            saved, asked = ("sgd", "adamw") if suffix in state.kinds else ("adamw", "sgd")
            raise CheckpointError(
                f"{path}: expected a checkpoint of optimizer.name={asked}, got one of {saved}: "
                f"add --set optimizer.name={saved}"
            )


def _as_settings(words: str) -> str:
    """Return `--layers 2` as `model.layers=2`; files keep the text of format version 1."""
    return re.sub(r"--(\w+) (\d+)", r"model.\1=\2", words)


def _words(config: ModelConfig) -> str:
    """Return the model as text for the file: its sizes, or all fields if sizes are not enough."""
    names = ("layers", "hidden", "heads", "context", "vocabulary")
    sizes = {name: getattr(config, name) for name in names}
    if config == GPTConfig(**sizes):
        return " ".join(f"--{name} {size}" for name, size in sizes.items())
    return " ".join(f"{field.name}={getattr(config, field.name)}" for field in fields(ModelConfig))
