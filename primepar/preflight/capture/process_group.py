"""A process group of torch that communicates with nobody and records every call.

The methods are those that `torch.distributed` and its C++ parts call on a group that is written in
Python. Tensors that are returned have the right shape and type; see `works.py` for values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec.structs import asdict
from torch.distributed.distributed_c10d import GroupName
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import storage_id
from primepar.preflight.capture.recorder import RankRecorder
from primepar.preflight.capture.source_lines import source_line
from primepar.preflight.capture.uncomputed import is_large
from primepar.preflight.capture.works import (
    Arrival,
    RecordedWork,
    Tensors,
    give,
    is_small,
    is_whole,
)
from primepar.preflight.meaning.values import meant
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)
from primepar.schedule.signature import Reduction

_REDUCTIONS: dict[Any, tuple[Reduction, str, Any]] = {
    dist.ReduceOp.SUM: ("sum", "sum", torch.add),
    dist.ReduceOp.AVG: ("sum", "mean", torch.add),
    dist.ReduceOp.MAX: ("max", "max", torch.maximum),
    dist.ReduceOp.MIN: ("min", "min", torch.minimum),
    dist.ReduceOp.PRODUCT: ("sum", "product", torch.mul),
    dist.ReduceOp.BAND: ("sum", "and", torch.bitwise_and),
    dist.ReduceOp.BOR: ("sum", "or", torch.bitwise_or),
    dist.ReduceOp.BXOR: ("sum", "xor", torch.bitwise_xor),
    dist.ReduceOp.PREMUL_SUM: ("sum", "scaled sum", torch.add),
}
"""The reduction of a program, its name, and that of values."""


class Operand(NamedTuple):
    """What a collective reads or writes, part by part: several tensors, or parts of one."""

    parts: Tensors
    blocks: tuple[str, ...]
    whole: Tensors
    """The tensors that change: one that is cut is written as a whole."""


NOTHING = Operand((), (), ())
Named = list[tuple[torch.Tensor, str]]
"""Tensors with the blocks that instructions name."""
Posted = tuple[Send | Recv, torch.Tensor]
"""One side of one message."""


_Group: Any = dist.ProcessGroup


class RecordedGroup(_Group):  # type: ignore[misc]
    """A group of a rank: torch calls its methods where a backend would communicate.

    Ranks in calls are places among the members.
    """

    def __init__(self, recorder: RankRecorder, name: str, members: tuple[int, ...]) -> None:
        self._recorder, self._name, self._members = recorder, name, members
        self._place = members.index(recorder.rank)
        self._calls = 0
        self._messages: Counter[tuple[int, int]] = Counter()
        """Sender and receiver -> messages so far."""
        super().__init__(self._place, len(members))

    asked_backend = ""
    """The backend that a script asked for this group alone."""

    def getBackendName(self) -> str:
        """The name that torch shows."""
        return "preflight"

    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def rank(self) -> int:
        """This rank's place among the members."""
        return self._place

    @property
    def group_name(self) -> GroupName:
        """The name in torch's table of groups."""
        return dist.distributed_c10d._world.pg_names.get(self, GroupName(self._name))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> RecordedWork:
        """Record a scatter of a root's tensors."""
        root = self._members[opts.rootRank]
        read = self._reads(inputs[0]) if root == self._recorder.rank else NOTHING
        write = self._writes(outputs[:1])
        return self._call(
            Scatter, read, write, [root], lambda values: [values[0][self._place]], outputs[:1],
            block=write.blocks[0], root=root, blocks=read.blocks,
        )  # fmt: skip

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> RecordedWork:
        """Record a gather of all members' tensors on a root."""
        root, read = self._members[opts.rootRank], self._reads(inputs[:1])
        here = root == self._recorder.rank
        write = self._writes(outputs[0]) if here else NOTHING
        return self._call(
            Gather, read, write, self._members if here else (), _first_of_each, inputs[:1],
            block=read.blocks[0], root=root, blocks=write.blocks,
        )  # fmt: skip

    def broadcast(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a broadcast of one tensor or several."""
        root, works = self._members[opts.rootRank], []
        for tensor in tensors:
            here = root == self._recorder.rank
            one = self._reads([tensor]) if here else self._writes([tensor])
            read, write = (one, NOTHING) if here else (NOTHING, one)
            works.append(self._call(
                Broadcast, read, write, [root], _first_of_each, [tensor],
                block=one.blocks[0], root=root,
            ))  # fmt: skip
        return _together(works)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """Record an all-reduce of one tensor or several, in one call."""
        reduction, scale, reduced = self._reduction(opts)
        both = self._reads(tensors)
        return self._call(
            AllReduce, both, both, self._members, _by_places(reduced), tensors,
            block=both.blocks[0], also=both.blocks[1:], reduction=reduction, scale=scale,
        )  # fmt: skip

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> RecordedWork:
        """Record a reduction to a root."""
        reduction, scale, reduced = self._reduction(opts)
        root, read = self._members[opts.rootRank], self._reads(tensors[:1])
        write = read if root == self._recorder.rank else NOTHING
        return self._call(
            Reduce, read, write, self._members, _by_places(reduced), tensors[:1],
            block=read.blocks[0], root=root, reduction=reduction, scale=scale,
        )  # fmt: skip

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record an all-gather into a list of tensors."""
        return self._all_gather(self._reads(inputs[:1]), self._writes(outputs[0]))

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> RecordedWork:
        """Record an all-gather into one tensor."""
        return self._all_gather(self._reads([tensor]), self._cut(output))

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record several all-gathers."""
        pairs = zip(outputs, inputs, strict=True)
        return _together([self.all_gather_single(*pair) for pair in pairs])

    def _all_gather(self, read: Operand, write: Operand) -> RecordedWork:
        (tensor,) = read.parts
        with torch.no_grad(), _disable_current_modes():
            for output in write.parts:
                if output.shape == tensor.shape and self._is_computed(tensor):
                    output.detach().copy_(tensor)
        return self._call(
            AllGather, read, write, self._members, _first_of_each, [tensor],
            block=read.blocks[0], blocks=write.blocks,
        )  # fmt: skip

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> RecordedWork:
        """Record a reduce-scatter of a list of tensors."""
        return self._reduce_scatter(outputs[0], self._reads(inputs[0]), opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> RecordedWork:
        """Record a reduce-scatter of one tensor."""
        return self._reduce_scatter(output, self._cut(tensor, reads=True), opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RecordedWork:
        """Record several reduce-scatters."""
        pairs = zip(outputs, inputs, strict=True)
        return _together([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    def _reduce_scatter(self, output: torch.Tensor, read: Operand, opts: Any) -> RecordedWork:
        reduction, scale, reduced = self._reduction(opts)
        write = self._writes([output])
        self._zero(output)
        return self._call(
            ReduceScatter, read, write, self._members,
            lambda values: [reduced([part[self._place] for part in values])], [output],
            blocks=read.blocks, block=write.blocks[0], reduction=reduction, scale=scale,
        )  # fmt: skip

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RecordedWork:
        """Record an all-to-all of lists of tensors."""
        return self._all_to_all(self._reads(inputs), self._writes(outputs))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> RecordedWork:
        """Record an all-to-all of one tensor, cut equally or into given sizes."""
        read = self._cut(tensor, input_sizes, reads=True)
        return self._all_to_all(read, self._cut(output, output_sizes))

    def _all_to_all(self, read: Operand, write: Operand) -> RecordedWork:
        for output in write.parts:
            self._zero(output)
        even = len({part.numel() for part in (*read.parts, *write.parts)}) == 1
        sizes = [part.numel() for part in read.parts], [part.numel() for part in write.parts]
        self._recorder.recording.parts[len(self._recorder.recording.instructions)] = sizes
        return self._call(
            AllToAll, read, write, self._members,
            lambda values: [part[self._place] for part in values], read.parts[:even],
            blocks=read.blocks, into=write.blocks,
        )  # fmt: skip

    def barrier(self, opts: Any = None) -> RecordedWork:
        """Record a barrier."""
        return self._call(Barrier, NOTHING, NOTHING, (), lambda _: [], ())

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Record a barrier."""
        self.barrier().wait()

    def _call(
        self, kind: Callable[..., Any], read: Operand, write: Operand, senders: Sequence[int],
        results: Callable[[list[list[torch.Tensor]]], list[torch.Tensor]], sized: Tensors,
        **fields: Any,
    ) -> RecordedWork:  # fmt: skip
        """Record a collective; `results` are those of the values that its senders give.

        `sized` are the tensors whose elements and type all members have to state alike.
        """
        instruction = kind(
            group=self._members, communicator=self._name, request=self._recorder.request(),
            **size_of(*sized), **fields,
        )  # fmt: skip
        head, statement = f"{self._name}|{self._calls}", _statement(instruction)
        self._calls += 1
        if read.parts:
            give(self._recorder, f"{head}|{self._recorder.rank}", statement, read.parts)
        if kind is AllReduce and self._recorder.depends_on(*read.parts).unknown:
            senders = ()  # whatever they give, the sum is not known: nothing to wait for
        keys = [f"{head}|{rank}" for rank in senders]
        arrival = Arrival(
            self._recorder, keys, senders, statement, write.whole, write.parts, results
        )
        reads = list(zip(read.parts, read.blocks, strict=True))
        writes = list(zip(write.whole, write.blocks, strict=False))
        return self._post(instruction, reads, writes, [arrival])

    def _is_computed(self, tensor: torch.Tensor) -> bool:
        return not (self._recorder.shrinks and is_large([tensor]))

    def _zero(self, tensor: torch.Tensor) -> None:
        """Fill what is received with numbers that do no harm; its own are not here."""
        if self._is_computed(tensor):
            with torch.no_grad(), _disable_current_modes():
                tensor.detach().zero_()

    def _reads(self, tensors: Tensors) -> Operand:
        return Operand(tensors, tuple(map(self._recorder.reading, tensors)), tensors)

    def _writes(self, tensors: Tensors) -> Operand:
        return Operand(tensors, tuple(map(self._recorder.buffers.name, tensors)), tensors)

    def _cut(
        self, tensor: torch.Tensor, sizes: Sequence[int] | None = None, reads: bool = False
    ) -> Operand:
        """A tensor cut along its first dim, one part for each member."""
        if reads:
            self._recorder.reading(tensor, parts=True)
        with torch.no_grad(), _disable_current_modes():
            parts = (
                torch.split(tensor.detach(), list(sizes))
                if sizes
                else torch.chunk(tensor.detach().reshape(-1), len(self._members))
            )
        return Operand(parts, self._recorder.buffers.names(tensor, len(parts)), [tensor])

    def _reduction(self, opts: Any) -> tuple[Reduction, str, Callable[[Tensors], torch.Tensor]]:
        """The reduction, the scale of a program, and the reduction of values."""
        operator: Any = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        reduction, name, function = _REDUCTIONS[getattr(operator, "op", operator)]
        count = len(self._members) if name == "mean" else 1
        factor: Any = operator.__getstate__()[1] if name == "scaled sum" else 1.0
        if not (isinstance(factor, float) and factor > 0):
            factor = 1.0
        elif name in ("sum", "mean", "max", "min", "scaled sum"):
            name = ""
        if name:
            self._recorder.gap(f"reduces by {name}, which a program has not")

        def reduced(values: Tensors) -> torch.Tensor:
            whole = not values[0].is_floating_point()
            total: torch.Tensor = reduce(function, values)
            total = total * factor if factor != 1 else total
            return total.div(count, rounding_mode="trunc" if whole else None)

        return reduction, str(meant(factor / count)), reduced

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> RecordedWork:
        """Record a send."""
        return self._start([self._message(Send, tensors[0], destination, tag)])

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RecordedWork:
        """Record a receive."""
        return self._start([self._message(Recv, tensors[0], source, tag)])

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RecordedWork:
        """Record a receive from rank 0 with a gap: any rank may send."""
        self._recorder.gap("receives from any rank")
        return self.recv(tensors, 0, tag)

    def batch(self, ops: Sequence[dist.P2POp]) -> RecordedWork:
        """Record messages that start together."""
        kinds = [Send if op.op is dist.isend else Recv for op in ops]
        return self._start(
            [self._message(kind, op.tensor, op.group_peer, op.tag)
             for kind, op in zip(kinds, ops, strict=True)],
            batch=True,
        )  # fmt: skip

    def _message(
        self, kind: type[Send | Recv], tensor: torch.Tensor, place: int, tag: int
    ) -> Posted:
        if kind is Recv:
            self._zero(tensor)
        name = self._recorder.reading if kind is Send else self._recorder.buffers.name
        message = kind(
            peer=self._members[place], block=name(tensor), tag=tag, communicator=self._name,
            source=source_line() or None, **size_of(tensor),
        )  # fmt: skip
        return message, tensor

    def _start(self, posted: Sequence[Posted], batch: bool = False) -> RecordedWork:
        """Record one posted message, or a batch that starts together, and return its work."""
        reads: Named = []
        writes: Named = []
        arrivals = []
        for message, tensor in posted:
            ends = self._recorder.rank, message.peer
            ends = ends if isinstance(message, Send) else ends[::-1]
            key = f"{self._name}|{ends[0]}>{ends[1]}|{self._messages[ends]}"
            self._messages[ends] += 1
            statement = _statement(message)
            if isinstance(message, Send):
                give(self._recorder, key, statement, [tensor])
                reads.append((tensor, message.block))
            else:
                writes.append((tensor, message.block))
                arrivals.append(Arrival(
                    self._recorder, [key], ends[:1], statement, [tensor], [tensor],
                    lambda values: values[0],
                ))  # fmt: skip
        request = self._recorder.request()
        body = tuple(message for message, _ in posted)
        post = ISend if isinstance(body[0], Send) else IRecv
        instruction = (
            Group(body=body, request=request) if batch else post(**asdict(body[0]), request=request)
        )
        return self._post(instruction, reads, writes, arrivals)

    def _post(
        self, instruction: Instruction, reads: Named, writes: Named, arrivals: Sequence[Arrival]
    ) -> RecordedWork:
        """Record a call that has a request: `reads` go to other ranks, `writes` come from them."""
        recorder = self._recorder
        recorder.add(instruction)
        place = len(recorder.recording.instructions) - 1
        written, read = [tensor for tensor, _ in writes], [tensor for tensor, _ in reads]
        # After a broadcast the root's tensor is what everybody has: it gets the same term.
        shared = read if isinstance(instruction, Broadcast) else []
        before = [recorder.depends_on(tensor) for tensor in shared]
        recorder.terms.call(place, read, written or shared)
        for tensor, on in zip(shared, before, strict=True):
            recorder.terms.storages.depend(tensor, on)
        request = str(getattr(instruction, "request", ""))
        work = RecordedWork(recorder, request, written)
        # What all members receive alike has one lineage, whatever it was made of.
        alike = isinstance(instruction, AllReduce | AllGather | Broadcast)
        of_call = (self._name, self._calls, "" if alike else (recorder.rank, request))
        large = [] if writes or not shared or is_small(shared) else reads
        for slot, (tensor, block) in enumerate([*writes, *large]):
            recorder.written(tensor, block, hash((*of_call, slot)))
        for tensor, block in writes:
            work.fly(tensor, block, receives=True)
        received = {storage_id(tensor) for tensor in written}
        for tensor, block in reads:
            if storage_id(tensor) not in received:
                work.fly(tensor, block, receives=False)
        for arrival in arrivals:
            if not arrival.keys or not arrival.outputs or not is_small(arrival.outputs):
                continue
            if is_whole(arrival.outputs):
                work.arrivals.append(arrival.fetch)
            else:
                for tensor in arrival.outputs:
                    recorder.pending[storage_id(tensor)] = arrival.fetch
        return work


def _statement(post: Instruction) -> str:
    """What both sides of a message, or all members of a call, have to state alike.

    For example `AllReduce sum 1 4 int64`: the same as `schedule.matching` compares.
    """
    if isinstance(post, Send | Recv):
        return f"message {post.tag} {post.count} {post.dtype}"
    names = ["root", "reduction", "scale"]
    if not isinstance(post, AllToAll):  # its parts may have other sizes on each rank
        names += ["count", "dtype"]
    claims = [str(getattr(post, name, "")) for name in names]
    more = str(len(post.reduced)) if isinstance(post, AllReduce) else ""
    return " ".join([type(post).__name__, *claims, more])


def _together(works: list[RecordedWork]) -> RecordedWork:
    """One work of several."""
    works[-1].earlier = works[:-1]
    return works[-1]


def _first_of_each(values: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [parts[0] for parts in values]


def _by_places(
    reduced: Callable[[Tensors], torch.Tensor],
) -> Callable[[list[list[torch.Tensor]]], list[torch.Tensor]]:
    """The reduction of the first tensors of all members, of the second ones, and so on."""
    return lambda values: list(map(reduced, zip(*values, strict=True)))


def size_of(*tensors: torch.Tensor) -> dict[str, Any]:
    """The elements and the type of what is transferred."""
    if not tensors:
        return {}
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return {"count": sum(tensor.numel() for tensor in tensors), "dtype": dtype}
