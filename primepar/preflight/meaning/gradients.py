"""Gradients that optimizers read: summed over all replicas, once, with one coefficient.

Replicas of a parameter (`replicas.py`) must get the same sums, and must be the same at the end, or
they drift apart. All terms of a gradient must have one coefficient, and all parameters the same: if
one's is `1/8` of a sum and that of all others `1/4`, it is scaled by the wrong count. A coefficient
that all share is accepted and printed: a loss may be a mean or a sum. A proof states what it has
compared, and is none where it compared nothing. This property is ours; `docs/preflight.md` lists
what it cannot see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from time import perf_counter

from primepar.preflight.meaning.faults import DataFault, details_of, place_of, worst
from primepar.preflight.meaning.passes import PassQuestions
from primepar.preflight.meaning.replicas import ReplicaHolder, ReplicaQuestions, Replicas
from primepar.preflight.meaning.terms import Gradient, GradientClaim, Leaf
from primepar.preflight.meaning.updates import UpdateQuestions
from primepar.preflight.meaning.values import Value, digest, size
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.words import ranks_text
from primepar.verify.report import PropertyResult, Verdict

NAME = "gradients"


def gradients(replicas: ReplicaQuestions) -> PropertyResult:
    """Decide whether all gradients that optimizers read are complete, each counted once."""
    start = perf_counter()
    asked = _GradientQuestions(replicas)
    wrong = worst(asked.wrong())
    if wrong is not None:
        return wrong.result(NAME, start)
    verdict: Verdict = "proved"
    reasons = asked.compared()
    if not reasons:
        verdict, nothing = asked.nothing()
        reasons = [nothing]
    reason = "; ".join([*reasons, *asked.notes()])
    return PropertyResult(NAME, verdict, perf_counter() - start, reason=reason)


class _GradientQuestions:
    def __init__(self, replicas: ReplicaQuestions) -> None:
        self.replicas, self.values, self.terms = replicas, replicas.values, replicas.terms
        self.made: dict[str, set[int]] = {}
        """Digest of a gradient as it was computed -> the ranks that compute it."""
        self.made_for: dict[str, set[str]] = {}
        """Digest of a gradient as it was computed -> the parameters that it is of."""
        self.stages = False
        """Whether equal data on several ranks were taken for different layers."""
        self.averaged: set[str] = set()
        """Parameters that were made equal after other gradients, which shows nothing of factors."""
        self.constant: set[str] = set()
        """Those with equal elements; ranks may compute the same one from different data.

        And those that are the same in several steps, as of the bias of a layer whose output is the
        loss: where a script keeps `grad` from step to step, they are in it several times.
        """
        for rank, of_rank in enumerate(self.terms):
            ends = Counter[int]()
            for claim in of_rank.claims:
                ends[claim.step] = max(ends[claim.step], claim.gradient)
            limits, steps = sorted(ends.values()), dict[str, int]()
            for number, node in enumerate(of_rank.nodes):
                if isinstance(node, Gradient):
                    atom = self.values.of(rank, number)[0].form[0][0][0]
                    self.made.setdefault(atom, set()).add(rank)
                    step = bisect_left(limits, number)
                    if steps.setdefault(atom, step) != step:
                        self.constant.add(atom)
                    self.made_for.setdefault(atom, set()).add(node.parameter)
                    data = of_rank.nodes[node.input]
                    if isinstance(data, Leaf) and data.constant:
                        self.constant.add(atom)

    def wrong(self) -> Iterator[DataFault]:
        """Yield all that is wrong, or may be."""
        return chain(
            self.idle(), self.unequal(), self.moved(), self.exchanged(), self.apart(),
            self.wrong_scale(),
            UpdateQuestions(self.replicas, self.made, self.made_for).wrong(), self.clipped(),
            PassQuestions(self.values, self.terms).wrong(),
        )  # fmt: skip

    def unequal(self) -> Iterator[DataFault]:
        """Yield where replicas get different gradients, or hold different data at the end.

        What counts is what a parameter holds: where a later average or broadcast has made replicas
        equal again, their gradients may differ.
        """
        for holders in self.replicas.groups:
            kinds = {self._history(holder): rank for rank, holder in holders.items()}
            for one, other in combinations(sorted(kinds.values()), 2):
                pair = holders[one], holders[other]
                if self.replicas.sharded(*pair):
                    continue
                if self.replicas.reunited(*pair):
                    if self._first_difference(*pair) is not None:
                        self.averaged |= {holder.parameter.name for holder in pair}
                    continue
                if self.replicas.layers(*pair):
                    self.stages = True
                    continue
                step = self._first_difference(*pair)
                if step is not None:
                    yield self._differ(holders, one, other, step)
                elif self.replicas.end(pair[0]) != self.replicas.end(pair[1]):
                    yield self._drifts(*pair)

    def _history(self, holder: ReplicaHolder) -> tuple[object, ...]:
        """All that is compared of a replica; equal ones are looked at once."""
        summed, messages = self.replicas.summed[holder.rank], self.replicas.messages[holder.rank]
        return (*self._gradients(holder), self.replicas.end(holder), summed, messages)

    def _gradients(self, holder: ReplicaHolder) -> tuple[tuple[int, str], ...]:
        """The steps of a replica, with names of its gradients."""
        claims = sorted(holder.claims.items())
        return tuple((step, digest(self._gradient(holder.rank, claim))) for step, claim in claims)

    def _first_difference(self, one: ReplicaHolder, other: ReplicaHolder) -> int | None:
        """The first step whose gradients differ, of those that both ranks take."""
        for step in sorted(one.claims.keys() & other.claims.keys()):
            pair = [self._gradient(holder.rank, holder.claims[step]) for holder in (one, other)]
            if digest(pair[0]) != digest(pair[1]):
                return step
        return None

    def apart(self) -> Iterator[DataFault]:
        """Yield parameters that get one sum on two ranks, and started with different data."""
        by_name: dict[tuple[str, int], list[ReplicaHolder]] = {}
        for holder in self.replicas.holders:
            length = size(self.values.of(holder.rank, holder.parameter.start))
            by_name.setdefault((holder.parameter.name, length), []).append(holder)
        for holders in by_name.values():
            kinds: dict[tuple[object, ...], ReplicaHolder] = {}
            for holder in holders:
                kinds.setdefault((self.replicas.start(holder), *self._gradients(holder)), holder)
            by_sum: dict[tuple[int, str], list[ReplicaHolder]] = {}
            for holder in kinds.values():
                for gradient in self._gradients(holder):
                    by_sum.setdefault(gradient, []).append(holder)
            pairs = ((step, *pair) for (step, _), same in by_sum.items()
                     for pair in combinations(same, 2))  # fmt: skip
            for step, one, other in pairs:
                same = any(of(one) == of(other) for of in (self.replicas.start, self.replicas.end))
                if same or self.replicas.sharded(one, other):
                    continue
                if step != min(one.claims.keys() & other.claims.keys()):
                    continue
                calls = self.replicas.sources(one.rank, one.claims[step].gradient)
                if any({one.rank, other.rank} <= set(members) for members in calls):
                    yield self._started_apart(one, other, step)

    def exchanged(self) -> Iterator[DataFault]:
        """Yield gradients that an optimizer reads for a parameter and that are of other ones.

        As where a flat vector is cut in another order than it was put together. Tied parameters
        have gradients of several names, of which one is their own.
        """
        named = {name for names in self.made_for.values() for name in names}
        claims = [(rank, claim) for rank, of_rank in enumerate(self.terms)
                  for claim in of_rank.claims if claim.name in named]  # fmt: skip
        for rank, claim in claims:
            place = 0
            for length, form in self._gradient(rank, claim):
                origins = {(self.values.origins.get(atom, atom), atom, first)
                           for (atom, first), _ in form}  # fmt: skip
                known = [one for one in origins if "" not in self.made_for.get(one[0], {""})]
                right = any(
                    claim.name in self.made_for[origin] and (origin != atom or first == place)
                    for origin, atom, first in known
                )
                if known and not right:
                    names = sorted({name for one in known for name in self.made_for[one[0]]})
                    problem = (
                        f"expected elements {place} to {place + length - 1} to be gradients of the "
                        f"same elements, got those of {' and '.join(names)} or of other elements: "
                        "take the gradients apart as they were put together"
                    )
                    yield DataFault.of_gradient(rank, claim, problem)
                    break
                place += length

    def moved(self) -> Iterator[DataFault]:
        """Yield gradients that are summed in another order of elements than they were computed.

        What a hook moves on all ranks may be meant, also of a weight that is used in that order.
        """
        none, moves, origins = frozenset[str](), self.values.moves, self.values.origins
        claims = [(rank, one) for rank, of_rank in enumerate(self.terms) for one in of_rank.claims]
        for rank, claim in claims:
            atoms = {atom for _, form in self._gradient(rank, claim) for (atom, _), _ in form}
            computed = {atom: origins.get(atom, atom) for atom in atoms}
            hooked = {moves.get(one, none) for one in computed.values() if one in self.made}
            later = {moves.get(atom, none) ^ moves.get(one, none)
                     for atom, one in computed.items() if one in self.made}  # fmt: skip
            certain = bool(later - {none})
            if certain or len(hooked) > 1:
                kinds = (later if certain else hooked) - {none}
                how = " and ".join(sorted(min(kinds, key=sorted)))
                problem = (
                    "expected gradients in the order in which they are computed, got one that "
                    f"{how}: sum all as they are"
                )
                problem += "" if certain else ", unless the weight of its rank is in that order"
                yield DataFault.of_gradient(rank, claim, problem, certain)

    def wrong_scale(self) -> Iterator[DataFault]:
        """Yield parameters whose gradients have other coefficients than most, or several."""
        numbers = {
            (rank, number): set(self._coefficients(self._gradient(rank, claim)))
            for rank, of_rank in enumerate(self.terms)
            for number, claim in enumerate(of_rank.claims)
            if claim.name not in self.averaged
        }
        weights = self._rank_weights
        if sum(weights.values()) == 1:
            return
        if weights and min(weights.values()) > 0:
            rank, claim = next((rank, terms.claims[0]) for rank, terms in enumerate(self.terms)
                               if terms.claims)  # fmt: skip
            problem = (
                f"each rank scales by its own factor: {_listed(weights)}, which sum to "
                f"{sum(weights.values())} and not to 1, as the weights of a mean do, such as its "
                "share of all tokens: scale all ranks alike, if they are meant alike"
            )
            yield DataFault.of_gradient(rank, claim, problem, False)
            return
        usual = Counter(next(iter(some)) for some in numbers.values() if len(some) == 1)
        model = ""
        if usual:
            common, _ = usual.most_common(1)[0]
            rank, number = next(place for place, some in numbers.items() if some == {common})
            model = self.terms[rank].claims[number].name
        for (rank, number), some in numbers.items():
            if len(some) > 1 and not usual:
                yield self._scaled(rank, self.terms[rank].claims[number], min(some), model)
            elif usual and some - {common}:
                yield self._scaled(rank, self.terms[rank].claims[number], common, model)

    @cached_property
    def _rank_weights(self) -> dict[int, Fraction]:
        """The factor of each rank, if all gradients that it computes have one, and ranks differ."""
        weights: dict[int, set[Fraction]] = {}
        for rank, of_rank in enumerate(self.terms):
            for claim in of_rank.claims:
                for atom, number in self._atoms(self._gradient(rank, claim)):
                    for maker in self.made.get(atom, ()):
                        weights.setdefault(maker, set()).add(number)
        if any(len(some) > 1 for some in weights.values()):
            return {}
        shares = {rank: next(iter(some)) for rank, some in sorted(weights.items())}
        return shares if len(set(shares.values())) > 1 else {}

    def clipped(self) -> Iterator[DataFault]:
        """Yield gradients that ranks multiply by numbers that they compute each for itself."""
        numbers: dict[int, dict[int, tuple[GradientClaim, set[tuple[str, ...]]]]] = {}
        for rank, of_rank in enumerate(self.terms):
            for claim in of_rank.claims:
                gradient = self._gradient(rank, claim)
                atoms = [name for _, form in gradient for (name, _), _ in form]
                factors = {self.values.weights.get(name, ()) for name in atoms}
                if len(factors) > 1:
                    yield self._clips(rank, claim, "after the sum")
                    return
                of_step = numbers.setdefault(claim.step, {})
                of_step.setdefault(rank, (claim, set()))[1].update(factors)
        for of_step in numbers.values():
            _, first = next(iter(of_step.values()))
            for rank, (claim, factors) in of_step.items():
                if factors != first:
                    yield self._clips(rank, claim, "by one norm of the whole model")
                    return

    def idle(self) -> Iterator[DataFault]:
        """Yield ranks whose optimizers find no gradient; certain where nothing is trained."""
        for rank, of_rank in enumerate(self.terms):
            if of_rank.idle and not of_rank.claims:
                sentence = (
                    f"rank {rank}, the optimizer's step at {of_rank.idle}: expected gradients, as "
                    "a backward pass has computed some, got none: synchronise them before the step"
                )
                event = InvolvedInstruction(
                    rank, "the optimizer's step", wrong=True, source=of_rank.idle
                )
                certain = not any(
                    one.claims or any(holder.start != holder.end for holder in one.trained)
                    for one in self.terms
                )
                details = Counterexample("unfinished-sum", (rank,), events=(event,))
                yield DataFault(sentence, details, certain)
                return

    def compared(self) -> list[str]:
        """What was compared: how many parameters, on which ranks, and how."""
        kinds: Counter[str] = Counter()
        grouped: set[tuple[int, str]] = set()
        for holders in self.replicas.groups:
            equal: dict[tuple[object, ...], list[ReplicaHolder]] = {}
            for holder in holders.values():
                changed = self.replicas.end(holder) != self.replicas.start(holder)
                kind = (self.replicas.end(holder),) if changed else self._gradients(holder)
                equal.setdefault(kind, []).append(holder)
            for same in equal.values():
                if len(same) > 1 and any(
                    not self.replicas.sharded(*pair) for pair in combinations(same, 2)
                ):
                    ranks = ranks_text([holder.rank for holder in same])
                    alike = len({self._gradients(holder) for holder in same if holder.claims}) < 2
                    by = self._by(same[0]) if alike else ", made equal after other gradients"
                    steps = max((len(holder.claims) for holder in same), default=0)
                    after = f"after step {steps}" if steps else "at the end"
                    kinds[f"equal on ranks {ranks} {after}{by}"] += 1
                    grouped |= {(holder.rank, holder.parameter.name) for holder in same}
        for parts in self._shards(grouped):
            ranks = ranks_text([holder.rank for holder in parts])
            text = f"in parts on ranks {ranks}{self._by(parts[0])}"
            if len({self.replicas.end(holder) for holder in parts}) == 1:
                text = f"equal on ranks {ranks} at the end, after other data at the start"
            kinds[text] += 1
        return [f"{count} parameter{'s' * (count > 1)} {kind}" for kind, count in kinds.items()]

    def _shards(self, grouped: set[tuple[int, str]]) -> Iterator[list[ReplicaHolder]]:
        """Parameters in parts whose gradients are parts of one sum that one call made."""
        by_name: dict[str, list[ReplicaHolder]] = {}
        for holder in self.replicas.holders:
            if holder.claims and (holder.rank, holder.parameter.name) not in grouped:
                by_name.setdefault(holder.parameter.name, []).append(holder)
        for several in by_name.values():
            holders = [one for one in several if size(self._gradient(one.rank, one.first))]
            sums = [self._gradient(holder.rank, holder.first) for holder in holders]
            ranks = {holder.rank for holder in holders}
            alike = len({frozenset(self._atoms(value)) for value in sums}) == 1
            if len(holders) > 1 and alike and all(map(self._ranks_of, sums)) and all(
                any(
                    ranks <= set(members)
                    for members in self.replicas.sources(holder.rank, holder.first.gradient)
                )
                for holder in holders
            ):  # fmt: skip
                yield holders

    def _by(self, holder: ReplicaHolder) -> str:
        """How a replica's gradients are made."""
        if not holder.claims:
            return ""
        gradient = self._gradient(holder.rank, holder.last)
        atoms = {atom for atom, _ in self._atoms(gradient)}
        if not atoms:
            return ", each by gradients that are computed alike"
        factors = set(self._coefficients(gradient))
        times = f" times {next(iter(factors))}" if len(factors) == 1 and factors != {1} else ""
        sums = f"sum of {len(atoms)} gradients" if len(atoms) > 1 else "gradient"
        return f", each by the same {sums}{times}"

    def nothing(self) -> tuple[Verdict, str]:
        """What it means that no parameter was compared: nothing, where layers are on one rank."""
        replicas = self.replicas
        names: dict[str, list[ReplicaHolder]] = {}
        for holder in replicas.holders:
            names.setdefault(holder.parameter.name, []).append(holder)
        if all(
            replicas.sharded(one, other)
            or replicas.linked(one.rank, other.rank)
            or replicas.messages[one.rank] == replicas.messages[other.rank]
            for holders in names.values()
            for one, other in combinations(holders, 2)
        ):
            return "not asked", "no parameter is on two ranks that do not exchange activations"
        count = len(names)
        return "unknown", (
            f"none of {count} parameters was compared: no two ranks start with the same data, or "
            "get parts of one sum: seed all ranks alike or broadcast the parameters, if they are "
            "replicas"
        )

    def notes(self) -> list[str]:
        """What was not decided, or is meant otherwise: weights, opaque terms, and tied layers."""
        claims = [
            (rank, claim) for rank, terms in enumerate(self.terms) for claim in terms.claims
            if size(self._gradient(rank, claim))
        ]  # fmt: skip
        opaque = sum(not self._ranks_of(self._gradient(rank, claim)) for rank, claim in claims)
        notes = [f"the scale of {opaque} of {len(claims)} was not decided"] if opaque else []
        if self._rank_weights:
            notes.append(f"each rank scales by its own factor: {_listed(self._rank_weights)}")
        if self.stages:
            notes.append(
                "parameters with equal data, of which one computes what enters the other, were "
                "taken for different layers"
            )
        return notes

    def _gradient(self, rank: int, claim: GradientClaim) -> Value:
        return self.values.of(rank, claim.gradient)

    def _atoms(self, gradient: Value) -> Iterator[tuple[str, Fraction]]:
        """The computed gradients in a sum, with their coefficients."""
        for (atom, _), number in (term for _, form in gradient for term in form):
            origin = self.values.origins.get(atom, atom)
            if origin in self.made:
                yield origin, number

    def _coefficients(self, gradient: Value) -> dict[Fraction, int]:
        """The coefficients of computed gradients in a sum, and how many ranks compute such a one.

        Those with equal elements are left out.
        """
        ranks: dict[Fraction, int] = {}
        for origin, number in self._atoms(gradient):
            if origin not in self.constant:
                ranks[number] = max(ranks.get(number, 0), len(self.made[origin]))
        return ranks

    def _differ(self, replicas: Replicas, first: int, rank: int, step: int) -> DataFault:
        claims = {holder: replicas[holder].claims[step] for holder in (rank, first)}
        one, other = (
            self._summed(self._gradient(number, claims[number])) for number in (first, rank)
        )
        if one == other and one.startswith("a sum"):
            other = "one of other terms or factors"
        name = claims[rank].name
        sentence = (
            f"{place_of(rank, name, claims[rank])}: expected the gradient of rank {first}, which "
            f"holds a replica, that is {one}, got {other}: reduce it over ranks "
            f"{ranks_text(sorted(replicas))}"
        )
        return self._if_replicas(replicas[rank], replicas[first], sentence, claims)

    def _drifts(self, one: ReplicaHolder, other: ReplicaHolder) -> DataFault:
        """Replicas that got the same gradients and end with different data."""
        pair, name = (other, one), other.parameter.name
        claims = {holder.rank: holder.first for holder in pair if holder.claims}
        for step in sorted(one.claims.keys() & other.claims.keys()):
            data = [self.values.of(holder.rank, holder.claims[step].parameter) for holder in pair]
            if digest(data[0]) != digest(data[1]):
                break
            claims = {holder.rank: holder.claims[step] for holder in pair}
        last = claims[other.rank].step if other.rank in claims else None
        when = "at the end" if last is None else f"after step {last + 1}"
        after = " at" if last is not None else ", after the step at"
        line = "".join(f"{after} {claim.source}" for claim in list(claims.values())[:1])
        sentence = (
            f"rank {other.rank}, {name} {when}{line}: expected the data of rank {one.rank}, which "
            "holds a replica, got data that is computed otherwise: update both by the same "
            "gradient, learning rate and state"
        )
        return self._if_replicas(other, one, sentence, claims)

    def _if_replicas(
        self,
        holder: ReplicaHolder,
        other: ReplicaHolder,
        sentence: str,
        claims: dict[int, GradientClaim],
    ) -> DataFault:
        """The fault, which is a question where only equal data speak for replicas."""
        certain = self.replicas.certain(holder, other)
        if not certain and self.replicas.constant(holder):
            sentence += (
                ", if they are replicas: all elements are equal at the start, so that "
                "parts of a sharded parameter would look the same"
            )
        elif not certain:
            linked = self.replicas.linked(holder.rank, other.rank)
            why = "exchange activations as those of a sharded layer do"
            sentence += (
                ", if they are replicas: only equal data at the start speak for it, and these "
                f"ranks {why if linked else 'sum no gradients with one another'}"
            )
        return DataFault(sentence, details_of(holder.parameter.name, claims), certain)

    def _started_apart(self, one: ReplicaHolder, other: ReplicaHolder, step: int) -> DataFault:
        claims = {holder.rank: holder.claims[step] for holder in (other, one)}
        sentence = (
            f"{place_of(other.rank, other.parameter.name, claims[other.rank])}: expected the data "
            f"of rank {one.rank}, as both get one sum of gradients, got other data from the start: "
            "seed both alike, or broadcast the parameters before the first step"
        )
        return DataFault(sentence, details_of(other.parameter.name, claims))

    def _summed(self, gradient: Value) -> str:
        ranks = self._ranks_of(gradient)
        if not ranks:
            return "one that is computed otherwise"
        return f"a sum over {'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(sorted(ranks))}"

    def _ranks_of(self, gradient: Value) -> set[int]:
        """The ranks whose gradients are in a sum."""
        return {rank for atom, _ in self._atoms(gradient) for rank in self.made[atom]}

    def _clips(self, rank: int, claim: GradientClaim, repair: str) -> DataFault:
        problem = (
            "expected one factor on all ranks, got a number of this one's own, such as a clip by "
            f"the norm of what it holds: clip {repair}, if all are meant alike"
        )
        return DataFault.of_gradient(rank, claim, problem, False)

    def _scaled(self, rank: int, claim: GradientClaim, common: Fraction, model: str) -> DataFault:
        """A gradient with other coefficients than that of the parameter `model`, or with several.

        Not certain where several ranks compute the same gradient, and each may count for itself.
        """
        ranks = self._coefficients(self._gradient(rank, claim))
        expected = "one coefficient for all of its terms"
        if model:
            expected = f"its terms with the coefficient {common}, as in the gradient of {model}"
        fix = "count every rank once" if len(ranks) > 1 else "scale it like the others"
        if not model:
            fix = "reduce every gradient once, and scale all ranks alike"
        problem = f"expected {expected}, got {' and '.join(map(str, sorted(ranks)))}: {fix}"
        times = {number / common: count for number, count in ranks.items()}
        certain = any(
            ratio.denominator > 1 or not 0 < ratio <= count for ratio, count in times.items()
        )
        if not certain:
            problem += ", unless ranks compute equal gradients from different data"
        return DataFault.of_gradient(rank, claim, problem, certain)


def _listed(weights: dict[int, Fraction]) -> str:
    return ", ".join(f"{number} on rank {rank}" for rank, number in weights.items())
