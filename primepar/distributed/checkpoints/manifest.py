"""The manifest of a checkpoint, `checkpoint.json`: what it is of, its tensors and its files.

It is written last, and has the size and the SHA-256 of every other file. Its own text is

    {"sha256": "<of the rest>", "checkpoint": {...}}

so that a changed bit in it is refused too. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from primepar.errors import CheckpointError, TextError
from primepar.files import reason, replace
from primepar.reading import json_of, open_input, read_json
from primepar.schedule.signature import Name

FORMAT = "primepar-checkpoint"
VERSION = 2
MANIFEST = "checkpoint.json"
_READ_BYTES = 1 << 22
_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Sizes = Annotated[tuple[_Natural, ...], Meta(max_length=8)]
_FileName = Annotated[str, Meta(pattern=r"^rank-[0-9]{5,9}(-[0-9]{1,9})?\.safetensors\Z")]
"""As `save_part` names them: one component of a path."""
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class SavedChunk(Struct, frozen=True):
    """A box of a tensor in one file, under the name of the tensor; in elements."""

    file: _FileName
    offsets: _Sizes
    shape: _Sizes


class SavedTensor(Struct, frozen=True):
    """A tensor: the name of its dtype in torch, its shape, and the boxes that cover it once."""

    dtype: Annotated[str, Meta(pattern=r"^(float64|float32|float16|bfloat16)\Z")]
    shape: _Sizes
    chunks: tuple[SavedChunk, ...]


class SavedFile(Struct, frozen=True):
    """The size of a file in bytes, and its SHA-256."""

    size: _Natural
    sha256: _Digest


class SavedPart(Struct, frozen=True):
    """What one rank has written: its files, and the boxes of tensors in them."""

    tensors: dict[str, SavedTensor] = {}
    files: dict[_FileName, SavedFile] = {}


class Identity(Struct, frozen=True):
    """What a run is: a run that goes on must have the same, up to the fields with a comment."""

    settings: dict[str, Any]
    """The settings that define the losses, by key."""
    model: dict[str, Any]
    plan: str
    """The sequence or the description of the plan. A resumed run may have another."""
    ranks: Annotated[int, Meta(ge=1, lt=2**31)]
    """A resumed run may have another number."""
    code: Name
    """Version of primepar and digest of its sources. Another one is reported only."""


class Manifest(Struct, frozen=True):
    """All of a checkpoint but the data. `run_state` is other state of the run, as JSON."""

    format: str
    version: int
    step: Annotated[int, Meta(ge=0, lt=10**9)]
    identity: Identity
    run_state: dict[str, Any]
    tensors: dict[str, SavedTensor]
    files: dict[_FileName, SavedFile]

    def __post_init__(self) -> None:
        """Raise `ValueError` unless every box is in its tensor, and its file is listed."""
        for name, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                if chunk.file not in self.files:
                    raise ValueError(f"{name}: expected a listed file, got {chunk.file}")
                dims = {len(chunk.offsets), len(chunk.shape), len(tensor.shape)}
                ends = zip(chunk.offsets, chunk.shape, tensor.shape, strict=False)
                if len(dims) > 1 or any(begin + size > whole for begin, size, whole in ends):
                    raise ValueError(
                        f"{name}: expected boxes in a tensor of shape {tensor.shape}, got one of "
                        f"shape {chunk.shape} at {chunk.offsets}"
                    )

    @classmethod
    def of(
        cls, step: int, identity: Identity, run_state: dict[str, Any], parts: Iterable[SavedPart]
    ) -> Manifest:
        """Join what the ranks have written. Raises `ValueError` if a tensor is not whole."""
        boxes: dict[str, list[SavedChunk]] = {}
        tensors: dict[str, SavedTensor] = {}
        files: dict[str, SavedFile] = {}
        for part in parts:
            files |= part.files
            for name, tensor in part.tensors.items():
                tensors[name] = tensor
                boxes.setdefault(name, []).extend(tensor.chunks)
        for name, chunks in boxes.items():
            shape = tensors[name].shape
            written = sum(prod(chunk.shape) for chunk in chunks)
            if written != prod(shape):
                raise ValueError(f"{name}: {written} of {prod(shape)} elements written")
            tensors[name] = SavedTensor(tensors[name].dtype, shape, tuple(chunks))
        return cls(FORMAT, VERSION, step, identity, run_state, tensors, files)


class _Envelope(Struct, forbid_unknown_fields=True):
    sha256: _Digest
    checkpoint: msgspec.Raw


class _Header(Struct):
    format: str = "no format"
    version: int | str = "none"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest. Raises `OSError` if it cannot be written."""
    text = msgspec.json.encode(manifest)
    envelope = _Envelope(sha256(text).hexdigest(), msgspec.Raw(text))
    replace(folder / MANIFEST, msgspec.json.encode(envelope))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises `CheckpointError` if it is missing, damaged, or of another format.
    """
    path = folder / MANIFEST
    what = "the manifest of a checkpoint"
    envelope = read_json(path, _Envelope, what, CheckpointError, ours=True)
    text = bytes(envelope.checkpoint)
    check_digest(path, envelope.sha256, sha256(text).hexdigest())
    return _decoded(path, text)


def _decoded(path: Path, text: bytes) -> Manifest:
    try:
        header = json_of(text, _Header)
        if (header.format, header.version) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{path}: expected {FORMAT} version {VERSION}, got {header.format} version "
                f"{header.version}"
            )
        return json_of(text, Manifest)
    except (TextError, msgspec.ValidationError) as error:
        raise CheckpointError(
            f"{path}: expected the manifest of a checkpoint, got {error}"
        ) from None


def check_digest(path: Path, expected: str, digest: str) -> None:
    """Raise `CheckpointError` if the digest of a file is not the one that was written."""
    if digest != expected:
        raise CheckpointError(
            f"{path}: expected the SHA-256 {expected[:8]}, got {digest[:8]}: the file has changed "
            "since it was written"
        )


def check_file(folder: Path, name: str, saved: SavedFile) -> None:
    """Compare a file with its entry in the manifest. Raises `CheckpointError` if it differs."""
    path, digest = folder / name, sha256()
    try:
        with open_input(path, ours=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size != saved.size:
                raise CheckpointError(
                    f"{path}: expected {saved.size} bytes, got {size}: the file is "
                    f"{'cut short' if size < saved.size else 'another one'}"
                )
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected {saved.size} bytes of a checkpoint, got {reason(error)}"
        ) from None
    check_digest(path, saved.sha256, digest.hexdigest())
