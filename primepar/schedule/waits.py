"""The wait graph of a program: what must have happened before what, under a transport.

Its nodes are the returns of instructions that may wait for another rank. Such an instruction
returns after the one before it on its rank has returned, and after all other sides of what it
awaits have started. A side starts when the waiting instruction before it on its rank has returned.
So the program ends exactly if every node has a level above all that it follows (Kahn's algorithm,
linear). With rendezvous and no wildcards it ends in every interleaving or in none (Siegel and
Avrunin, synchronous executions). Example: if ranks 0 and 1 both send first and receive then

    rank 0: send a -> 1 (node 0); recv b <- 1 (node 1)      node 0 follows node 2: the receive of a
    rank 1: send b -> 0 (node 2); recv a <- 0 (node 3)      starts after it; node 2 follows node 0

no level fits nodes 0 and 2, and they are the shortest cycle. A collective of more than two ranks
has a node of its own, which follows the starts of all calls: so n ranks have 2 n edges, not n * n.

Where a communicator runs its operations in order (NCCL), or where slots take part (`transport`), an
operation has two more nodes, its start and its end:

    a start follows the return before it on its rank, and the end before it in its stream
    an end follows its start, and the other sides of its messages, or of its collective
    a return follows the ends of what it awaits

With slots a message has two nodes more: it is sent when its send has started and the k-th message
before it in its channel was received; it is received when it was sent and its receive has started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from primepar.schedule.deadline import in_time
from primepar.schedule.effects import Post
from primepar.schedule.evidence import Cycle, Place, Side
from primepar.schedule.matching import Matches
from primepar.schedule.program import Collective, IRecv, ISend, Send
from primepar.schedule.transport import RENDEZVOUS, Communicator, Transport, joins, message_members

START = -1
"""In place of a node: the start of the program."""
NEVER = -1
"""In place of a level: that of a node that is never reached."""


class WaitGraph:
    """The wait graph of a matched program under a transport.

    `before[node]` are the nodes that a node follows. One that can never be reached, as nothing
    matches what it awaits, follows itself. `places[node]` is the instruction that it belongs to.
    With `joins_posts` adjacent posts of a communicator are one operation, as they are in the
    executor on NCCL.
    """

    def __init__(
        self, matches: Matches, transport: Transport = RENDEZVOUS, joins_posts: bool = False
    ) -> None:
        self.matches, self.transport = matches, transport
        self.before: list[list[int]] = []
        self.places: list[Place] = []
        self.returns: dict[Place, int] = {}
        """Waiting instruction -> the node of its return."""
        self.starts: list[list[int]] = []
        """Rank -> for each instruction the node that it starts after, or `START`."""
        self.operations: dict[Side, int] = {}
        """With streams: side -> the node where its operation starts; the next one is its end."""
        self._ends: set[int] = set()
        self._meetings: dict[Side, int] = {}
        """First side of a collective -> the node of the whole."""
        self._members = {} if transport.is_plain else message_members(matches.program)
        for rank in in_time(range(matches.program.ranks)):
            self._add_rank(rank, joins_posts)
        if not transport.is_plain:
            self._end_operations()
        for place, node in in_time(self.returns.items()):
            self.before[node] += self._awaited(place, node)

    def _add(self, place: Place, *before: int) -> int:
        self.before.append([node for node in before if node != START])
        self.places.append(place)
        return len(self.before) - 1

    def _add_rank(self, rank: int, joins_posts: bool) -> None:
        """Add the returns of a rank in their order, and the operations in its streams."""
        last, starts = START, list[int]()
        streams: dict[Communicator, int] = {}
        batch: list[Post] = []
        """The messages of the last operation, which the next post may join."""
        for index, of in enumerate(self.matches.effects[rank]):
            starts.append(last)
            if not self.transport.is_plain:
                joining = (
                    joins_posts and len(of.posts) == 1 and isinstance(of.posts[0], ISend | IRecv)
                )
                batch = batch if joining else []
                for part, post in enumerate(of.posts):
                    if not self._joins(batch, post):
                        batch, operation = [], self._start(rank, index, post, last, streams)
                    batch.append(post)
                    self.operations[rank, index, part] = operation
                batch = batch if joining else []
            if of.blocks:
                last = self.returns[rank, index] = self._add((rank, index), last)
        self.starts.append(starts)

    def _joins(self, batch: Sequence[Post], post: Post) -> bool:
        """Whether a post is part of the last operation: of one group, or of adjacent posts."""
        if not batch or batch[0].communicator != post.communicator:
            return False
        if self.transport.order != "queue" or isinstance(post, Collective):
            return True
        messages = [other for other in batch if not isinstance(other, Collective)]
        return joins(messages, post, self.matches.program.ranks)

    def _start(
        self, rank: int, index: int, post: Post, last: int, streams: dict[Communicator, int]
    ) -> int:
        """Add an operation, start and end, to the stream of its communicator."""
        members = (
            tuple(sorted(post.group))
            if isinstance(post, Collective)
            else self._members[post.communicator]
        )
        in_queue = self.transport.order == "queue"
        stream: Communicator = ("", ()) if in_queue else (post.communicator, members)
        in_order = self.transport.order != "free"
        start = self._add((rank, index), last, streams.get(stream, START) if in_order else START)
        streams[stream] = self._add((rank, index), start)
        self._ends.add(start + 1)
        return start

    def _end_operations(self) -> None:
        """Make each end follow the other sides of the messages, or calls, of its operation."""
        for messages in self.matches.channels.values():
            received: list[int] = []
            for send, receive in messages:
                sent, got = self.operations[send], self.operations[receive]
                if self.transport.slots == 0:
                    self.before[sent + 1].append(got)
                    self.before[got + 1].append(sent)
                else:
                    self._use_slot(sent, got, received)
        for side, start in self.operations.items():
            if isinstance(self.matches.post(side), Collective):
                self.before[start + 1] += self._meeting(side, start + 1)

    def _use_slot(self, sent: int, got: int, received: list[int]) -> None:
        """Add a message of a channel with k slots; `received` are the receipts of those before it.

        Its data leaves once the k-th message before it was received: then its slot is free.
        """
        k = self.transport.slots
        free = received[-k] if k and len(received) >= k else START
        leaves = self._add(self.places[sent], sent, free)
        received.append(self._add(self.places[got], got, leaves))
        self.before[sent + 1].append(leaves)
        self.before[got + 1].append(received[-1])

    def _meeting(self, side: Side, node: int) -> Iterator[int]:
        """Yield what the end of a collective follows: the starts of its calls."""
        calls = self.matches.partners.get(side)
        if calls is None:
            yield node
            return
        if len(calls) == 1:
            return
        if calls[0] not in self._meetings:
            self._meetings[calls[0]] = self._add(calls[0][:2], *map(self._started, calls))
        yield self._meetings[calls[0]]

    def is_end(self, node: int) -> bool:
        """Whether a node is the end of an operation in a stream."""
        return node in self._ends

    def _started(self, side: Side) -> int:
        """The node after which a side is under way."""
        return self.operations.get(side, self.starts[side[0]][side[1]])

    def _awaited(self, place: Place, node: int) -> Iterator[int]:
        """Yield what the return of an instruction follows on other ranks."""
        matches = self.matches
        awaits = matches.effects[place[0]][place[1]].awaits
        if awaits is not None and place not in matches.posted:
            yield node  # a wait for what is not posted
        is_plain = self.transport.is_plain
        for side in matches.awaited(place):
            post = matches.post(side)
            if not is_plain:
                yield self.operations[side] + 1
            elif isinstance(post, Collective):
                yield from self._meeting(side, node)
            elif not (self.transport.slots is None and isinstance(post, Send | ISend)):
                other = self._partner(side)
                start = self.starts[other[0]][other[1]] if other else node
                if start != START:
                    yield start

    def _partner(self, side: Side) -> Side | None:
        """The other side of a message."""
        pair = self.matches.partners.get(side)
        return None if pair is None else pair[0] if pair[1] == side else pair[1]

    def needs(self, place: Place) -> Iterator[Side]:
        """Yield the matched sides on other ranks that an instruction waits for."""
        for side in self.matches.awaited(place):
            post = self.matches.post(side)
            if self.transport.slots is None and isinstance(post, Send | ISend):
                continue
            yield from (other for other in self.matches.partners.get(side, ()) if other != side)


def levels(graph: WaitGraph) -> list[int]:
    """The longest path to each node, `NEVER` for what is never reached (Kahn's algorithm)."""
    after: list[list[int]] = [[] for _ in graph.before]
    for node, before in enumerate(graph.before):
        for earlier in before:
            after[earlier].append(node)
    # How many predecessors of each node are not reached yet; a node that follows itself always
    # misses one.
    missing = list(map(len, graph.before))
    level = [NEVER if count else 0 for count in missing]
    ready = [node for node, count in enumerate(missing) if not count]
    for node in in_time(ready):
        above = level[node] + 1
        for later in after[node]:
            missing[later] -= 1
            if level[later] < above:  # the last predecessor to be reached need not be the deepest
                level[later] = above
            if not missing[later]:
                ready.append(later)
    return [NEVER if count else depth for depth, count in zip(level, missing, strict=True)]


def shortest_cycle(graph: WaitGraph, level: Sequence[int]) -> Cycle:
    """The shortest cycle among what is never reached, of a program in which everything matches.

    Without streams it is a cycle of ranks: each hangs in its first instruction that never returns.
    With streams it is a cycle of operations, of which the first two ranks are named.
    """
    if graph.transport.is_plain:
        waits = tuple(_waits_of_ranks(graph, level))
        matches = graph.matches
        posts = [matches.post(side) for place, _ in waits for side in matches.awaited(place)]
        return Cycle(waits, any(isinstance(post, Collective) for post in posts))
    places = _places_of_operations(graph, level)
    first = places.index(min(places))
    # A cycle has no beginning: it starts at its lowest place, so that it is the same on every
    # run.
    turned = places[first:] + places[:first]
    shown = [turned[0], *[place for place in turned if place[0] != turned[0][0]][:1]]
    pairs = zip(shown, shown[1:] + shown[:1], strict=True)
    return Cycle(tuple((place, (*other, 0)) for place, other in pairs), in_order=True)


def _waits_of_ranks(graph: WaitGraph, level: Sequence[int]) -> Iterator[tuple[Place, Side]]:
    """Yield (where a rank of the cycle hangs, what it waits for on the next rank)."""
    hanging: dict[int, Place] = {}
    for place, node in graph.returns.items():
        if level[node] == NEVER:
            hanging.setdefault(place[0], place)
    awaited: dict[int, dict[int, Side]] = {}
    for rank, place in hanging.items():
        for side in graph.needs(place):
            start = graph.starts[side[0]][side[1]]
            if start != START and level[start] == NEVER:
                awaited.setdefault(rank, {}).setdefault(side[0], side)
    cycle = _cycle({rank: list(peers) for rank, peers in awaited.items()})
    for rank, peer in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        yield hanging[rank], awaited[rank][peer]


def cycle_of(graph: WaitGraph) -> Cycle | None:
    """The shortest cycle of a program in which everything matches; None if it ends."""
    level = levels(graph)
    return shortest_cycle(graph, level) if NEVER in level else None


def cycle_of_nodes(graph: WaitGraph, level: Sequence[int]) -> list[int]:
    """Nodes each of which follows the next, and the last one the first.

    It is a short cycle, of few searches: not always the shortest.
    """
    left = {node for node, depth in enumerate(level) if depth == NEVER}
    return _cycle({node: [n for n in graph.before[node] if n in left] for node in left}, most=16)


def _places_of_operations(graph: WaitGraph, level: Sequence[int]) -> list[Place]:
    """The places of a cycle: those where an operation ends, if they are on several ranks."""
    cycle = cycle_of_nodes(graph, level)
    ending = dict.fromkeys(graph.places[node] for node in cycle if graph.is_end(node))
    several = len({rank for rank, _ in ending}) > 1
    return list(ending if several else dict.fromkeys(graph.places[node] for node in cycle))


def _cycle(following: dict[int, list[int]], most: int | None = None) -> list[int]:
    """The shortest cycle of a graph that has one, from its lowest node: breadth first from each.

    A node is taken out once the cycles through it are known, and with it all those that then lead
    nowhere. So a ring of n ranks is searched once and not n times. `most` limits the searches that
    found a cycle; then it is a short one and not always the shortest.
    """
    reverse: dict[int, list[int]] = {}
    for node, others in following.items():
        for other in others:
            reverse.setdefault(other, []).append(node)
    degree = {node: len(others) for node, others in following.items()}
    best: list[int] = []
    searches = 0
    for start in in_time(sorted(following)):
        if searches == most:
            break
        if degree.get(start):
            cycle = _cycle_through(start, following, degree, len(best) or len(following) + 1)
            best, searches = cycle or best, searches + bool(cycle)
        leading_nowhere = [start]
        degree[start] = 0
        for node in leading_nowhere:
            for earlier in reverse.get(node, ()):
                if degree[earlier]:
                    degree[earlier] -= 1
                    leading_nowhere += [] if degree[earlier] else [earlier]
    return best


def _cycle_through(
    start: int, following: dict[int, list[int]], degree: dict[int, int], limit: int
) -> list[int]:
    """The shortest cycle through a node, if there is one of fewer nodes than `limit`.

    Nodes of degree 0 lead nowhere.
    """
    came: dict[int, int] = {}
    depth = {start: 0}
    ready = deque([start])
    while ready and start not in came and depth[ready[0]] + 1 < limit:
        node = ready.popleft()
        for later in following.get(node, ()):
            if later not in came and degree.get(later):
                came[later] = node
                depth.setdefault(later, depth[node] + 1)
                ready.append(later)
    if start not in came:
        return []
    cycle = [came[start]]
    while cycle[-1] != start:
        cycle.append(came[cycle[-1]])
    return cycle[::-1]
