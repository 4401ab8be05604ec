"""Which of two parameters computes what enters the other one, as layers of one model do.

Stages of a pipeline may start from one seed, and shards of tensor parallelism may hold what another
layer drew. Their data are equal then, and yet they are no replicas:

    rank 0: y = x @ w0; send(y)
    rank 1: recv(y); z = y @ w1      # w0 is in what enters w1: two layers

Of replicas none enters the other within a step: each computes of other data, or of what both have
computed, as in tensor and context parallelism. What comes after a step has passed through the
parameters themselves, and these are not looked into.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from primepar.preflight.meaning.evaluate import TermPlace, TermValues
from primepar.preflight.meaning.terms import (
    Cotangent,
    Gradient,
    Joined,
    Leaf,
    Mapped,
    RankTerms,
    Received,
    Scaled,
    inputs_of,
)


class LayerOrder:
    """The order of parameters in the forward passes of all ranks.

    `held` has the terms of each rank's parameters, by name.
    """

    def __init__(
        self, values: TermValues, terms: Sequence[RankTerms], held: Sequence[dict[str, set[int]]]
    ) -> None:
        self.values, self.terms, self.held = values, terms, held
        self.entering = lru_cache(maxsize=None)(self._entering)

    def feeds(self, one: tuple[int, str], other: tuple[int, str]) -> bool:
        """Whether the parameter `one`, of a rank and by its name, is in all that enters the other.

        Before anything was received no term shows what a parameter is used for. Then all outputs of
        its rank are taken to be computed with it.
        """
        rank, entering = one[0], self.entering(*other)
        with_it = self.outputs[rank] | self._terms_of(*one)
        return bool(entering) and all(
            any(place.rank == rank and place.node in with_it for place in places)
            for places in entering
        )

    @cached_property
    def outputs(self) -> list[set[int]]:
        """Of each rank: data that it gives to others, and of which gradients come back."""
        listed = []
        for of_rank in self.terms:
            given = {claim.data for claim in of_rank.pullbacks}.union(
                *(call.reads for call in of_rank.calls if call.forward == "function")
            )
            listed.append({node for node in given if isinstance(of_rank.nodes[node], Leaf)})
        return listed

    @cached_property
    def copies(self) -> list[dict[int, set[int]]]:
        """Of each rank: a term that is put together of parameters -> the terms of these."""
        listed = []
        for of_rank, names in zip(self.terms, self.held, strict=True):
            known = {node: {node} for nodes in names.values() for node in nodes}
            for number, node in enumerate(of_rank.nodes):
                inputs: Sequence[int] = ()
                if isinstance(node, Received):
                    inputs = of_rank.calls[node.call].reads
                elif isinstance(node, Joined | Mapped | Scaled):
                    inputs = inputs_of(node)
                of = set[int]().union(*(known.get(one, ()) for one in inputs))
                if of and number not in known:
                    known[number] = of
            listed.append(known)
        return listed

    @cached_property
    def uses(self) -> list[dict[int, set[int]]]:
        """Of each rank: the term of a parameter -> what is computed with it, not in a backward."""
        listed = []
        for of_rank, copies in zip(self.terms, self.copies, strict=True):
            uses: dict[int, set[int]] = {}
            backward = {node for start, end in of_rank.backward for node in range(start, end)}
            for number, node in enumerate(of_rank.nodes):
                if number not in copies and number not in backward:
                    for one in inputs_of(node):
                        for data in copies.get(one, ()):
                            uses.setdefault(data, set()).add(number)
            listed.append(uses)
        return listed

    def _terms_of(self, rank: int, name: str) -> set[int]:
        """What a parameter held where it was used: its alone, as constants may be of several."""
        names = self.held[rank]
        used = names[name] & self.uses[rank].keys()
        others = set[int]().union(*(nodes for one, nodes in names.items() if one != name))
        return used - others or used

    def _entering(self, rank: int, name: str) -> list[set[TermPlace]]:
        """What enters each operation with a parameter: other parameters, and outputs of ranks."""
        return [
            places
            for data in self._terms_of(rank, name)
            for use in self.uses[rank][data]
            if (places := self._computed_of(rank, use, data)) is not None
        ]

    def _computed_of(self, rank: int, use: int, data: int) -> set[TermPlace] | None:
        """What enters an operation besides a parameter; None if nothing, or a gradient, does."""
        places: set[TermPlace] = set()
        ready = [TermPlace(rank, one) for one in inputs_of(self.terms[rank].nodes[use])
                 if data not in self.copies[rank].get(one, ())]  # fmt: skip
        if not ready:
            return None
        seen = set(ready)
        while ready:
            place = ready.pop()
            if isinstance(self.terms[place.rank].nodes[place.node], Gradient | Cotangent):
                return None
            if place.node in self.outputs[place.rank]:
                places.add(place)
            if place.node in self.copies[place.rank]:
                of = self.copies[place.rank][place.node]
                places |= {TermPlace(place.rank, node) for node in of}
                continue
            later = [need for need in self.values.needs(place) if need not in seen]
            seen.update(later)
            ready += later
        return places
