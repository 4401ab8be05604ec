"""The process groups of the backend: they check what NCCL demands, and post to the server.

`LAZY` makes communicators at their first operation, and connections at the first message between
two ranks and at the first collective of a kind, which hold up the host. A message outside a batch
has a communicator of its two ranks.
`EAGER` has the communicators at the start, as torch does where a device is bound; a message outside
a batch is an operation of its own on the communicator of the group. It has one queue for each rank,
in which the operations of all communicators follow each other. `SHARED` is the same with two.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

from nccl_rules.device_stream import DeviceStream
from nccl_rules.operations import Batch, CollectiveCall, Content, PeerMessage, bytes_of
from nccl_rules.server import Server

LAZY, EAGER, SHARED = "nccl_rules", "nccl_rules_eager", "nccl_rules_shared"
QUEUES = {LAZY: 0, EAGER: 1, SHARED: 2}
"""Backend -> hardware queues of a rank, on which its communicators are spread in turn; 0 is one for
each communicator."""
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
"""The types of NCCL; torch sends a bool as a byte."""
REDUCE_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}


class Link:
    """This process's connection to the server, which is in the process of rank 0."""

    current: Link | None = None

    def __init__(self, store: Any, rank: int, size: int, queues: int) -> None:
        self.server = Server(size, queues) if rank == 0 else None
        if self.server is not None:
            store.set("nccl_rules", self.server.address)
        self._end: Connection = Client(store.get("nccl_rules").decode(), "AF_UNIX")
        self._end.send(rank)
        self._number = 0

    def post(self, communicator: str, operation: Batch | CollectiveCall) -> int:
        """Put an operation into its queue; returns its number."""
        self._number += 1
        self._end.send(("post", self._number, communicator, operation))
        return self._number

    def begin(self, number: int, given: dict[int, bytes]) -> None:
        """Let it begin, with the bytes of each of its parts."""
        self._end.send(("begin", number, given))

    def ask(self, *question: Any) -> dict[int, bytes]:
        """Ask and wait for the answer. Raises `RuntimeError` where the run cannot go on."""
        self._end.send(question)
        state, answer = self._end.recv()
        if state == "failed":
            raise RuntimeError(answer)
        gotten: dict[int, bytes] = answer
        return gotten

    def close(self) -> None:
        """End the connection; rank 0 stays until all ranks have ended theirs."""
        self._end.close()
        if self.server is not None:
            self.server.thread.join(5)


def restart() -> None:
    """Forget all streams and communicators, after a deadlock; all ranks call it."""
    assert Link.current is not None
    Link.current.ask("restart")


class RulesWork:
    """A started operation, and the tensors that it reads and fills.

    It reads late and fills late: until its wait what it gives stays as it is, and what it takes is
    poisoned, as nobody knows when the device does either. Both begin where the stream that computes
    has come to the post, and end where it has come to the wait. Neither holds up the host.
    """

    def __init__(
        self, number: int, given: dict[int, torch.Tensor], taken: dict[int, torch.Tensor]
    ) -> None:
        self._number, self._given, self._taken = number, given, taken
        self._flying: list[tuple[torch.Tensor, bytes]] = []
        self._waited = False
        self.then: Callable[[], object] = lambda: None
        """What is done with the tensors after the wait."""
        DeviceStream.queue(self._begin, given.values(), taken.values())

    def _begin(self) -> None:
        assert Link.current is not None
        given = {place: bytes_of(tensor) for place, tensor in self._given.items()}
        taken = list(self._taken.values())
        for tensor in taken:
            tensor.detach().view(-1).view(torch.uint8).fill_(255)  # not a number
        alone = [
            (tensor, given[place])
            for place, tensor in self._given.items()
            if not (place in self._taken and _meet(tensor, self._taken[place]))  # a sum in place
        ]
        self._flying = [*((tensor, bytes_of(tensor)) for tensor in taken), *alone]
        Link.current.begin(self._number, given)

    def wait(self, timeout: object = None) -> bool:
        """Let the stream that computes wait; without one, wait until the operation is done.

        Then `RuntimeError` is raised if its tensors have changed.
        """
        if not self._waited:
            self._waited = True
            DeviceStream.queue(self._end)
        return True

    def _end(self) -> None:
        assert Link.current is not None
        for tensor, held in self._flying:
            if bytes_of(tensor) != held:
                content = Content.of(tensor)
                raise RuntimeError(f"a block of {content} was written before the wait for it")
        for place, data in Link.current.ask("wait", self._number).items():
            into = self._taken[place].detach().view(-1)
            into.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(into.dtype))
        self.then()


BASE: Any = dist.ProcessGroup
"""Its methods have overloads that nobody calls."""


class RulesGroup(BASE):  # type: ignore[misc]
    """One process group; ranks in calls are those of the group."""

    supports_coalescing = True

    def __init__(self, options: Any, name: str) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._name, self._backend = str(options.group_id), name
        self._eager = name != LAZY
        self._made: set[str] = set()
        self._connected: set[tuple[str, int, int]] = set()
        self._batch: list[tuple[PeerMessage, torch.Tensor]] | None = None
        if Link.current is None:
            Link.current = Link(options.store, options.group_rank, options.group_size, QUEUES[name])

    def getBackendName(self) -> str:
        return self._backend

    def _get_backend(self, device: torch.device) -> RulesGroup:
        return self

    def shutdown(self) -> None:
        """End this process's part; operations that have not ended are dropped."""
        if Link.current is not None:
            Link.current.close()
            Link.current = None

    abort = shutdown

    # Messages

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> RulesWork:
        batch, self._batch = self._batch, None
        assert batch
        return self._post_messages(self._name, self._members, batch)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> RulesWork | None:
        return self._message(tensors, peer, sends=True)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> RulesWork | None:
        return self._message(tensors, peer, sends=False)

    def _message(self, tensors: list[torch.Tensor], peer: int, *, sends: bool) -> RulesWork | None:
        (tensor,) = map(_checked, tensors)
        there, here = self._members[peer], self._members[self.rank()]
        pair = PeerMessage(sends, there, Content.of(tensor)), tensor
        if self._batch is not None:
            self._batch.append(pair)
            return None
        if self._eager:
            return self._post_messages(self._name, self._members, [pair])
        ends = min(there, here), max(there, here)
        return self._post_messages(f"{self._name}({ends[0]}:{ends[1]})", ends, [pair])

    def _post_messages(
        self,
        name: str,
        members: tuple[int, ...],
        messages: list[tuple[PeerMessage, torch.Tensor]],
    ) -> RulesWork:
        batch = Batch([message for message, _ in messages], set(range(len(messages))))
        if not self._eager:
            self._connect(name, members, batch)
        given, taken = (
            {
                place: tensor
                for place, (message, tensor) in enumerate(messages)
                if message.sends == way
            }
            for way in (True, False)
        )
        return self._post(name, members, batch, given, taken)

    def _connect(self, name: str, members: tuple[int, ...], batch: Batch) -> None:
        """Hold up the host at the first message with a peer in one direction, until it is there."""
        assert Link.current is not None
        here = self._members[self.rank()]
        ways = {
            (here, message.peer) if message.sends else (message.peer, here)
            for message in batch.messages
        }
        new = sorted(way for way in ways if (name, *way) not in self._connected)
        if new:
            self._join(name, members)
            Link.current.ask("connect", name, new)
            self._connected |= {(name, *way) for way in new}

    def _post(
        self,
        name: str,
        members: tuple[int, ...],
        operation: Batch | CollectiveCall,
        given: dict[int, torch.Tensor],
        taken: dict[int, torch.Tensor],
    ) -> RulesWork:
        assert Link.current is not None
        if not self._eager:
            self._join(name, members)
        return RulesWork(Link.current.post(name, operation), given, taken)

    def _join(self, name: str, members: tuple[int, ...]) -> None:
        """Make a communicator with all its members, at its first operation."""
        assert Link.current is not None
        if name not in self._made:
            Link.current.ask("join", name, members)
            self._made.add(name)

    # Collectives

    def _collective(
        self, kind: str, given: torch.Tensor, into: torch.Tensor, **details: Any
    ) -> RulesWork:
        if self._batch is not None:
            raise RuntimeError(f"{kind} within a batch of messages is not modelled")
        content = Content.of(_checked(given))
        call = CollectiveCall(kind, self._members, content, **details)
        if not self._eager:  # the first run of a kind holds up the host, until all are there
            self._join(f"{self._name}.{kind}", self._members)
        return self._post(self._name, self._members, call, {0: given}, {0: _checked(into)})

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> RulesWork:
        (tensor,) = tensors
        reduction = "sum" if opts is None else _reduction(opts)
        return self._collective("all_reduce", tensor, tensor, reduction=reduction)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> RulesWork:
        (tensor,), root = tensors, self._members[opts.rootRank]
        return self._collective("reduce", tensor, tensor, root=root, reduction=_reduction(opts))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> RulesWork:
        (tensor,), root = tensors, self._members[opts.rootRank]
        return self._collective("broadcast", tensor, tensor, root=root)

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> RulesWork:
        _check_times(output, tensor, self.size())
        return self._collective("all_gather", tensor, output)

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> RulesWork:
        _check_times(tensor, output, self.size())
        return self._collective("reduce_scatter", tensor, output, reduction=_reduction(opts))

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single

    def allgather(
        self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any = None
    ) -> RulesWork:
        (everyone,), (tensor,) = outputs, tensors
        flat = torch.empty(len(everyone) * tensor.numel(), dtype=tensor.dtype)
        work = self._collective("all_gather", tensor, flat)

        def take() -> None:
            for output, part in zip(everyone, flat.view(len(everyone), -1), strict=True):
                output.copy_(part.view_as(output))

        work.then = take
        return work

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        gotten: list[int],
        given: list[int],
        opts: Any = None,
    ) -> RulesWork:
        sizes = [
            tuple(splits or [whole.numel() // self.size()] * self.size())
            for splits, whole in ((given, tensor), (gotten, output))
        ]
        return self._collective("all_to_all", tensor, output, splits=tuple(sizes))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> RulesWork:
        return self.allreduce([torch.zeros(1, dtype=torch.uint8)])

    def _not_modelled(self, *arguments: Any, **named: Any) -> RulesWork:
        raise RuntimeError("expected a collective that is modelled, got another one")

    gather = scatter = reduce_scatter = alltoall = recv_anysource = _not_modelled


def _meet(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    first, last = tensor.data_ptr(), other.data_ptr()
    return first < last + other.nbytes and last < first + tensor.nbytes


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous tensor, got strides {tensor.stride()}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"expected a type that NCCL has, got {tensor.dtype}")
    return tensor


def _check_times(large: torch.Tensor, small: torch.Tensor, size: int) -> None:
    if (large.numel(), large.dtype) != (small.numel() * size, small.dtype):
        raise ValueError(
            f"expected {small.numel() * size} {small.dtype}, got {large.numel()} {large.dtype}"
        )


def _reduction(opts: Any) -> str:
    for operation, name in REDUCE_OPS.items():
        if opts.reduceOp == operation:
            return name
    raise ValueError(f"expected sum, max or min, got {opts.reduceOp}")


for backend in QUEUES:
    dist.Backend.register_backend(
        backend,
        lambda options, _, name=backend: RulesGroup(options, name),
        extended_api=True,
        devices=["cpu"],
    )
