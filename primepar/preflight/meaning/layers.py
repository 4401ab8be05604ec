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

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from primepar.preflight.meaning.evaluate import TermPlace, TermValues
from primepar.preflight.meaning.terms import (
    Cotangent,
    Gradient,
    Joined,
    Mapped,
    RankTerms,
    Received,
    Scaled,
    inputs_of,
)


class _Entering(NamedTuple):
    """What is computed with a parameter in forward passes, and what enters these operations."""

    used: bool
    places: frozenset[TermPlace]
    """Terms of parameters, and outputs of ranks."""


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
        """Whether the parameter `one`, of a rank and by its name, is in what enters the other.

        Before anything was received no term shows what a parameter is used for. Then all outputs of
        its rank are taken to be computed with it.
        """
        places, rank = self.entering(*other).places, one[0]
        if self.entering(*one).used:
            return any(TermPlace(rank, node) in places for node in self._terms_of(*one))
        return any(place.rank == rank and place.node in self.outputs[rank] for place in places)

    @cached_property
    def outputs(self) -> list[set[int]]:
        """Of each rank: what it gives to others, and of which gradients come back."""
        return [
            {claim.data for claim in of_rank.pullbacks}.union(
                *(call.reads for call in of_rank.calls if call.forward == "function")
            )
            for of_rank in self.terms
        ]

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
        used = {node for node in self.held[rank][name] if node in self.uses[rank]}
        return {node for node in used if self._shared[rank][node] == 1} or used

    @cached_property
    def _shared(self) -> list[Counter[int]]:
        """Of each rank: in how many parameters a term is."""
        return [Counter(node for nodes in names.values() for node in nodes) for names in self.held]

    def _entering(self, rank: int, name: str) -> _Entering:
        places, is_used = set[TermPlace](), False
        for data in self._terms_of(rank, name):
            for use in self.uses[rank][data]:
                entering = self._computed_of(rank, use, data)
                if entering is not None:
                    is_used = True
                    places |= entering
        return _Entering(is_used, frozenset(places))

    def _computed_of(self, rank: int, use: int, data: int) -> set[TermPlace] | None:
        """What enters an operation besides a parameter; None for an update by a gradient."""
        places: set[TermPlace] = set()
        ready = [TermPlace(rank, one) for one in inputs_of(self.terms[rank].nodes[use])
                 if data not in self.copies[rank].get(one, ())]  # fmt: skip
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
