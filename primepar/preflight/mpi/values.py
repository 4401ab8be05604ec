"""Buffers, datatypes and reductions of the stand-in for `mpi4py.MPI`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from primepar.schedule.signature import Reduction


class Datatype(NamedTuple):
    """A type of elements, by its name in numpy."""

    name: str

    def Get_size(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.name).itemsize


class Op(NamedTuple):
    """A reduction: its name, and the function of two arrays or objects."""

    name: str
    function: Callable[[Any, Any], Any]

    def __call__(self, first: Any, second: Any) -> Any:
        """Reduce two values."""
        return self.function(first, second)

    @property
    def reduction(self) -> Reduction:
        """The reduction of the program; `dtype` states the name of any other."""
        return self.name if self.name in ("max", "min") else "sum"  # type: ignore[return-value]

    def typed(self, dtype: str) -> str:
        """The type of the data, with the reduction where the program has none of this name."""
        return dtype if self.name in ("sum", "max", "min") else f"{dtype} {self.name}"


DATATYPES = {
    "CHAR": "int8", "SIGNED_CHAR": "int8", "BYTE": "uint8", "UNSIGNED_CHAR": "uint8",
    "SHORT": "int16", "UNSIGNED_SHORT": "uint16", "INT": "int32", "UNSIGNED": "uint32",
    "LONG": "int64", "UNSIGNED_LONG": "uint64", "LONG_LONG": "int64", "FLOAT": "float32",
    "DOUBLE": "float64", "BOOL": "bool", "C_BOOL": "bool", "COMPLEX": "complex64",
    "DOUBLE_COMPLEX": "complex128", "INT8_T": "int8", "INT16_T": "int16", "INT32_T": "int32",
    "INT64_T": "int64", "UINT8_T": "uint8", "UINT16_T": "uint16", "UINT32_T": "uint32",
    "UINT64_T": "uint64", "REAL": "float32", "DOUBLE_PRECISION": "float64", "INTEGER": "int32",
}  # fmt: skip


def _larger(first: Any, second: Any) -> Any:
    return np.maximum(first, second) if isinstance(first, np.ndarray) else max(first, second)


def _smaller(first: Any, second: Any) -> Any:
    return np.minimum(first, second) if isinstance(first, np.ndarray) else min(first, second)


OPS = {
    "SUM": Op("sum", lambda first, second: first + second),
    "PROD": Op("product", lambda first, second: first * second),
    "MAX": Op("max", _larger),
    "MIN": Op("min", _smaller),
    "LAND": Op("and", lambda first, second: np.logical_and(first, second)),
    "LOR": Op("or", lambda first, second: np.logical_or(first, second)),
    "BAND": Op("bits and", lambda first, second: first & second),
    "BOR": Op("bits or", lambda first, second: first | second),
}


class MpiBuffer(NamedTuple):
    """A flat view of the user's memory, in elements; `counts` are those of each rank."""

    elements: Any
    counts: tuple[int, ...] | None = None
    displacements: tuple[int, ...] | None = None

    @classmethod
    def of(cls, given: Any) -> MpiBuffer:
        """Read what mpi4py takes: an array, or a list of it with counts and a type."""
        parts = list(given) if isinstance(given, list | tuple) else [given]
        array = np.asarray(parts[0]) if not isinstance(parts[0], np.ndarray) else parts[0]
        flat = array.reshape(-1, order="A").view()
        for part in parts[1:]:
            if isinstance(part, Datatype) and flat.dtype != part.name:
                flat = flat.view(part.name)
            elif isinstance(part, int):
                flat = flat[:part]
        lists = [part for part in parts[1:] if _is_list(part)]
        if len(lists) == 1 and _is_list(lists[0][0]):
            lists = list(lists[0])
        counts = tuple(map(int, lists[0])) if lists else None
        starts = tuple(map(int, lists[1])) if len(lists) > 1 else None
        return cls(flat, counts, starts)

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return str(self.elements.dtype)

    @property
    def size(self) -> int:
        """Its elements."""
        return int(self.elements.size)

    @property
    def place(self) -> str:
        """Its place in memory."""
        return f"{self.elements.__array_interface__['data'][0]:x}.{self.elements.nbytes}"

    def data(self) -> bytes:
        """A copy of its data."""
        return bytes(self.elements.tobytes())

    def fill(self, data: bytes, first: int = 0) -> None:
        """Write data from an element on; what does not fit is left out."""
        values = np.frombuffer(data, self.elements.dtype)[: self.size - first]
        self.elements[first : first + values.size] = values

    def sizes(self, members: int) -> tuple[int, ...]:
        """The elements of each member's part."""
        return self.counts or (self.size // members,) * members

    def starts(self, members: int) -> tuple[int, ...]:
        """The first element of each member's part."""
        if self.displacements is not None:
            return self.displacements
        sizes = self.sizes(members)
        return tuple(sum(sizes[:place]) for place in range(members))

    def part(self, place: int, members: int) -> bytes:
        """The data of a member's part."""
        first = self.starts(members)[place]
        return bytes(self.elements[first : first + self.sizes(members)[place]].tobytes())


def _is_list(part: Any) -> bool:
    """Whether it is a list of numbers, or of such lists; a type is a tuple too."""
    return isinstance(part, list | tuple | np.ndarray) and not isinstance(part, Datatype)
