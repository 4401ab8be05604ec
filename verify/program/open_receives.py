"""Explores what receives from any rank may take: every matching that MPI may make.

Between two choices all ranks run as far as they can, and messages with one possible partner are
delivered: these moves commute with all others. Then one message is chosen for one receive from any
rank (Vakkalanka et al., "Dynamic verification of MPI programs with reductions", 2008), or the
system buffers the sends that one rank waits for. States are followed once. For example, a master
that receives twice from any of two workers has two matchings, which meet in one state at the end.

A state where no choice is left and a rank has not ended is a deadlock. The search is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from primepar.schedule.program import ANY, Group, Message, Program
from primepar.verify.deadline import UnansweredError, in_time
from primepar.verify.program.calls import disputed_side
from primepar.verify.program.matching import Matching, MessageEnd, Operation, place, unmatched
from primepar.verify.program.solver import Solver
from primepar.verify.program.wait_order import circle_of

MOST_STATES = 20_000
MOST_MATCHINGS = 200
Place = tuple[int, int, int]
"""Rank, instruction, and position in its group."""
SHOWN = 8
"""Choices that a sentence lists."""
Pair = tuple[MessageEnd, MessageEnd]
"""A send and its receive."""


class State(NamedTuple):
    """Where every rank is, the messages that are posted and not taken, and the choices so far."""

    positions: tuple[int, ...]
    waiting: frozenset[MessageEnd]
    taken: frozenset[Pair]
    early: frozenset[MessageEnd]

    def key(self, matchings: bool) -> tuple[Any, ...]:
        """What distinguishes states; matchings only where they are asked for."""
        return (*self[:2], self.taken) if matchings else self[:2]


class WrongEnd(NamedTuple):
    """A state that is no end, or a pair of which the sides disagree."""

    state: State
    disputed: Pair | None = None


class OpenSearch:
    """The states of a program with receives from any rank.

    With `taken`, those of one run: each receive takes what it took there, or nothing.
    """

    def __init__(
        self, flow: Matching, buffered: bool, taken: Mapping[Place, Place] | None = None
    ) -> None:
        self.flow, self.buffered, self._taken = flow, buffered, taken
        self.stops = False
        """Whether some matching that was followed stops before its end."""

    def wrong(self, solver: Solver) -> str | None:
        """The first deadlock, as a sentence with the choices that lead to it; None without one.

        Raises `UnansweredError` beyond `MOST_STATES`.
        """
        for end in self._ends(False, MOST_STATES):
            if isinstance(end, WrongEnd):
                return self._sentence(end, solver)
        return None

    def programs(self) -> Iterator[Program]:
        """Yield the program of each matching: every receive is from one rank, with one tag.

        Raises `UnansweredError` beyond `MOST_MATCHINGS`.
        """
        count = 0
        for end in self._ends(True, MOST_STATES):
            self.stops |= isinstance(end, WrongEnd)
            if isinstance(end, State):
                count += 1
                if count > MOST_MATCHINGS:
                    raise UnansweredError(
                        f"receives from any rank match in more than {MOST_MATCHINGS} ways"
                    )
                yield self._resolved(end)

    def _ends(self, matchings: bool, limit: int) -> Iterator[State | WrongEnd]:
        """Yield the states at which the program ends, rightly or not."""
        ranks = len(self.flow.operations)
        start = State((-1,) * ranks, frozenset(), frozenset(), frozenset())
        ready, seen = [start], set[tuple[Any, ...]]()
        while ready:
            state = self._settled(ready.pop())
            if isinstance(state, WrongEnd):
                yield state
                continue
            if state.key(matchings) in seen:
                continue
            seen.add(state.key(matchings))
            if len(seen) > limit:
                raise UnansweredError(
                    f"receives from any rank lead to more than {limit} states: "
                    "name their peers, or take fewer ranks"
                )
            fitting = [pair for pair in _fitting(state.waiting) if pair[1].message.peer == ANY]
            pairs = [pair for pair in fitting if self._is_followed(*pair)]
            disputed = next((pair for pair in pairs if disputed_side(pair)), None)
            if disputed is not None:
                yield WrongEnd(state, disputed)
            elif fitting:
                ready += [*self._buffered(state), *self._choices(state, pairs)]
            else:
                yield state if self._is_end(state) else WrongEnd(state)

    def _is_followed(self, send: MessageEnd, receive: MessageEnd) -> bool:
        """Whether a receive may take a message, by the `taken` ones of one run."""
        return self._taken is None or self._taken.get(receive.place) == send.place

    def _is_end(self, state: State) -> bool:
        lengths = map(len, self.flow.operations)
        return not state.waiting and all(map(int.__ge__, state.positions, lengths))

    def _settled(self, state: State) -> State | WrongEnd:
        """The state after all moves that commute with others."""
        positions, waiting = list(state.positions), set(state.waiting)
        moved = True
        while moved:
            moved = False
            for rank, operations in enumerate(in_time(self.flow.operations)):
                while positions[rank] < len(operations) and (
                    positions[rank] < 0
                    or self._returns(operations[positions[rank]], positions, waiting, state.early)
                ):
                    positions[rank] += 1
                    moved = True
                    if positions[rank] < len(operations):
                        waiting |= set(operations[positions[rank]].starts)
            for pair in list(_fitting(waiting)):
                if pair[1].message.peer != ANY and waiting.issuperset(pair):
                    if disputed_side(pair) is not None:
                        return WrongEnd(state, pair)
                    waiting -= set(pair)
                    moved = True
        return state._replace(positions=tuple(positions), waiting=frozenset(waiting))

    def _returns(
        self,
        operation: Operation,
        positions: list[int],
        waiting: set[MessageEnd],
        early: frozenset[MessageEnd],
    ) -> bool:
        if not operation.blocks:
            return True
        call = operation.call
        if call is not None and not operation.awaits:
            calls = self.flow.matched_calls.get(call)
            return calls is not None and all(positions[met.rank] >= met.index for met in calls)
        return all(
            post not in waiting or post in early or post.returns_early(self.buffered)
            for post in operation.awaits
        ) and bool(operation.awaits)

    def _choices(self, state: State, pairs: list[Pair]) -> Iterator[State]:
        """Yield the states after a receive from any rank has taken a message."""
        for pair in pairs:
            yield state._replace(waiting=state.waiting - set(pair), taken=state.taken | {pair})

    def _buffered(self, state: State) -> Iterator[State]:
        """Yield the states after the system has buffered the sends that a rank waits for."""
        for rank, position in enumerate(state.positions if not self.buffered else ()):
            operations = self.flow.operations[rank]
            awaits = operations[position].awaits if position < len(operations) else ()
            sends = {post for post in awaits if post in state.waiting}
            if sends and all(post.may_be_buffered for post in sends):
                yield state._replace(early=state.early | sends)

    def _sentence(self, end: WrongEnd, solver: Solver) -> str:
        lines = [self._reason(end, solver)]
        taken = sorted(end.state.taken, key=lambda pair: (pair[1].rank, pair[1].index))
        lines += [
            f"  where {place(receive)} takes {place(send)}" for send, receive in taken[:SHOWN]
        ]
        if len(taken) > SHOWN:
            lines.append(f"  and {len(taken) - SHOWN} more receives from any rank")
        early = sorted(map(place, end.state.early))[:SHOWN]
        lines += [f"  where the system has buffered {send}" for send in early]
        return "\n".join(lines)

    def _reason(self, end: WrongEnd, solver: Solver) -> str:
        if end.disputed is not None:
            item, sentence = disputed_side(end.disputed) or (end.disputed[1], "")
            return f"{place(item)}: {sentence}"
        state = end.state
        hanging: dict[int, tuple[Operation, list[tuple[int, MessageEnd | Operation]]]] = {}
        for post in sorted(state.waiting, key=lambda post: (post.sends, post.index, post.rank)):
            if self._partner(post, state) is None:
                return f"{place(post)}: {unmatched(post, tagged=True)}"
        for rank, position in enumerate(state.positions):
            if position < len(self.flow.operations[rank]):
                operation = self.flow.operations[rank][position]
                awaited = list(self._awaited(operation, state))
                hanging[rank] = (operation, [(item.rank, item) for item in awaited])
        return circle_of(hanging, solver)

    def _awaited(self, operation: Operation, state: State) -> Iterator[MessageEnd | Operation]:
        for post in operation.awaits:
            partner = self._partner(post, state) if post in state.waiting else None
            if partner is not None:
                yield partner
        call = None if operation.awaits else operation.call
        for other in self.flow.matched_calls.get(call, ()) if call else ():
            if state.positions[other.rank] < other.index:
                yield other

    def _partner(self, post: MessageEnd, state: State) -> MessageEnd | None:
        """The first message that fits a post and is not taken, posted or not."""
        peers = range(len(state.positions)) if post.message.peer == ANY else [post.message.peer]
        for peer in peers:
            for operation in self.flow.operations[peer]:
                for other in operation.starts:
                    is_left = other in state.waiting or operation.index > state.positions[peer]
                    if is_left and other.sends != post.sends and _fits(post, other):
                        return other
        return None

    def _resolved(self, state: State) -> Program:
        """The program in which every receive takes what it took, and no other send is buffered."""
        taken = {receive: send for send, receive in state.taken}
        lists = []
        for rank, operations in enumerate(self.flow.operations):
            count = len(self.flow.program.programs[rank])
            lists.append(
                tuple(_named(operation, taken, state.early) for operation in operations[:count])
            )
        return replace(self.flow.program, programs=tuple(lists))


def _fitting(waiting: set[MessageEnd] | frozenset[MessageEnd]) -> Iterator[Pair]:
    """Yield pairs of which each side is the first that fits the other, of its rank."""
    posted = sorted(waiting, key=lambda post: (post.rank, post.index, post.number))
    sends = [post for post in posted if post.sends]
    for place_, receive in enumerate(posted):
        if receive.sends:
            continue
        sources = set[int]()
        for send in sends:
            if send.rank in sources or not _fits(send, receive):
                continue
            sources.add(send.rank)
            earlier = (post for post in posted[:place_] if post.rank == receive.rank)
            if not any(_fits(send, post) for post in earlier if not post.sends):
                yield send, receive


def _fits(first: MessageEnd, second: MessageEnd) -> bool:
    send, receive = (first, second) if first.sends else (second, first)
    return (
        send.message.communicator == receive.message.communicator
        and send.message.peer == receive.rank
        and receive.message.peer in (ANY, send.rank)
        and receive.message.tag in (ANY, send.message.tag)
    )


def _named(
    operation: Operation, taken: dict[MessageEnd, MessageEnd], early: frozenset[MessageEnd]
) -> Any:
    """An instruction with the peers and tags of what its receives took."""
    node: Any = operation.instruction
    bodies: list[Message] = []
    for post in operation.starts:
        changed: Any = post.message
        if post in taken:
            send = taken[post]
            changed = replace(changed, peer=send.rank, tag=send.message.tag)
        if post in early and post.may_be_buffered:
            changed = replace(changed, mode="buffered")
        bodies.append(changed)
    if isinstance(node, Group):
        return replace(node, body=tuple(bodies))
    return bodies[0] if bodies else node
