"""Which ranks hold one parameter, and what speaks for it.

Equal data at the start are no proof: two shards may be initialised from one seed, parts of a
sharded norm are all ones, and runs that have nothing to do with one another may start alike. What
speaks for replicas is a collective that gave the data to both ranks (a broadcast by hand, or by
DDP's constructor), DTensor's placement, or one seed on ranks that sum gradients and exchange no
activations. On others, such as tensor parallel ones, equal data are a question.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.faults import DataFault
from primepar.preflight.meaning.layers import LayerOrder
from primepar.preflight.meaning.terms import (
    Applied,
    Cotangent,
    Gradient,
    GradientClaim,
    Leaf,
    RankTerms,
    Received,
    ReplicaClaim,
    TrainedParameter,
    WeightedTerm,
    inputs_of,
)
from primepar.preflight.meaning.values import digest
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.verify.report import PropertyResult

if TYPE_CHECKING:
    from scipy.cluster.hierarchy import DisjointSet


class ReplicaHolder(NamedTuple):
    """A parameter of one rank, and its gradients step by step."""

    rank: int
    parameter: TrainedParameter
    claims: dict[int, GradientClaim]
    """Step -> what an optimizer read."""

    @property
    def first(self) -> GradientClaim:
        """The claim of the first step that there is."""
        return self.claims[min(self.claims)]

    @property
    def last(self) -> GradientClaim:
        """The claim of the last step that there is."""
        return self.claims[max(self.claims)]


Follows = Literal["copies", "sums", "all"]
Replicas = dict[int, ReplicaHolder]
"""Rank -> what it holds of one parameter."""


class ReplicaQuestions:
    """The parameters of all ranks, and which of them are one."""

    def __init__(self, values: TermValues, terms: Sequence[RankTerms]) -> None:
        self.values, self.terms = values, terms
        self.holders: list[ReplicaHolder] = []
        for rank, of_rank in enumerate(terms):
            claims: dict[str, dict[int, GradientClaim]] = {}
            for claim in of_rank.claims:
                claims.setdefault(claim.name, {})[claim.step] = claim
            for parameter in of_rank.trained:
                self.holders.append(ReplicaHolder(rank, parameter, claims.get(parameter.name, {})))

    def start(self, holder: ReplicaHolder) -> str:
        """A name of what a parameter held before its first gradient."""
        return digest(self.values.of(holder.rank, holder.parameter.start))

    def end(self, holder: ReplicaHolder) -> str:
        """A name of what a parameter holds at the end."""
        return digest(self.values.of(holder.rank, holder.parameter.end))

    def reunited(self, one: ReplicaHolder, other: ReplicaHolder) -> bool:
        """Whether two replicas were changed and are equal at the end."""
        ends = self.end(one), self.end(other)
        return ends[0] == ends[1] != self.start(one)

    @cached_property
    def groups(self) -> list[Replicas]:
        """Parameters that start with the same data on two ranks or more.

        Tied layers of two stages have two names. Where one rank holds equal data twice, as biases
        of zeros, the name decides too.
        """
        by_data: dict[str, list[ReplicaHolder]] = {}
        for holder in self.holders:
            by_data.setdefault(self.start(holder), []).append(holder)
        groups: list[Replicas] = []
        for same in by_data.values():
            twice = len({holder.rank for holder in same}) < len(same)
            by_name: dict[str, Replicas] = {}
            for holder in same:
                name = holder.parameter.name if twice or self.constant(holder) else ""
                by_name.setdefault(name, {})[holder.rank] = holder
            groups += [group for group in by_name.values() if len(group) > 1]
        return groups

    def constant(self, holder: ReplicaHolder) -> bool:
        """Whether all elements were equal, so that equal ones prove nothing."""
        node = self.terms[holder.rank].nodes[holder.parameter.start]
        return isinstance(node, Leaf) and node.constant

    def sharded(self, one: ReplicaHolder, other: ReplicaHolder) -> bool:
        """Whether placements state that two ranks hold different parts, as places in groups do.

        FSDP cuts over 0,2 and over 1,3: rank 0 and rank 3 hold the first and the second part.
        """
        places = [
            [group.index(holder.rank) for group in holder.parameter.sharded]
            for holder in (one, other)
        ]
        return places[0] != places[1]

    def explicit(self, one: ReplicaHolder, other: ReplicaHolder) -> bool:
        """Whether a placement, or a call that gave both ranks their data, makes them replicas."""
        if any(other.rank in group for group in one.parameter.replicated):
            return True
        groups = [set(self.sources(holder.rank, holder.parameter.start)) for holder in (one, other)]
        return any({one.rank, other.rank} <= set(group) for group in groups[0] & groups[1])

    def layers(self, one: ReplicaHolder, other: ReplicaHolder) -> bool:
        """Whether equal data are rather two layers, of which one computes what enters the other.

        An embedding and what is none are tied: they draw no equal numbers.
        """
        if (
            self.explicit(one, other)
            or self.summed[one.rank] == self.summed[other.rank]
            or one.parameter.looked_up != other.parameter.looked_up
        ):
            return False
        pair = [(holder.rank, holder.parameter.name) for holder in (one, other)]
        return self.order.feeds(*pair) != self.order.feeds(*reversed(pair))

    @cached_property
    def order(self) -> LayerOrder:
        """The order of all parameters in forward passes."""
        return LayerOrder(self.values, self.terms, self.held)

    @cached_property
    def held(self) -> list[dict[str, set[int]]]:
        """Of each rank: the terms of what its parameters held, by name."""
        listed: list[dict[str, set[int]]] = [{} for _ in self.terms]
        for holder in self.holders:
            one = holder.parameter
            held = {
                node for node in (one.start, one.end, *one.held, one.updated) if node is not None
            }
            held |= {claim.parameter for claim in holder.claims.values()}
            listed[holder.rank][one.name] = held
        return listed

    def certain(self, one: ReplicaHolder, other: ReplicaHolder) -> bool:
        """Whether more than equal data speaks for replicas: what gave them, or other sums."""
        if self.explicit(one, other):
            return True
        summed = self.summed[one.rank] == self.summed[other.rank]
        return summed and not self.constant(one) and not self.linked(one.rank, other.rank)

    def linked(self, one: int, other: int) -> bool:
        """Whether a gradient of some rank is computed from what these two exchange."""
        return bool(self.activations[one] == self.activations[other])

    def sources(self, rank: int, node: int) -> Iterator[tuple[int, ...]]:
        """The ranks of each call that a tensor came through, if only copied, scaled and summed."""
        calls = self._calls(rank, [node], "copies", stops=set())
        return (self.values.members(rank, call) for call in calls)

    def summed_over(self, rank: int, gradient: int) -> Iterator[tuple[int, ...]]:
        """The ranks of each call that a gradient came through since it was computed."""
        calls = self._calls(rank, [gradient], "sums", stops=set())
        return (self.values.members(rank, call) for call in calls)

    @cached_property
    def summed(self) -> DisjointSet:
        """The ranks over which gradients are summed."""
        return self._union(
            (members for rank, of_rank in enumerate(self.terms) for claim in of_rank.claims
             for members in self.summed_over(rank, claim.gradient))
        )  # fmt: skip

    @cached_property
    def activations(self) -> DisjointSet:
        """The ranks that exchange what gradients are computed from, parameters left out."""
        return self._union(
            self.values.members(rank, call)
            for rank, calls in enumerate(self.differentiated)
            for call in calls
        )

    @cached_property
    def differentiated(self) -> list[set[int]]:
        """Of each rank: the calls that gradients are computed from, parameters left out."""
        listed = []
        for rank, of_rank in enumerate(self.terms):
            roots = [node.input for node in of_rank.nodes if isinstance(node, Gradient)]
            stops = {claim.parameter for claim in of_rank.claims}
            for parameter in of_rank.trained:
                stops |= {parameter.start, *parameter.held}
            listed.append(set(self._calls(rank, roots, "all", stops=stops)))
        return listed

    @cached_property
    def messages(self) -> DisjointSet:
        """The ranks that exchange messages, also through those that they sum gradients with."""
        union = self._union(tuple(subset) for subset in self.summed.subsets())
        for source, destination, _ in self.values.matches.channels:
            union.merge(source, destination)
        return union

    def _union(self, groups: Iterable[tuple[int, ...]]) -> DisjointSet:
        from scipy.cluster.hierarchy import DisjointSet  # a second to import, for few scripts

        union = DisjointSet(range(len(self.terms)))
        for first, *others in groups:
            for other in others:
                union.merge(first, other)
        return union

    def _calls(
        self, rank: int, roots: Sequence[int], follows: Follows, stops: set[int]
    ) -> Iterator[int]:
        """The calls that terms of a rank came through.

        `copies` are also factors and sums; `sums` have what is computed of them too, as by a clamp,
        up to the gradients that were computed. `stops` are not looked into.
        """
        nodes, calls = self.terms[rank].nodes, self.terms[rank].calls
        ready, seen, known = list(roots), set(roots), set()
        while ready:
            number = ready.pop()
            if number in stops:
                continue
            later: Iterable[int]
            match nodes[number]:
                case Received(call=call):
                    later = calls[call].reads
                    if call not in known:
                        known.add(call)
                        yield call
                case WeightedTerm(input=only):
                    later = [only]
                case Applied() if follows == "copies":
                    later = ()
                case Gradient() if follows != "all":
                    later = ()
                case Cotangent():
                    later = ()
                case node:
                    later = inputs_of(node)
            ready += [node for node in later if node not in seen]
            seen.update(later)


def replication(values: TermValues, terms: Sequence[RankTerms]) -> PropertyResult:
    """Decide whether every tensor that is labelled as replicated is the same on all its ranks.

    A partial sum that is labelled `Replicate` is used as if it were the whole sum. The k-th label
    of a group on one rank is that of the same tensor as the k-th one on another.
    """
    start = perf_counter()
    by_tensor: dict[tuple[tuple[int, ...], int], dict[int, ReplicaClaim]] = defaultdict(dict)
    for rank, of_rank in enumerate(terms):
        counts: Counter[tuple[int, ...]] = Counter()
        for claim in of_rank.replicas:
            by_tensor[claim.group, counts[claim.group]][rank] = claim
            counts[claim.group] += 1
    for claims in by_tensor.values():
        names = {rank: digest(values.of(rank, claims[rank].term)) for rank in sorted(claims)}
        first = min(names)
        other = next((rank for rank in names if names[rank] != names[first]), None)
        if other is None:
            continue
        sentence = (
            f"rank {other}, tensor labelled as replicated at {claims[other].source}: expected the "
            f"data of rank {first}, got data that is computed otherwise: label it Partial or "
            f"Shard, or reduce it over ranks {','.join(map(str, claims[other].group))} before"
        )
        events = tuple(
            InvolvedInstruction(rank, "labels a tensor as replicated", wrong=rank == other,
                                source=claims[rank].source)
            for rank in (first, other)
        )  # fmt: skip
        details = Counterexample("wrong-data", (first, other), events=events)
        return DataFault(sentence, details).result("replication", start)
    return PropertyResult("replication", "proved", perf_counter() - start)
