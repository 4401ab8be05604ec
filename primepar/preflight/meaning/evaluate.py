"""The values of terms over all ranks: what is received is what the other rank sends.

Which call meets which is known from the matching of the program. The values are found from the
leaves up, without recursion, as the terms of a deep model are long chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from primepar.preflight.meaning.terms import (
    MOVES,
    Added,
    Applied,
    Cotangent,
    Gradient,
    Joined,
    Leaf,
    Mapped,
    RankTerms,
    Received,
    Scaled,
    TermNode,
    WeightedTerm,
    inputs_of,
    without_inputs,
)
from primepar.preflight.meaning.values import (
    Value,
    digest,
    digest_of,
    joined,
    mapped,
    mapped_atom,
    opaque,
    part,
    scaled,
    size,
    total,
)
from primepar.schedule.effects import Post
from primepar.schedule.evidence import Side
from primepar.schedule.matching import Matches
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    IRecv,
    ISend,
    Message,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)

Data = TypeVar("Data")


class ValueAlgebra(NamedTuple, Generic[Data]):
    """What collectives do with values, or with tensors of one dim."""

    joined: Callable[[Iterable[Data]], Data]
    part: Callable[[Data, int, int], Data]
    total: Callable[[Sequence[Data]], Data]
    scaled: Callable[[Data, Fraction], Data]
    size: Callable[[Data], int]
    opaque: Callable[[str, Sequence[Data], int], Data]
    """Of another reduction: what its name, its inputs and its length make."""


def _opaque(name: str, inputs: Sequence[Value], length: int) -> Value:
    return opaque(digest_of(name, *sorted(map(digest, inputs))), length)


VALUES: ValueAlgebra[Value] = ValueAlgebra(joined, part, total, scaled, size, _opaque)


class AtomOperation(NamedTuple):
    """An operation that is not looked into, with what it is computed of."""

    name: str
    inputs: list[Value]
    pointwise: bool


NO_OPERATION = AtomOperation("", [], False)


class TermPlace(NamedTuple):
    """One term of one rank."""

    rank: int
    node: int


class TermValues:
    """The values of the terms of all ranks of one program.

    `parts` are terms whose values are no others', however equal their numbers are, each with the
    place of its rank in a group.
    """

    def __init__(
        self,
        matches: Matches,
        terms: Sequence[RankTerms],
        parts: Mapping[TermPlace, int] = MappingProxyType({}),
    ) -> None:
        self.matches, self.parts = matches, parts
        self.nodes = [of_rank.nodes for of_rank in terms]
        self.calls = [of_rank.calls for of_rank in terms]
        self._by_index = [{call.instruction: call for call in of_rank} for of_rank in self.calls]
        self.origins: dict[str, str] = {}
        """An atom after linear operations -> what it was before them."""
        self.weights: dict[str, tuple[str, ...]] = {}
        """An atom after linear operations -> the computed numbers that it was multiplied by."""
        self.moves: dict[str, frozenset[str]] = {}
        """An atom whose elements are not in their first order -> the operations that moved them."""
        self.made_of: dict[str, AtomOperation] = {}
        """The atom of an operation -> how it is computed."""
        self._values: dict[TermPlace, Value] = {}
        self._alike: dict[tuple[object, ...], Value] = {}
        """What names a value of several ranks -> the value, which they share."""
        self._digests: dict[int, str] = {}
        """Identity of a value that is kept -> its digest."""

    def of(self, rank: int, node: int) -> Value:
        """The value of a term, of a program that ends. Raises `ValueError` if it does not."""
        waiting = [TermPlace(rank, node)]
        while waiting:
            place = waiting[-1]
            alike = self._received_alike(place)
            if place in self._values or alike in self._alike:
                waiting.pop()
                self._values.setdefault(place, self._alike.get(alike, ()))
                continue
            needs = self.needs(place)
            missing = [need for need in needs if need not in self._values]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            inputs = [self._values[need] for need in needs]
            # Values are kept, so that no other one has the identity of an input.
            alike = alike or self._computed_alike(place, inputs)
            if alike not in self._alike:
                self._alike[alike] = self._value(place, inputs)
            self._values[place] = self._alike[alike]
        return self._values[TermPlace(rank, node)]

    def _received_alike(self, place: TermPlace) -> tuple[object, ...]:
        """What names a value that all members of a call receive alike; nothing for others."""
        node = self.nodes[place.rank][place.node]
        if not isinstance(node, Received):
            return ()
        side = place.rank, self.calls[place.rank][node.call].instruction, 0
        if not isinstance(self.matches.post(side), AllReduce | AllGather):
            return ()
        first, index, _ = self.matches.partners[side][0]
        return first, index, node.slot, node.length

    def _computed_alike(self, place: TermPlace, inputs: Sequence[Value]) -> tuple[object, ...]:
        """What names a value that ranks compute alike of the same inputs."""
        node = self.nodes[place.rank][place.node]
        if isinstance(node, Received) or place in self.parts:
            return (place,)
        return (without_inputs(node), *map(id, inputs))

    def members(self, rank: int, call: int) -> tuple[int, ...]:
        """The ranks that meet in a call of a rank, itself included."""
        sides = self.matches.sides((rank, self.calls[rank][call].instruction))
        met = {other for side in sides for other, _, _ in self.matches.partners.get(side, ())}
        return tuple(sorted(met | {rank}))

    def needs(self, place: TermPlace) -> list[TermPlace]:
        """The terms that a term is directly computed from."""
        rank, node = place.rank, self.nodes[place.rank][place.node]
        if isinstance(node, Received):
            return self.sources(rank, node)
        return [TermPlace(rank, number) for number in inputs_of(node)]

    def cone(self, roots: Iterable[TermPlace], *stops: type[TermNode]) -> set[TermPlace]:
        """All terms that terms are computed from, on any rank, up to those of some kinds."""
        ready = list(roots)
        seen = set(ready)
        while ready:
            place = ready.pop()
            if not isinstance(self.nodes[place.rank][place.node], stops):
                later = [need for need in self.needs(place) if need not in seen]
                seen.update(later)
                ready += later
        return seen

    def origins_of(self, value: Value) -> set[str]:
        """The atoms of a value, as they were before linear operations."""
        return {self.origins.get(atom, atom) for _, form in value for (atom, _), _ in form}

    def _value(self, place: TermPlace, inputs: list[Value]) -> Value:
        rank, node = place.rank, self.nodes[place.rank][place.node]
        match node:
            case Leaf(digest=name, length=length):
                return opaque(name, length)
            case Applied(digest=name, length=length, pointwise=pointwise):
                atom = digest_of(name, *map(self._digest, inputs))
                self.made_of.setdefault(atom, AtomOperation(name, inputs, pointwise))
                return opaque(atom, length)
            case Mapped(digest=name, length=length):
                return self._mapped(name, inputs[0], length)
            case WeightedTerm(divides=divides):
                name = digest_of(f"divided {divides}", self._digest(inputs[1]))
                return self._mapped(name, inputs[0], size(inputs[0]), weighs=True)
            case Scaled() if place in self.parts:
                part_of = digest_of("part", str(self.parts[place]), self._digest(inputs[0]))
                return opaque(part_of, size(inputs[0]))
            case Scaled(factor=factor):
                return scaled(inputs[0], Fraction(factor))
            case Added():
                return total(inputs)
            case Gradient(length=length):
                gradient = digest_of("gradient", self._digest(inputs[0]))
                of_input = [self.moves.get(atom) for _, form in inputs[0] for (atom, _), _ in form]
                if len(of_input) == 1 and of_input[0]:  # in a hook, or of a weight that is moved
                    self.moves[gradient] = of_input[0]
                return opaque(gradient, length)
            case Cotangent(length=length):
                return opaque(digest_of("cotangent", *map(self._digest, inputs)), length)
            case Joined(parts=parts):
                pieces = zip(inputs, parts, strict=True)
                return joined(
                    part(value, first, first + count) for value, (_, first, count) in pieces
                )
            case _:
                return self.delivered(rank, node, inputs, VALUES)

    def _digest(self, value: Value) -> str:
        known = self._digests.get(id(value))
        if known is None:
            known = self._digests[id(value)] = digest(value)
        return known

    def _mapped(self, name: str, value: Value, length: int, weighs: bool = False) -> Value:
        """A linear operation of a value; what its atoms were before stays known."""
        for segment in value:
            for atom, _ in segment.form:
                after = mapped_atom(name, atom)
                self.origins[after] = self.origins.get(atom[0], atom[0])
                moves = self.moves.get(atom[0], frozenset())
                moves ^= {name} if name.startswith(MOVES) else frozenset()
                if moves:
                    self.moves[after] = moves
                self.weights[after] = self.weights.get(atom[0], ()) + (name,) * weighs
        return mapped(name, value, length)

    def sources(self, rank: int, received: Received) -> list[TermPlace]:
        """The terms that all sides of a call give to it."""
        return [
            TermPlace(member, self._by_index[member][index].reads[slot])
            for member, index, slot in self.reads(rank, received)
        ]

    def reads(self, rank: int, received: Received) -> list[tuple[int, int, int]]:
        """The rank, the instruction and the slot of all that the sides of a call give to it."""
        place = rank, self.calls[rank][received.call].instruction
        sides = self.matches.sides(place)
        if isinstance(self.matches.post(sides[0]), Message):
            return [self._sent(sides, received)]
        return [
            (member, index, slot)
            for member, index, _ in self.matches.partners.get(sides[0], ())
            for slot in range(len(self._by_index[member][index].reads))
        ]

    def _sent(self, sides: Sequence[Side], received: Received) -> tuple[int, int, int]:
        """What the other side of a message sends."""
        receives = [side for side in sides if isinstance(self.matches.post(side), Recv | IRecv)]
        if receives[received.slot] not in self.matches.partners:
            raise ValueError("expected a matched message")
        rank, index, part = self.matches.partners[receives[received.slot]][0]
        sends = [
            side
            for side in self.matches.sides((rank, index))
            if isinstance(self.matches.post(side), Send | ISend)
        ]
        return rank, index, sends.index((rank, index, part))

    def delivered(
        self, rank: int, received: Received, inputs: list[Data], algebra: ValueAlgebra[Data]
    ) -> Data:
        """What a call delivers, of all that its sides give, as values or as tensors."""
        side = rank, self.calls[rank][received.call].instruction, 0
        node = self.matches.post(side)
        if isinstance(node, Message):
            return inputs[0]
        members = self.matches.partners[side]
        counts = [len(self._by_index[member][index].reads) for member, index, _ in members]
        of_member: list[list[Data]] = []
        for count in counts:
            of_member.append(inputs[:count])
            inputs = inputs[count:]
        ranks = [member for member, _, _ in members]
        given = dict(zip(ranks, of_member, strict=True))
        return _of_collective(node, rank, received, given, algebra)


def _of_collective(
    node: Post, rank: int, received: Received, inputs: dict[int, list[Data]],
    algebra: ValueAlgebra[Data],
) -> Data:  # fmt: skip
    """What a collective delivers on a rank, in a slot; `inputs` are those of each member."""
    slot, size, part = received.slot, algebra.size, algebra.part
    group = tuple(getattr(node, "group", ()))
    place = group.index(rank)
    match node:
        case AllReduce() | Reduce():
            return _reduced(node, [inputs[member][slot] for member in group], algebra)
        case Broadcast(root=root):
            return inputs[root][slot]
        case Scatter(root=root):
            return inputs[root][place]
        case Gather():
            return inputs[group[slot]][0]
        case AllGather():
            whole = [algebra.joined(inputs[member]) for member in group]
            joins = received.length > size(whole[0])
            return algebra.joined(whole) if joins else whole[slot]
        case ReduceScatter():
            whole = [algebra.joined(inputs[member]) for member in group]
            first = place * received.length
            parts = [part(value, first, first + received.length) for value in whole]
            return _reduced(node, parts, algebra)
        case AllToAll():
            parts = []
            for given in (inputs[member] for member in group):
                length = size(given[0]) // len(group)
                even = part(given[0], place * length, (place + 1) * length)
                parts.append(given[place] if len(given) == len(group) else even)
            together = algebra.joined(parts)
            return together if received.length == size(together) else parts[slot]
        case _:
            every = [value for member in group for value in inputs[member]]
            return algebra.opaque(f"{type(node).__name__} {slot}", every, received.length)


def _reduced(
    node: AllReduce | Reduce | ReduceScatter, values: list[Data], algebra: ValueAlgebra[Data]
) -> Data:
    if node.reduction == "sum":
        return algebra.scaled(algebra.total(values), Fraction(node.scale_value))
    return algebra.opaque(node.reduction, values, algebra.size(values[0]))
