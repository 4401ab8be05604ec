"""Bit flips and cuts in every part of a checkpoint: each is refused, in one line, by its file.

The parts are the length of a header, the header, the data of each file, and the manifest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from primepar.distributed.checkpoints.loading import read_whole
from primepar.distributed.checkpoints.manifest import (
    MANIFEST,
    Identity,
    Manifest,
    SavedFile,
    write_manifest,
)
from primepar.distributed.checkpoints.shards import HeldBoxes, save_part
from primepar.errors import CheckpointError

PARTS = ("length of a header", "header", "data", "manifest")


class Change(NamedTuple):
    """A changed checkpoint: the part, the file, and the bit that is flipped, or the size left."""

    part: str
    file: str
    bit: int | None
    size: int | None = None


def written(folder: Path) -> Path:
    """Write the checkpoint of two ranks, of which one has two boxes of a tensor."""
    path = folder / "step-00000001"
    path.mkdir()
    whole = torch.arange(96.0).reshape(8, 12)
    quarters = [((0, 0), whole[:4, :6]), ((0, 6), whole[:4, 6:])]
    held = [
        {"model.a": HeldBoxes((8, 12), quarters)},
        {"model.a": HeldBoxes((8, 12), [((4, 0), whole[4:])])},
    ]
    files: dict[str, SavedFile] = {}
    for rank, tensors in enumerate(held):
        files |= save_part(path, rank, tensors)
    identity = Identity(
        {"training.seed": 0, "optimizer.name": "adamw"}, {"layers": 1}, "K2", 2, "0"
    )
    write_manifest(path, Manifest(1, identity, {"sample": 3}, files))
    return path


def ranges(path: Path) -> dict[tuple[str, str], range]:
    """(Part, file) -> its bytes."""
    found: dict[tuple[str, str], range] = {}
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        if file.name == MANIFEST:
            found["manifest", file.name] = range(len(content))
            continue
        end = 8 + int.from_bytes(content[:8], "little")
        found["length of a header", file.name] = range(8)
        found["header", file.name] = range(8, end)
        found["data", file.name] = range(end, len(content))
    return found


def changes(path: Path, count: int, seed: int) -> Iterator[Change]:
    """Yield `count` flips, spread over the parts of all files, and as many cuts as files."""
    drawn = random.Random(seed)
    places = list(ranges(path).items())
    for number in range(count):
        (part, file), place = places[number % len(places)]
        yield Change(part, file, drawn.choice(place) * 8 + drawn.randrange(8))
    for whole in sorted(path.iterdir()):
        yield Change("cut", whole.name, None, drawn.randrange(whole.stat().st_size))


def refusal(path: Path, change: Change) -> str | None:
    """Return how a changed checkpoint is refused, None if it is not; leave it as it was."""
    file = path / change.file
    before = file.read_bytes()
    after = bytearray(before[: change.size])
    if change.bit is not None:
        after[change.bit // 8] ^= 1 << change.bit % 8
    file.write_bytes(after)
    try:
        read_whole(path)
    except CheckpointError as error:
        return str(error)
    finally:
        file.write_bytes(before)
    return None
