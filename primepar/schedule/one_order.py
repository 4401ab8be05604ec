"""Whether a program ends where every communicator runs its operations in one order, as on NCCL.

The strict semantics of a program lets every message end by itself, once both ends are posted. NCCL
is stricter still: on each rank a communicator is a stream. An operation starts when the one before
it in the stream has ended, and a batch of posts ends when all of its messages have. So a program
may end there and hang here. Example: rank 0 posts `isend a; compute; isend b`, rank 1 posts
`irecv b; compute; irecv a` on another communicator each way round: a waits behind b, b behind a.

The graph has two nodes for every operation, its start and its end, and one for every wait:

    a start follows the wait before it on its rank, and the end before it in its stream
    an end follows its start, and the starts of the other ends of its messages, or of all members
    a wait follows the wait before it on its rank, and the end of what it waits for

The program ends exactly if this graph has no circle (Kahn's algorithm, linear in its size).

With slots (see `transport`) a message has two more nodes, the end of its sending and of its
receiving: it is sent when its send has started and the k-th message before it has been received,
and it is received when it has been sent and its receive has started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from primepar.errors import ProgramError
from primepar.schedule.communicators import Communicator, Members, batches, message_members
from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.program_file import instruction_line
from primepar.schedule.transport import Transport, on_pairs

TRANSPORT_ADVICE = (
    "post them in one order on both ranks, start them in one group, or give them more slots or "
    "communicators of their own"
)
ADVICE = "post them in one order on both ranks, and next to each other only what may wait together"
BY_COMMUNICATOR = Transport(order="communicator")


class StreamGraph:
    """The graph of a program; nodes are numbers, and `before` has the predecessors of each."""

    def __init__(
        self, program: Program, transport: Transport = BY_COMMUNICATOR, joins_posts: bool = True
    ) -> None:
        """Make the graph; with `joins_posts` adjacent posts of a communicator are one batch."""
        self.transport, self._joins_posts = transport, joins_posts
        self.before: list[list[int]] = []
        self.places: list[tuple[int, int]] = []
        """Node -> rank, and position of the instruction that it belongs to."""
        self.ends: set[int] = set()
        """The nodes that are ends of operations."""
        self.program = program
        self._members = message_members(program)
        self._channels: dict[tuple[str, int, int], tuple[list[int], list[int]]] = {}
        """(communicator, source, destination) -> starts of the sends, and of the receives."""
        self._calls: dict[Communicator, dict[int, list[int]]] = {}
        """Communicator -> rank -> starts of its collectives."""
        for rank in range(program.ranks):
            self._add_rank(rank)
        self._match()

    def _node(self, rank: int, place: int, before: Iterable[int]) -> int:
        self.before.append(list(before))
        self.places.append((rank, place))
        return len(self.before) - 1

    def _add_rank(self, rank: int) -> None:
        """Add the nodes of a rank; the end of an operation is the node after its start."""
        self._waited = self._node(rank, 0, ())
        self._streams: dict[Communicator, int] = {}
        requests: dict[str, list[int]] = {}
        place = 0
        instructions = self.program.programs[rank]
        for nodes in batches(instructions) if self._joins_posts else ((n,) for n in instructions):
            match nodes[0]:
                case ISend() | IRecv():
                    posts = [node for node in nodes if isinstance(node, ISend | IRecv)]
                    end = self._batch(rank, place, posts)
                    requests.update((post.request, [end]) for post in posts)
                case Send() | Recv() as message:
                    self._wait(rank, place, [self._batch(rank, place, [message])])
                case Group(body=body, request=request):
                    ends = self._group(rank, place, body)
                    if request is None:
                        self._wait(rank, place, ends)
                    else:
                        requests[request] = ends
                case Wait(request=request):
                    self._wait(rank, place, requests.get(request, []))
                case node if isinstance(node, Collective) and len(node.group) > 1:
                    end = self._call(rank, place, node)
                    if node.request is None:
                        self._wait(rank, place, [end])
                    else:
                        requests[node.request] = [end]
            place += len(nodes)

    def _wait(self, rank: int, place: int, ends: Iterable[int]) -> None:
        self._waited = self._node(rank, place, [self._waited, *ends])

    def _operation(self, rank: int, place: int, communicator: Communicator) -> int:
        """Add an operation to its stream; returns its start."""
        in_order = self.transport.order != "free"
        previous = self._streams.get(communicator) if in_order else None
        before = [self._waited] if previous is None else [self._waited, previous]
        start = self._node(rank, place, before)
        self._streams[communicator] = self._node(rank, place, [start])
        self.ends.add(start + 1)
        return start

    def _batch(self, rank: int, place: int, messages: Iterable[Message]) -> int:
        """Add messages of one communicator that start together; returns their end."""
        messages = list(messages)
        name = messages[0].communicator
        start = self._operation(rank, place, (name, self._members[name]))
        for message in messages:
            sends = isinstance(message, Send | ISend)
            ends = (rank, message.peer) if sends else (message.peer, rank)
            self._channels.setdefault((name, *ends), ([], []))[not sends].append(start)
        return start + 1

    def _group(self, rank: int, place: int, body: Iterable[Send | Recv]) -> list[int]:
        by_name: dict[str, list[Message]] = {}
        for message in body:
            by_name.setdefault(message.communicator, []).append(message)
        return [self._batch(rank, place, messages) for messages in by_name.values()]

    def _call(self, rank: int, place: int, node: Collective) -> int:
        members: Members = tuple(sorted(node.group))
        communicator = node.communicator, members
        start = self._operation(rank, place, communicator)
        self._calls.setdefault(communicator, {}).setdefault(rank, []).append(start)
        return start + 1

    def _match(self) -> None:
        for sends, receives in self._channels.values():
            received: list[int] = []
            for send, receive in zip(sends, receives, strict=False):
                if self.transport.slots == 0:
                    self.before[send + 1].append(receive)
                    self.before[receive + 1].append(send)
                else:
                    self._match_in_slot(send, receive, received)
        for by_rank in self._calls.values():
            for starts in zip(*by_rank.values(), strict=False):
                for start in starts:
                    self.before[start + 1] += [node for node in starts if node != start]

    def _match_in_slot(self, send: int, receive: int, received: list[int]) -> None:
        """Match a message of a channel; `received` has the ends of those before it."""
        slots = self.transport.slots
        taken = received[-slots:][:1] if slots and len(received) >= slots else []
        sent = self._node(*self.places[send], [send, *taken])
        received.append(self._node(*self.places[receive], [receive, sent]))
        self.before[send + 1].append(sent)
        self.before[receive + 1].append(received[-1])

    def held_up(self) -> set[int]:
        """Return the nodes that are never reached (Kahn's algorithm)."""
        after: list[list[int]] = [[] for _ in self.before]
        for node, before in enumerate(self.before):
            for earlier in before:
                after[earlier].append(node)
        missing = list(map(len, self.before))
        ready = [node for node, count in enumerate(missing) if not count]
        for node in ready:
            for later in after[node]:
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        return set(range(len(self.before))) - set(ready)

    def circle(self) -> list[int]:
        """Return nodes each of which follows the next, and the last one the first; [] if none."""
        left = self.held_up()
        if not left:
            return []
        walk = {min(left): 0}
        node = min(left)
        while True:  # every node that is left has one before it
            node = next(earlier for earlier in self.before[node] if earlier in left)
            if node in walk:
                break
            walk[node] = len(walk)
        # A few starts are enough for a short circle, and keep the search linear.
        circles = [self._shortest(start, left) for start in list(walk)[walk[node] :][:16]]
        return min(circles, key=len)

    def _shortest(self, start: int, left: set[int]) -> list[int]:
        """Return the shortest circle through a node of one (breadth first)."""
        came: dict[int, int] = {}
        ready = deque([start])
        while start not in came:
            node = ready.popleft()
            for earlier in self.before[node]:
                if earlier in left and earlier not in came:
                    came[earlier] = node
                    ready.append(earlier)
        circle = [came[start]]
        while circle[-1] != start:
            circle.append(came[circle[-1]])
        return circle[::-1]


def out_of_order(program: Program) -> str | None:
    """Return why a program hangs where communicators run in one order; None if it ends.

    It names the first two operations that wait for each other. Messages and calls without a
    partner are not its question: `primepar verify` refutes those before.
    """
    graph = StreamGraph(program)
    return _waiting_places(graph, graph.circle(), ADVICE)


def hangs_by(program: Program, transport: Transport) -> str | None:
    """Return why a program hangs where its messages travel in this way; None if it ends.

    It names operations that have started, or wait for a slot. It is asked of a program whose
    messages and calls have their partners.
    """
    program = on_pairs(program) if transport.order == "peer" else program
    graph = StreamGraph(program, transport, joins_posts=False)
    circle = graph.circle()
    ends = [node for node in circle if node in graph.ends]
    several = len({graph.places[node][0] for node in ends}) > 1
    return _waiting_places(graph, ends if several else circle, TRANSPORT_ADVICE)


def _waiting_places(graph: StreamGraph, circle: list[int], advice: str) -> str | None:
    """Return the first two operations of a circle, and how to avoid it; None if there is none."""
    if not circle:
        return None
    places = dict.fromkeys(graph.places[node] for node in circle)
    shown = _two_ranks(list(places))
    texts = [_text(graph.program, rank, place) for rank, place in shown]
    together = "wait for each other" if len(texts) > 1 else "waits for itself"
    return f"{' and '.join(texts)} {together}: {advice}"


def check_order(program: Program) -> None:
    """Raise `ProgramError` for a program that hangs where communicators run in one order."""
    hangs = out_of_order(program)
    if hangs is not None:
        raise ProgramError(
            "program: expected one that ends on NCCL, where posts of one communicator run in their "
            f"order, got one where {hangs}"
        )


def _two_ranks(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a place and the next one of another rank, in the order of the ranks."""
    rank = min(rank for rank, _ in places)
    first = next(index for index, place in enumerate(places) if place[0] == rank)
    turned = places[first:] + places[:first]
    return [turned[0], *[place for place in turned if place[0] != rank][:1]]


def _text(program: Program, rank: int, place: int) -> str:
    node: Instruction = program.programs[rank][place]
    line = "" if node.source is None else f" at {node.source}"
    return f"rank {rank}, instruction {place} ({instruction_line(node)}){line}"
