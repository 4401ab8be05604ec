"""The safetensors container: files of named tensors, any slice of which is read on its own.

A file is 8 bytes with the length of a header, the header in JSON, and the tensors one after
another. It is read here, because the NumPy side of its own library knows no bfloat16.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from primepar.errors import TextError, WeightError
from primepar.files import publish, reason, remove, target
from primepar.reading import json_of, open_input, read_json

Array = NDArray[np.floating[Any]]

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> type, one of `DTYPES`, and shape of the tensors of a file, in their order."""

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
CODES = {"float64": "F64", "float32": "F32", "float16": "F16"}


@dataclass(frozen=True)
class StoredTensor:
    """Where a file stores a tensor: the first byte, and the type and shape of what is there."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def read(self, slices: tuple[slice, ...]) -> Array:
        """Copy of a slice of the tensor; bfloat16 comes as float32, which holds it exactly."""
        whole = np.memmap(self.path, DTYPES[self.dtype], "r", self.begin, self.shape)
        block: NDArray[Any] = np.array(whole[slices])
        if self.dtype != "BF16":
            return block
        return (block.astype("<u4") << 16).view("<f4")


def stored_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor in a file."""
    return prod(shape) * np.dtype(DTYPES[dtype]).itemsize


def stored(array: Array, dtype: str) -> NDArray[Any]:
    """The values as a file has them in that type: bfloat16 as its bits, ties rounded to even."""
    if dtype != "BF16":
        return array.astype(DTYPES[dtype], copy=False)
    bits = np.ascontiguousarray(array, "<f4").view("<u4")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    return np.where(np.isnan(array), quiet, rounded).astype("<u2")


LARGEST_HEADER = 100_000_000
"""Bytes; safetensors has the same limit."""
_FILE_NAME = re.compile(r"(?!\.\.?$)[\w.+-]{1,255}")
"""Of a file next to the index that names it: one component of a path."""
_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Entry(Struct):
    dtype: str
    shape: Annotated[tuple[_Natural, ...], Meta(max_length=32)]
    data_offsets: tuple[_Natural, _Natural]


class _Index(Struct):
    weight_map: dict[str, str]


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Name -> place of every tensor in a file, in the files of an index, or in such a folder.

    Raises `WeightError` for what is missing, cut short or no safetensors file.
    """
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        path = index if index.exists() else path / "model.safetensors"
    if path.suffix != ".json":
        return _tensors_of_file(path)
    listed = read_json(path, _Index, "an index of safetensors files", WeightError)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(listed.weight_map.values())):
        if not _FILE_NAME.fullmatch(shard):
            raise WeightError(f"{path}: expected files in the folder of the index, got {shard!r}")
        tensors |= _tensors_of_file(path.parent / shard)
    return tensors


def _tensors_of_file(path: Path) -> dict[str, StoredTensor]:
    header, base, size = _header(path)
    entries = {name: _entry(path, name, raw) for name, raw in header.items()}
    end = base + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if end != size:
        raise WeightError(
            f"{path}: expected {end} bytes by its header, got {size}: the file is "
            f"{'cut short' if size < end else 'damaged'}, fetch it again"
        )
    return {
        name: StoredTensor(path, entry.dtype, entry.shape, base + entry.data_offsets[0])
        for name, entry in entries.items()
    }


def _header(path: Path) -> tuple[dict[str, msgspec.Raw], int, int]:
    """Entries of the header, the byte where the tensors begin, and the size of the file."""
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            base = 8 + int.from_bytes(file.read(8), "little")
            text = file.read(base - 8) if base <= min(size, 8 + LARGEST_HEADER) else b""
    except OSError as error:
        raise WeightError(f"{path}: expected a safetensors file, got {reason(error)}") from None
    if not 8 < base <= size:
        raise WeightError(
            f"{path}: expected a safetensors file, got {size} bytes that do not hold its header: "
            "the file is cut short or of another kind, fetch it again"
        )
    if base > 8 + LARGEST_HEADER:
        raise WeightError(
            f"{path}: expected a header of at most {LARGEST_HEADER} bytes, got {base - 8}: the "
            "file is damaged, fetch it again"
        )
    try:
        header = json_of(text, dict[str, msgspec.Raw])
    except (msgspec.ValidationError, TextError) as error:
        raise WeightError(f"{path}: expected a safetensors header, got {error}") from None
    header.pop("__metadata__", None)
    return header, base, size


def _entry(path: Path, name: str, raw: msgspec.Raw) -> _Entry:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except msgspec.MsgspecError as error:
        raise WeightError(f"{path}: tensor {name!r}: {error}") from None
    begin, end = entry.data_offsets
    if entry.dtype in DTYPES:
        expected = stored_bytes(entry.dtype, entry.shape)
        if begin < 0 or end - begin != expected:
            raise WeightError(
                f"{path}: tensor {name!r}: expected {expected} bytes for {entry.dtype} of shape "
                f"{entry.shape}, got {end - begin}: the file is damaged, fetch it again"
            )
    return entry


def write_tensors(path: Path, layout: Layout, tensors: Iterable[NDArray[Any]]) -> None:
    """Write a file whole or not at all: first the header, then one tensor after another.

    The tensors come in the order of the layout, as `stored` gives them. Raises `WeightError` where
    the file cannot be written.
    """
    part = None
    try:
        file_of = target(path)
        part = file_of.with_name(f"{file_of.name}.part")
        with part.open("wb") as file:
            file.write(Head.of(layout).text)
            for tensor in tensors:
                file.write(np.ascontiguousarray(tensor).data)
        publish(part, file_of)
    except OSError as error:
        raise WeightError(f"{path}: expected to write weights, got {reason(error)}") from None
    finally:
        if part is not None:
            remove(part)


class Head(NamedTuple):
    """The header before the tensors of a file, where each of them begins, and where it ends."""

    text: bytes
    begins: dict[str, int]
    size: int

    @classmethod
    def of(cls, layout: Layout, notes: Mapping[str, str] | None = None) -> Head:
        """Lay the tensors out one after another, without gaps; `notes` are about the file."""
        # transformers asks for the format
        entries: dict[str, Any] = {"__metadata__": {"format": "pt", **(notes or {})}}
        begins, end = {}, 0
        for name, (dtype, shape) in layout.items():
            begins[name], end = end, end + stored_bytes(dtype, shape)
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begins[name], end)}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        return cls(
            head, {name: len(head) + begin for name, begin in begins.items()}, len(head) + end
        )
