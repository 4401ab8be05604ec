"""The stream that computes, on a host that goes on: a wait holds up the stream, not the process.

Within `DeviceStream` the posts and waits of communicators are queued, and every operator of torch
that has to come after one that is queued. Both happen when the stream runs, long after the call.
The host is as far ahead as it can be: the stream runs when the host needs a number of it, or at the
end. What a kernel returns has its memory at once, and its values later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map


class DeviceStream(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Queues what is computed within it. `synchronize` has to end it."""

    current: DeviceStream | None = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queued: list[Callable[[], object]] = []
        self._kept: list[torch.Tensor] = []
        self._read, self._late = set[int](), set[int]()
        """The memory that what is queued reads, and writes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operator goes by torch._dynamo, whose import takes 4 s

    def __enter__(self) -> Any:
        DeviceStream.current = self
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        DeviceStream.current = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    @classmethod
    def queue(
        cls,
        work: Callable[[], object],
        reads: Iterable[torch.Tensor] = (),
        writes: Iterable[torch.Tensor] = (),
    ) -> None:
        """Do it when the stream has done all that was queued before; at once without a stream."""
        if cls.current is None:
            work()
            return
        stream = cls.current
        stream._queued.append(work)
        for tensors, noted in ((reads, stream._read), (writes, stream._late)):
            for tensor in tensors:
                stream._kept.append(tensor)
                noted.add(tensor.untyped_storage().data_ptr())

    def synchronize(self) -> None:
        """Do all that is queued. Raises what a wait raises."""
        queued, self._queued = self._queued, []
        with _disable_current_modes():
            for work in queued:
                work()
        for noted in (self._kept, self._read, self._late):
            noted.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call, outs = partial(func, *args, **kwargs), func._schema.returns
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not given or any(out.alias_info and not out.alias_info.is_write for out in outs):
            return call()  # new memory, or a view
        named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
        names = [
            one.name for one in func._schema.arguments if one.alias_info and one.alias_info.is_write
        ]
        written = [named[name] for name in names]
        uses = {tensor.untyped_storage().data_ptr() for tensor in given}
        writes = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves(written)}
        if not (uses & self._late or writes & self._read) or "empty" in func._schema.name:
            return call()  # nothing that is queued comes before it
        if any(not isinstance(out.type, torch.TensorType) for out in outs):
            self.synchronize()  # the host gets a number
            return call()
        if names:
            self.queue(call, given, tree_leaves(written))
            return written[0] if len(outs) == 1 else tuple(written) if outs else None
        described = func(*tree_map(_described, args), **tree_map(_described, kwargs))
        made = tree_map(lambda value: _like(value, "cpu"), described)

        def compute() -> None:
            for into, value in zip(tree_leaves(made), tree_leaves(call()), strict=True):
                if into is not None:
                    into.copy_(value)

        self.queue(compute, given, [x for x in tree_leaves(made) if x is not None])
        return made


def _described(value: Any) -> Any:
    """A tensor without memory, of the same shape and strides."""
    return torch.device("meta") if isinstance(value, torch.device) else _like(value, "meta")


def _like(value: Any, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
