"""The values of terms over all ranks: what is received is what the other rank sends.

Which call meets which is known from the matching of the program. The values are found from the
leaves up, without recursion, as the terms of a deep model are long chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from primepar.preflight.meaning.terms import (
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
    WeightedTerm,
    inputs_of,
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
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)


class TermPlace(NamedTuple):
    """One term of one rank."""

    rank: int
    node: int


class TermValues:
    """The values of the terms of all ranks of one program."""

    def __init__(self, program: Program, terms: Sequence[RankTerms]) -> None:
        self.matches = Matches(program)
        self.nodes = [of_rank.nodes for of_rank in terms]
        self.calls = [of_rank.calls for of_rank in terms]
        self._by_index = [{call.instruction: call for call in of_rank} for of_rank in self.calls]
        self.origins: dict[str, str] = {}
        """An atom after linear operations -> what it was before them."""
        self.weights: dict[str, tuple[str, ...]] = {}
        """An atom after linear operations -> the computed numbers that it was multiplied by."""
        self.made_of: dict[str, tuple[list[Value], bool]] = {}
        """The atom of an operation -> its inputs, and whether it is pointwise."""
        self._values: dict[TermPlace, Value] = {}

    def of(self, rank: int, node: int) -> Value:
        """The value of a term, of a program that ends. Raises `ValueError` if it does not."""
        waiting = [TermPlace(rank, node)]
        while waiting:
            place = waiting[-1]
            missing = [need for need in self.needs(place) if need not in self._values]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if place not in self._values:
                self._values[place] = self._value(place)
        return self._values[TermPlace(rank, node)]

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

    def _value(self, place: TermPlace) -> Value:
        rank, node = place.rank, self.nodes[place.rank][place.node]
        inputs = [self._values[need] for need in self.needs(place)]
        match node:
            case Leaf(digest=name, length=length):
                return opaque(name, length)
            case Applied(digest=name, length=length, pointwise=pointwise):
                atom = digest_of(name, *map(digest, inputs))
                self.made_of.setdefault(atom, (inputs, pointwise))
                return opaque(atom, length)
            case Mapped(digest=name, length=length):
                return self._mapped(name, inputs[0], length)
            case WeightedTerm(divides=divides):
                name = digest_of(f"divided {divides}", digest(inputs[1]))
                return self._mapped(name, inputs[0], size(inputs[0]), weighs=True)
            case Scaled(factor=factor):
                return scaled(inputs[0], Fraction(factor))
            case Added():
                return total(inputs)
            case Gradient(length=length):
                return opaque(digest_of("gradient", digest(inputs[0])), length)
            case Cotangent(length=length, function=name):
                return opaque(digest_of("cotangent", name, *map(digest, inputs)), length)
            case Joined(parts=parts):
                pieces = zip(inputs, parts, strict=True)
                return joined(
                    part(value, first, first + count) for value, (_, first, count) in pieces
                )
            case _:
                return self._delivered(rank, node, inputs)

    def _mapped(self, name: str, value: Value, length: int, weighs: bool = False) -> Value:
        """A linear operation of a value; what its atoms were before stays known."""
        for segment in value:
            for atom, _ in segment.form:
                after = mapped_atom(name, atom)
                self.origins[after] = self.origins.get(atom[0], atom[0])
                self.weights[after] = self.weights.get(atom[0], ()) + (name,) * weighs
        return mapped(name, value, length)

    def sources(self, rank: int, received: Received) -> list[TermPlace]:
        """The terms that all sides of a call give to it."""
        place = rank, self.calls[rank][received.call].instruction
        sides = self.matches.sides(place)
        if isinstance(self.matches.post(sides[0]), Message):
            return [self._sent(sides, received)]
        return [
            TermPlace(member, number)
            for member, index, _ in self.matches.partners.get(sides[0], ())
            for number in self._by_index[member][index].reads
        ]

    def _sent(self, sides: Sequence[Side], received: Received) -> TermPlace:
        """The term that the other side of a message sends."""
        receives = [side for side in sides if isinstance(self.matches.post(side), Recv | IRecv)]
        if receives[received.slot] not in self.matches.partners:
            raise ValueError("expected a matched message")
        rank, index, part = self.matches.partners[receives[received.slot]][0]
        sends = [
            side
            for side in self.matches.sides((rank, index))
            if isinstance(self.matches.post(side), Send | ISend)
        ]
        slot = sends.index((rank, index, part))
        return TermPlace(rank, self._by_index[rank][index].reads[slot])

    def _delivered(self, rank: int, received: Received, inputs: list[Value]) -> Value:
        side = rank, self.calls[rank][received.call].instruction, 0
        node = self.matches.post(side)
        if isinstance(node, Message):
            return inputs[0]
        members = self.matches.partners[side]
        counts = [len(self._by_index[member][index].reads) for member, index, _ in members]
        of_member: list[list[Value]] = []
        for count in counts:
            of_member.append(inputs[:count])
            inputs = inputs[count:]
        ranks = [member for member, _, _ in members]
        return _of_collective(node, rank, received, dict(zip(ranks, of_member, strict=True)))


def _of_collective(
    node: Post, rank: int, received: Received, inputs: dict[int, list[Value]]
) -> Value:
    """What a collective delivers on a rank, in a slot; `inputs` are those of each member."""
    slot = received.slot
    group = tuple(getattr(node, "group", ()))
    place = group.index(rank)
    match node:
        case AllReduce() | Reduce():
            return _reduced(node, [inputs[member][slot] for member in group])
        case Broadcast(root=root):
            return inputs[root][slot]
        case Scatter(root=root):
            return inputs[root][place]
        case Gather():
            return inputs[group[slot]][0]
        case AllGather():
            whole = [joined(inputs[member]) for member in group]
            return joined(whole) if received.length > size(whole[0]) else whole[slot]
        case ReduceScatter():
            whole = [joined(inputs[member]) for member in group]
            first = place * received.length
            return _reduced(node, [part(value, first, first + received.length) for value in whole])
        case AllToAll():
            return _exchanged([inputs[member] for member in group], place, received)
        case _:
            names = [digest(value) for member in group for value in inputs[member]]
            return opaque(digest_of(type(node).__name__, str(slot), *names), received.length)


def _exchanged(inputs: list[list[Value]], place: int, received: Received) -> Value:
    """What an all-to-all delivers: every member's part for this one, together or by slot."""
    parts = [
        parts[place] if len(parts) == len(inputs) else _equal_part(parts[0], place, len(inputs))
        for parts in inputs
    ]
    whole = joined(parts)
    return whole if received.length == size(whole) else parts[received.slot]


def _equal_part(value: Value, place: int, parts: int) -> Value:
    length = size(value) // parts
    return part(value, place * length, (place + 1) * length)


def _reduced(node: AllReduce | Reduce | ReduceScatter, values: list[Value]) -> Value:
    if node.reduction == "sum":
        return scaled(total(values), Fraction(node.scale_value))
    names = sorted(map(digest, values))
    return opaque(digest_of(node.reduction, *names), size(values[0]))
