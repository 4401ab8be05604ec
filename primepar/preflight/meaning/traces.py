"""What one application of a function of autograd does, operation by operation, in both passes.

A function such as ring attention communicates and computes. Its operations are kept with what they
read and write, as parts of storages, so that `replay.py` can do them again with other numbers. A
storage that was there before keeps its contents, up to `LARGEST`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

LARGEST = 1 << 24
"""Bytes that the storages of one application may hold from before."""
MOST_APPLICATIONS = 16
"""Applications of one function that a rank keeps."""


class TracedTensor(NamedTuple):
    """A tensor as a part of a storage."""

    storage: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    span: int
    """Elements between the first and the last, both included."""


class TracedOperation(NamedTuple):
    """An operation, whose tensors are traced ones."""

    name: str
    """`aten::add.Tensor`."""
    args: Any
    kwargs: dict[str, Any]
    outputs: Any


class TracedCall(NamedTuple):
    """A communication call of the rank."""

    call: int
    reads: tuple[TracedTensor, ...]
    writes: tuple[TracedTensor, ...]


class NamedTensor(NamedTuple):
    """A tensor, and the term of what it holds."""

    tensor: TracedTensor
    term: int


class FunctionTrace:
    """One application: its inputs and outputs, the gradients of both, and what it does."""

    def __init__(self, name: str) -> None:
        self.name, self.why = name, ""
        """`why` states why it cannot be done again."""
        self.source = ""
        self.forward: list[TracedOperation | TracedCall] = []
        self.backward: list[TracedOperation | TracedCall] = []
        self.inputs: list[NamedTensor] = []
        self.outputs: list[NamedTensor] = []
        self.cotangents: list[NamedTensor | None] = []
        self.gradients: list[TracedTensor | None] = []
        self.lengths: list[int] = []
        """Elements of each storage."""
        self.contents: dict[int, torch.Tensor] = {}
        """Storages that were there before."""
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []
        self._bytes = 0

    @property
    def calls(self) -> list[TracedCall]:
        """The communication calls of both passes."""
        return [one for one in (*self.forward, *self.backward) if isinstance(one, TracedCall)]

    def tensor(self, tensor: torch.Tensor, fresh: bool = False) -> TracedTensor:
        """A tensor as a part of a storage; a `fresh` storage has no contents from before."""
        storage, size = tensor.untyped_storage(), tensor.element_size()
        number = self._numbers.setdefault(int(storage._cdata), len(self._kept))
        if number == len(self._kept):
            self._kept.append(storage)
            self.lengths.append(storage.nbytes() // size)
            if not fresh:
                self._bytes += storage.nbytes()
                if self._bytes > LARGEST:
                    self.why = f"it reads more than {LARGEST >> 20} MiB"
                else:
                    flat = tensor.detach().as_strided((self.lengths[number],), (1,), 0)
                    self.contents[number] = flat.clone()
        pairs = zip(tensor.size(), tensor.stride(), strict=True)
        span = 1 + sum((length - 1) * stride for length, stride in pairs) if tensor.numel() else 0
        place = int(tensor.storage_offset())
        return TracedTensor(number, place, tuple(tensor.size()), tensor.stride(), span)

    def named(self, tensor: torch.Tensor, term: int, fresh: bool = False) -> NamedTensor:
        """A tensor with its term."""
        return NamedTensor(self.tensor(tensor, fresh), term)

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note an operation before it is done; what it returns takes its result."""
        with _disable_current_modes():
            given, named = tree_map(self._given, (args, kwargs))

        def done(result: Any) -> None:
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            known = all(int(leaf.untyped_storage()._cdata) in self._numbers for leaf in outputs)
            writes = any(argument.is_write for argument in func._schema.arguments)
            if func.is_view or (known and not writes):
                return
            if torch.Tag.nondeterministic_seeded in func.tags or not outputs:
                self.why = f"{func._schema.name} has no gradient, or draws numbers"
            listed = [self.tensor(leaf, fresh=True) for leaf in outputs]
            name = f"{func._schema.name}.{func._overloadname}"
            self._listed().append(TracedOperation(name, given, named, None if writes else listed))

        return done

    def call(
        self, number: int, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> None:
        """Note a communication call."""
        received = tuple(self.tensor(tensor) for tensor in writes)
        self._listed().append(TracedCall(number, tuple(map(self.tensor, reads)), received))

    def _given(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, torch.Tensor) else value

    def _listed(self) -> list[TracedOperation | TracedCall]:
        return self.backward if self.cotangents else self.forward

    def packed(self) -> bytes:
        """The trace, without the memory that it keeps."""
        self._kept.clear()
        return pickle.dumps(self)
