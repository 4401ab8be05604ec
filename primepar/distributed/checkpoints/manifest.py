"""The manifest of a checkpoint, `checkpoint.json`: what it is of, and its files.

It is written last, and has the size and the SHA-256 of every other file, whose headers state what
of which tensor is there. Its own text is

    {"sha256": "<of the rest>", "checkpoint": {...}}

so that a changed bit in it is refused too. Nothing here imports torch.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from primepar.errors import CheckpointError, TextError
from primepar.files import reason, replace
from primepar.reading import json_of, open_input, read_json
from primepar.schedule.signature import Name

MANIFEST = "checkpoint.json"
_READ_BYTES = 1 << 22
_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_FileName = Annotated[str, Meta(pattern=r"^rank-[0-9]{5,9}(-[0-9]{1,9})?\.safetensors\Z")]
"""As `save_part` names them: one component of a path."""
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class SavedFile(Struct, frozen=True):
    """The size of a file in bytes, and its SHA-256."""

    size: _Natural
    sha256: _Digest


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
    replicas: Annotated[int, Meta(ge=1, lt=2**31)] = 1
    """Those with parameters of their own. A run of any number goes on from one."""


class Manifest(Struct, frozen=True):
    """All of a checkpoint but the tensors. `run_state` is other state of the run, as JSON."""

    step: Annotated[int, Meta(ge=0, lt=10**9)]
    identity: Identity
    run_state: dict[str, Any]
    files: dict[_FileName, SavedFile]
    format: Literal["primepar-checkpoint"] = "primepar-checkpoint"
    version: Literal[3] = 3


class _Envelope(Struct, forbid_unknown_fields=True):
    sha256: _Digest
    checkpoint: msgspec.Raw


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest. Raises `OSError` if it cannot be written."""
    text = msgspec.json.encode(manifest)
    envelope = _Envelope(sha256(text).hexdigest(), msgspec.Raw(text))
    replace(folder / MANIFEST, msgspec.json.encode(envelope))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises `CheckpointError` if it is missing, damaged, or of another format, and for a file of
    tensors that it does not have: a reader takes all that are there.
    """
    path = folder / MANIFEST
    what = "the manifest of a checkpoint"
    envelope = read_json(path, _Envelope, what, CheckpointError, ours=True)
    text = bytes(envelope.checkpoint)
    check_digest(path, envelope.sha256, sha256(text).hexdigest())
    try:
        manifest = json_of(text, Manifest)
    except (TextError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: expected {what}, got {error}") from None
    more = {file.name for file in folder.glob("*.safetensors")} - manifest.files.keys()
    if more:
        raise CheckpointError(
            f"{folder / min(more)}: expected a file that {MANIFEST} has, got another one: move it "
            "elsewhere"
        )
    return manifest


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
