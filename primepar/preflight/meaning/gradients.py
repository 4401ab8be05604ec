"""Gradients that optimizers read: summed over all replicas, once, with one coefficient.

Ranks whose parameters of one name start with the same data hold replicas of it. Their gradients
must be the same sums, or they drift apart. And the gradients of all parameters must have one
coefficient: if a parameter's is `1/8` of a sum and that of all others `1/4`, it is scaled by the
wrong count. A coefficient that all parameters share is accepted: a loss may be a mean or a sum.
This property is ours; `docs/preflight.md` lists what it cannot see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from time import perf_counter

from scipy.cluster.hierarchy import DisjointSet

from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.terms import Gradient, GradientClaim, Leaf, RankTerms
from primepar.preflight.meaning.values import Value, digest
from primepar.schedule.counterexample import Counterexample, InvolvedInstruction
from primepar.schedule.words import ranks_text
from primepar.verify.report import PropertyResult

NAME = "gradients"
Replicas = dict[int, GradientClaim]
"""Rank -> its claim, of ranks that hold replicas of one parameter."""


def gradients(values: TermValues, terms: Sequence[RankTerms]) -> PropertyResult:
    """Decide whether all gradients that optimizers read are complete, each counted once."""
    start = perf_counter()
    asked = _GradientQuestions(values, terms)
    wrong = asked.first_certain()
    seconds = perf_counter() - start
    if wrong is None:
        return PropertyResult(NAME, "proved", seconds, reason=asked.notes())
    sentence, details, certain = wrong
    if not certain:
        return PropertyResult(NAME, "unknown", seconds, reason=sentence, details=details)
    return PropertyResult(NAME, "refuted", seconds, counterexample=sentence, details=details)


Wrong = tuple[str, Counterexample, bool]
"""A sentence, the places, and whether it is certain."""


class _GradientQuestions:
    def __init__(self, values: TermValues, terms: Sequence[RankTerms]) -> None:
        self.values, self.terms = values, terms
        self.made: dict[str, set[int]] = {}
        """Digest of a gradient as it was computed -> the ranks that compute it."""
        self.stages = False
        """Whether equal data on several ranks were taken for different layers."""
        self.constant: set[str] = set()
        """Those with equal elements; ranks may compute the same one from different data."""
        for rank, of_rank in enumerate(terms):
            for number, node in enumerate(of_rank.nodes):
                if isinstance(node, Gradient):
                    atom = values.of(rank, number)[0].form[0][0][0]
                    self.made.setdefault(atom, set()).add(rank)
                    data = of_rank.nodes[node.input]
                    if isinstance(data, Leaf) and data.constant:
                        self.constant.add(atom)

    @cached_property
    def summed(self) -> DisjointSet:
        """The ranks over which gradients are summed."""
        union = DisjointSet(range(len(self.terms)))
        for rank, of_rank in enumerate(self.terms):
            for claim in of_rank.claims:
                for other in self._ranks_of(self._gradient(rank, claim)):
                    union.merge(rank, other)
        return union

    @cached_property
    def messages(self) -> DisjointSet:
        """The ranks that exchange messages, also through those that they sum gradients with."""
        union = DisjointSet(range(len(self.terms)))
        for first, *others in self.summed.subsets():
            for other in others:
                union.merge(first, other)
        for source, destination, _ in self.values.matches.channels:
            union.merge(source, destination)
        return union

    def first_certain(self) -> Wrong | None:
        """The first fault that is certain, else the first one, if there is any."""
        first: Wrong | None = None
        for wrong in chain(self.unequal(), self.wrong_scale()):
            first = first or wrong
            if wrong[2]:
                return wrong
        return first

    def unequal(self) -> Iterator[Wrong]:
        """Yield where replicas of a parameter have different gradients."""
        for holders in self._replicas():
            names = {rank: digest(self._gradient(rank, holders[rank])) for rank in holders}
            kinds = {
                (names[rank], self.summed[rank], self.messages[rank]): rank for rank in holders
            }
            for one, other in combinations(sorted(kinds.values()), 2):
                if names[one] == names[other]:
                    continue
                if self._are_replicas(one, other):
                    yield self._differ(holders, one, other)
                else:
                    self.stages = True

    def _are_replicas(self, one: int, other: int) -> bool:
        """Whether equal data on two ranks are one parameter, and not two layers that start equal.

        They are if gradients are summed over both ranks. Ranks that only exchange messages are
        stages of a pipeline, which may start from one seed.
        """
        are_summed = bool(self.summed[one] == self.summed[other])
        return are_summed or bool(self.messages[one] != self.messages[other])

    def wrong_scale(self) -> Iterator[Wrong]:
        """Yield parameters whose gradients have other coefficients than most."""
        numbers = {
            (rank, number): set(self._coefficients(self._gradient(rank, claim)))
            for rank, of_rank in enumerate(self.terms)
            for number, claim in enumerate(of_rank.claims)
        }
        usual = Counter(next(iter(some)) for some in numbers.values() if len(some) == 1)
        if not usual:
            return
        common, _ = usual.most_common(1)[0]
        model = next(place for place, some in numbers.items() if some == {common})
        name = self.terms[model[0]].claims[model[1]].name
        for (rank, number), some in numbers.items():
            if some - {common}:
                yield self._scaled(rank, self.terms[rank].claims[number], common, name)

    def notes(self) -> str | None:
        """What was not decided: the scale of gradients whose terms are opaque, and tied layers."""
        claims = [(rank, claim) for rank, terms in enumerate(self.terms) for claim in terms.claims]
        opaque = sum(not self._ranks_of(self._gradient(rank, claim)) for rank, claim in claims)
        notes = [f"the scale of {opaque} of {len(claims)} was not decided"] if opaque else []
        if self.stages:
            notes.append(
                "parameters with equal data on stages that exchange messages were taken for "
                "different layers"
            )
        return "; ".join(notes) or None

    def _replicas(self) -> Iterator[Replicas]:
        """Ranks that hold one parameter, tied ones too, at an optimizer's step."""
        groups: dict[tuple[str, int, str], Replicas] = {}
        for rank, of_rank in enumerate(self.terms):
            for claim in of_rank.claims:
                parameter = digest(self.values.of(rank, claim.parameter))
                name = claim.name if self._constant(rank, claim) else ""
                groups.setdefault((name, claim.step, parameter), {})[rank] = claim
        for replicas in groups.values():
            if len(replicas) > 1:
                yield replicas

    def _constant(self, rank: int, claim: GradientClaim) -> bool:
        """Whether all elements of a parameter were equal, so that equal ones prove nothing."""
        node = self.terms[rank].nodes[claim.parameter]
        return isinstance(node, Leaf) and node.constant

    def _gradient(self, rank: int, claim: GradientClaim) -> Value:
        return self.values.of(rank, claim.gradient)

    def _coefficients(self, gradient: Value) -> dict[Fraction, int]:
        """The coefficients of computed gradients in a sum, and how many ranks compute such a one.

        Those with equal elements are left out.
        """
        ranks: dict[Fraction, int] = {}
        for (atom, _), number in (term for _, form in gradient for term in form):
            origin = self.values.origins.get(atom, atom)
            if origin in self.made and origin not in self.constant:
                ranks[number] = max(ranks.get(number, 0), len(self.made[origin]))
        return ranks

    def _differ(self, replicas: Replicas, first: int, rank: int) -> Wrong:
        one, other = (
            self._summed(self._gradient(holder, replicas[holder])) for holder in (first, rank)
        )
        certain = not self._constant(rank, replicas[rank])
        name = replicas[rank].name
        where = _place(rank, name, replicas[rank])
        sentence = (
            f"{where}: expected the gradient of rank {first}, which holds a replica, that is "
            f"{one}, got {other}: reduce it over ranks {ranks_text(sorted(replicas))}"
        )
        if not certain:
            sentence = (
                f"{sentence}, if they are replicas: all elements are equal at the start, so that "
                "parts of a sharded parameter would look the same"
            )
        return (
            sentence,
            _details(name, {holder: replicas[holder] for holder in (rank, first)}),
            certain,
        )

    def _summed(self, gradient: Value) -> str:
        ranks = self._ranks_of(gradient)
        if not ranks:
            return "one that is computed otherwise"
        return f"a sum over {'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(sorted(ranks))}"

    def _ranks_of(self, gradient: Value) -> set[int]:
        """The ranks whose gradients are in a sum."""
        atoms = [atom for segment in gradient for (atom, _), _ in segment.form]
        origins = [self.values.origins.get(atom, atom) for atom in atoms]
        return {rank for atom in origins for rank in self.made.get(atom, ())}

    def _scaled(self, rank: int, claim: GradientClaim, common: Fraction, model: str) -> Wrong:
        """A gradient with other coefficients than that of the parameter `model`.

        Not certain where several ranks compute the same gradient, and each may count for itself.
        """
        ranks = self._coefficients(self._gradient(rank, claim))
        fix = "count every rank once" if len(ranks) > 1 else "scale it like the others"
        sentence = (
            f"{_place(rank, claim.name, claim)}: expected its terms with the coefficient {common}, "
            f"as in the gradient of {model}, got {' and '.join(map(str, sorted(ranks)))}: {fix}"
        )
        times = {number / common: count for number, count in ranks.items()}
        certain = any(
            ratio.denominator > 1 or not 0 < ratio <= count for ratio, count in times.items()
        )
        if not certain:
            sentence += ", unless ranks compute equal gradients from different data"
        return sentence, _details(claim.name, {rank: claim}), certain


def _place(rank: int, name: str, claim: GradientClaim) -> str:
    line = f" at {claim.source}" if claim.source else ""
    return f"rank {rank}, gradient of {name}{line}"


def _details(name: str, claims: Replicas) -> Counterexample:
    events = tuple(
        InvolvedInstruction(
            rank, f"the optimizer reads the gradient of {name}", role="reads it",
            wrong=place == 0, source=claim.source,
        )
        for place, (rank, claim) in enumerate(claims.items())
    )  # fmt: skip
    return Counterexample("unfinished-sum", tuple(claims), (name,), events=events)
