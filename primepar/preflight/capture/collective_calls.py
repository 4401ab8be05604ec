"""The collectives of a process group that only records them.

The methods are those that `torch.distributed` and its C++ parts call on a group that is written in
Python. Tensors that are returned have the right shape and type; see `carried_values` for values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.carried_values import put, reduced
from primepar.preflight.capture.communicator import Communicator, NamedBuffer
from primepar.preflight.capture.works import RecordedWork
from primepar.preflight.meaning.factors import meant
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from primepar.schedule.signature import Reduction

Tensors = Sequence[torch.Tensor]
_REDUCTIONS: dict[Any, tuple[Reduction, str]] = {
    dist.ReduceOp.SUM: ("sum", "sum"),
    dist.ReduceOp.AVG: ("sum", "mean"),
    dist.ReduceOp.MAX: ("max", "max"),
    dist.ReduceOp.MIN: ("min", "min"),
    dist.ReduceOp.PRODUCT: ("sum", "product"),
    dist.ReduceOp.BAND: ("sum", "and"),
    dist.ReduceOp.BOR: ("sum", "or"),
    dist.ReduceOp.BXOR: ("sum", "xor"),
    dist.ReduceOp.PREMUL_SUM: ("sum", "scaled sum"),
}
"""The reduction of a program, and that of values."""


class CollectiveCalls:
    """The collectives of one communicator; ranks in calls are places among its members."""

    def __init__(self, communicator: Communicator) -> None:
        self._own, self._members = communicator, communicator.members
        self._recorder = communicator.recorder
        self._place = communicator.members.index(communicator.rank)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> RecordedWork:
        """Record a scatter of a root's tensors."""
        root, output = self._members[opts.rootRank], outputs[0]
        here = root == self._own.rank
        blocks = [self._recorder.reading(tensor) for tensor in inputs[0]] if here else []
        block = self._recorder.naming(output)

        def fill(values: list[list[torch.Tensor]]) -> None:
            put(output, values[0][self._place])

        return self._own.call(
            lambda request: Scatter(
                block=block, root=root, blocks=tuple(blocks), **self.shared(request, output)
            ),
            _buffers(inputs[0], blocks) if here else [], [NamedBuffer(output, block)], [root], fill,
        )  # fmt: skip

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> RecordedWork:
        """Record a gather of all members' tensors on a root."""
        root, tensor = self._members[opts.rootRank], inputs[0]
        block, here = self._recorder.reading(tensor), root == self._own.rank
        blocks = [self._recorder.naming(output) for output in outputs[0]] if here else []

        def fill(values: list[list[torch.Tensor]]) -> None:
            for output, part in zip(outputs[0], values, strict=True):
                put(output, part[0])

        return self._own.call(
            lambda request: Gather(
                block=block, root=root, blocks=tuple(blocks), **self.shared(request, tensor)
            ),
            [NamedBuffer(tensor, block)], _buffers(outputs[0], blocks) if here else [],
            self._members if here else [], fill,
        )  # fmt: skip

    def broadcast(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a broadcast of one tensor or several."""
        root = self._members[opts.rootRank]
        return self._together([self._broadcast(tensor, root) for tensor in tensors])

    def _broadcast(self, tensor: torch.Tensor, root: int) -> RecordedWork:
        here = root == self._own.rank
        block = self._recorder.reading(tensor) if here else self._recorder.naming(tensor)
        return self._own.call(
            lambda request: Broadcast(block=block, root=root, **self.shared(request, tensor)),
            [NamedBuffer(tensor, block)] if here else [],
            [] if here else [NamedBuffer(tensor, block)],
            [root],
            lambda values: put(tensor, values[0][0]),
        )

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """Record an all-reduce of one tensor or several, in one call."""
        reduction, scale, name = self._reduction(opts)
        blocks = [self._recorder.reading(tensor) for tensor in tensors]

        def fill(values: list[list[torch.Tensor]]) -> None:
            for place, tensor in enumerate(tensors):
                put(tensor, reduced([part[place] for part in values], name))

        return self._own.call(
            lambda request: AllReduce(
                block=blocks[0], also=tuple(blocks[1:]), reduction=reduction, scale=scale,
                **self.shared(request, *tensors),
            ),
            _buffers(tensors, blocks), _buffers(tensors, blocks), self._members, fill,
        )  # fmt: skip

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a reduction to a root."""
        reduction, scale, name = self._reduction(opts)
        root, tensor = self._members[opts.rootRank], tensors[0]
        block = self._recorder.reading(tensor)
        return self._own.call(
            lambda request: Reduce(
                block=block,
                root=root,
                reduction=reduction,
                scale=scale,
                **self.shared(request, tensor),
            ),
            [NamedBuffer(tensor, block)],
            [NamedBuffer(tensor, block)] if root == self._own.rank else [],
            self._members,
            lambda values: put(tensor, reduced([part[0] for part in values], name)),
        )

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record an all-gather into a list of tensors."""
        block = self._recorder.reading(inputs[0])
        return self._all_gather(inputs[0], block, outputs[0], [
            self._recorder.naming(output) for output in outputs[0]
        ])  # fmt: skip

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> RecordedWork:
        """Record an all-gather into one tensor."""
        block = self._recorder.reading(tensor)
        parts, names = self._parts(output), self._recorder.buffers.names
        return self._all_gather(tensor, block, parts, names(output, len(parts)), output)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record several all-gathers."""
        return self._together(
            [self.all_gather_single(*pair) for pair in zip(outputs, inputs, strict=True)]
        )

    def _all_gather(
        self,
        tensor: torch.Tensor,
        block: str,
        outputs: Tensors,
        blocks: Sequence[str],
        whole: torch.Tensor | None = None,
    ) -> RecordedWork:
        def fill(values: list[list[torch.Tensor]]) -> None:
            for output, part in zip(outputs, values, strict=True):
                put(output, part[0])

        with torch.no_grad(), _disable_current_modes():
            for output in outputs:
                if output.shape == tensor.shape:
                    output.detach().copy_(tensor)
        written = _buffers(outputs, blocks) if whole is None else [NamedBuffer(whole, blocks[0])]
        return self._own.call(
            lambda request: AllGather(
                block=block, blocks=tuple(blocks), **self.shared(request, tensor)
            ),
            [NamedBuffer(tensor, block)], written, self._members, fill,
        )  # fmt: skip

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> RecordedWork:
        """Record a reduce-scatter of a list of tensors."""
        blocks = [self._recorder.reading(tensor) for tensor in inputs[0]]
        return self._reduce_scatter(outputs[0], inputs[0], blocks, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> RecordedWork:
        """Record a reduce-scatter of one tensor."""
        self._recorder.reading(tensor, parts=True)
        parts = self._parts(tensor)
        blocks = self._recorder.buffers.names(tensor, len(parts))
        return self._reduce_scatter(output, parts, blocks, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record several reduce-scatters."""
        return self._together([
            self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)
        ])  # fmt: skip

    def _reduce_scatter(
        self, output: torch.Tensor, inputs: Tensors, blocks: Sequence[str], opts: Any
    ) -> RecordedWork:
        reduction, scale, name = self._reduction(opts)
        block = self._recorder.naming(output)

        def fill(values: list[list[torch.Tensor]]) -> None:
            put(output, reduced([part[self._place] for part in values], name))

        zero(output)
        return self._own.call(
            lambda request: ReduceScatter(
                blocks=tuple(blocks), block=block, reduction=reduction, scale=scale,
                **self.shared(request, output),
            ),
            _buffers(inputs, blocks), [NamedBuffer(output, block)], self._members, fill,
        )  # fmt: skip

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RecordedWork:
        """Record an all-to-all of lists of tensors."""
        blocks = [self._recorder.reading(tensor) for tensor in inputs]
        into = [self._recorder.naming(output) for output in outputs]
        return self._all_to_all(outputs, into, inputs, blocks)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> RecordedWork:
        """Record an all-to-all of one tensor, cut equally or into given sizes."""
        self._recorder.reading(tensor, parts=True)
        names = self._recorder.buffers.names
        return self._all_to_all(
            self._parts(output, output_sizes), names(output, len(self._members)),
            self._parts(tensor, input_sizes), names(tensor, len(self._members)), output,
        )  # fmt: skip

    def _all_to_all(
        self,
        outputs: Tensors,
        into: Sequence[str],
        inputs: Tensors,
        blocks: Sequence[str],
        whole: torch.Tensor | None = None,
    ) -> RecordedWork:
        def fill(values: list[list[torch.Tensor]]) -> None:
            for output, part in zip(outputs, values, strict=True):
                put(output, part[self._place])

        even = (
            size_of(inputs[0]) if len({part.numel() for part in (*inputs, *outputs)}) == 1 else {}
        )

        for output in outputs:
            zero(output)
        written = _buffers(outputs, into) if whole is None else [NamedBuffer(whole, into[0])]
        return self._own.call(
            lambda request: AllToAll(
                blocks=tuple(blocks), into=tuple(into), **self.shared(request), **even
            ),
            _buffers(inputs, blocks), written, self._members, fill,
        )  # fmt: skip

    def shared(self, request: str, *tensors: torch.Tensor) -> dict[str, Any]:
        """The fields that all collectives share."""
        fields = {"group": self._members, "communicator": self._own.name, "request": request}
        return fields | size_of(*tensors)

    def _parts(
        self, tensor: torch.Tensor, sizes: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """A tensor cut along its first dim."""
        with torch.no_grad(), _disable_current_modes():
            if not sizes:
                return list(torch.chunk(tensor.detach().reshape(-1), len(self._members)))
            return list(torch.split(tensor.detach(), list(sizes)))

    def _reduction(self, opts: Any) -> tuple[Reduction, str, str]:
        """The reduction, the scale of a program, and the reduction of values."""
        operator: Any = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        reduction, name = _REDUCTIONS[getattr(operator, "op", operator)]
        factor = 1 / len(self._members) if name == "mean" else 1.0
        if name == "scaled sum":
            _, factor = operator.__getstate__()
            name = "sum" if isinstance(factor, float) and factor > 0 else name
        if name not in ("sum", "mean", "max", "min"):
            self._recorder.gap(f"reduces by {name}, which a program has not")
            factor = 1.0
        return reduction, str(meant(factor)), name

    def _together(self, works: list[RecordedWork]) -> RecordedWork:
        """One work of several."""
        works[-1].earlier = works[:-1]
        return works[-1]


def _buffers(tensors: Tensors, blocks: Sequence[str]) -> list[NamedBuffer]:
    return [NamedBuffer(*pair) for pair in zip(tensors, blocks, strict=True)]


def size_of(*tensors: torch.Tensor) -> dict[str, Any]:
    """The elements and the type of what is transferred."""
    if not tensors:
        return {}
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return {"count": sum(tensor.numel() for tensor in tensors), "dtype": dtype}


def zero(tensor: torch.Tensor) -> None:
    """Fill what is received with numbers that do no harm; its own are not here."""
    with torch.no_grad(), _disable_current_modes():
        tensor.detach().zero_()
