"""Updates: what a parameter holds at the end is what its own gradients make of it, by one rule.

Optimizers are followed through the operations that they compute with, element by element where
these are pointwise. Each element is updated by its own gradient, of all ranks whose gradients are
in the others. All parts of a parameter are updated by one function of their data and gradients,
whatever rank holds them:

    rank 0: p[:4] = p0 - 0.1 g[:4]
    rank 1: p[4:] = p1 - 0.2 g[4:]     # another learning rate: refuted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from fractions import Fraction
from itertools import chain

from primepar.preflight.meaning.evaluate import NO_OPERATION
from primepar.preflight.meaning.faults import DataFault, details_of
from primepar.preflight.meaning.replicas import (
    ReplicaHolder,
    ReplicaQuestions,
)
from primepar.preflight.meaning.values import Segment, Value, digest, digest_of, part, size
from primepar.schedule.words import ranks_text


class UpdateQuestions:
    """By the atom of each gradient: the ranks that compute it, and the parameters that it is of."""

    def __init__(
        self,
        replicas: ReplicaQuestions,
        made: Mapping[str, Set[int]],
        made_for: Mapping[str, Set[str]],
    ) -> None:
        self.replicas, self.values, self.terms = replicas, replicas.values, replicas.terms
        self.made, self.made_for = made, made_for
        self.starts = {
            atom
            for holder in replicas.holders
            for _, form in self.values.of(holder.rank, holder.parameter.start)
            for (atom, _), _ in form
        }

    def wrong(self) -> Iterator[DataFault]:
        """Yield all that is wrong, or may be."""
        return chain(
            self.misplaced(), self.lost(), self.left_out(), self.weighed(), self.unlike(),
            self.without(),
        )  # fmt: skip

    def misplaced(self) -> Iterator[DataFault]:
        """Yield parameters that were updated by gradients of other elements or parameters.

        Followed through what an optimizer computes, element by element where it is pointwise.
        """
        for rank in range(len(self.terms)):
            holders = [holder for holder in self.replicas.holders if holder.rank == rank]
            sums = {
                holder.parameter.name: self.values.of(rank, holder.parameter.gradient)
                for holder in holders
                if holder.parameter.gradient is not None
            }
            made = self.made.keys()
            known = {atom for value in sums.values() for atom, _ in self._updates(value, made)}
            for holder in holders if known else ():
                name, place = holder.parameter.name, 0
                # Without a gradient it is a copy, as what FSDP has gathered for a pass.
                of_end = self.values.of(rank, holder.parameter.end) if name in sums else ()
                for segment in of_end:
                    length = segment.length
                    right = self._updates(part(sums[name], place, place + length), made)
                    used = self._updates((segment,), known)
                    exact = {atom for atom in used if atom[1] is not None}
                    atoms, places = ({one[side] for one in right} for side in (0, 1))
                    others = {
                        (atom, first)
                        for atom, first in exact or used
                        if not (atom in atoms or name in self.made_for.get(atom, ()))
                        or not (first is None or first in places)
                    }
                    if length > 1 and right and others and (exact or len(others) == len(used)):
                        elements = f"elements {place} to {place + length - 1}"
                        last = self.terms[rank].claims[-1:]
                        claims = dict(zip([rank], last, strict=False))
                        line = "".join(f" at {claim.source}" for claim in claims.values())
                        sentence = (
                            f"rank {rank}, {name}{line}: expected {elements} to be updated by "
                            "their own gradients, got gradients of other elements: let each rank "
                            "update the part that it sends"
                        )
                        yield DataFault(sentence, details_of(name, claims))
                        break
                    place += length

    def lost(self) -> Iterator[DataFault]:
        """Yield parameters whose update a communication has overwritten with the data of before."""
        for holder in self.replicas.holders:
            rank, parameter = holder.rank, holder.parameter
            if parameter.updated is None or parameter.updated == parameter.end:
                continue
            claim = holder.last
            before, end = claim.parameter, parameter.end
            names = [digest(self.values.of(rank, node)) for node in (before, end)]
            sources = [members for members in self.replicas.sources(rank, end) if len(members) > 1]
            if names[0] == names[1] != digest(self.values.of(rank, parameter.updated)) and sources:
                sentence = (
                    f"rank {rank}, {claim.name} after step {claim.step + 1} at {claim.source}: "
                    "expected the data that the optimizer has written, got those of before the "
                    "step: send it from the rank that updates it"
                )
                yield DataFault(sentence, details_of(claim.name, {rank: claim}))

    def without(self) -> Iterator[DataFault]:
        """Yield parameters that a script updates by hand, and that hold nothing of gradients."""
        if any(of_rank.claims for of_rank in self.terms):
            return
        for holder in self.replicas.holders:
            rank, parameter, place = holder.rank, holder.parameter, 0
            changed = parameter.start != parameter.end
            for segment in self.values.of(rank, parameter.end) if changed else ():
                if not self._updates((segment,), self.made.keys()):
                    sentence = (
                        f"rank {rank}, {parameter.name}: expected elements {place} to "
                        f"{place + segment.length - 1} to be computed of gradients at the end, got "
                        "none in them: send each update from the rank that computes it, after it "
                        "is computed, if they are meant to be trained"
                    )
                    yield DataFault(sentence, details_of(parameter.name, {}), False)
                    return
                place += segment.length

    def left_out(self) -> Iterator[DataFault]:
        """Yield replicas of which some elements lack the gradients of ranks that are in others.

        As where each rank updates the part that it sends by its own gradient, unreduced.
        """
        made = {rank for ranks in self.made.values() for rank in ranks}
        by_ranks: dict[tuple[int, ...], list[tuple[ReplicaHolder, int, int, set[int]]]] = {}
        for holders in self.replicas.groups:
            first = holders[min(holders)]
            if not all(self.replicas.reunited(first, other) for other in holders.values()):
                continue
            place = 0
            for segment in self.values.of(first.rank, first.parameter.end):
                used = self._updates((segment,), self.made.keys())
                ranks = {rank for atom, _ in used for rank in self.made[atom]} & holders.keys()
                known = by_ranks.setdefault(tuple(sorted(holders.keys() & made)), [])
                known.append((first, place, place + segment.length - 1, ranks))
                place += segment.length
        for parts in by_ranks.values():
            every = {rank for *_, ranks in parts for rank in ranks}
            for holder, start, end, ranks in parts:
                if ranks and ranks != every:
                    name = holder.parameter.name
                    claims = {holder.rank: holder.last} if holder.claims else {}
                    line = "".join(f" at {claim.source}" for claim in claims.values())
                    sentence = (
                        f"rank {holder.rank}, {name}{line}: expected elements {start} to {end} to "
                        f"be updated by the gradients of ranks {ranks_text(sorted(every))}, as "
                        f"others are, got those of ranks {ranks_text(sorted(ranks))} alone: reduce "
                        "the gradients before each rank updates its part"
                    )
                    yield DataFault(sentence, details_of(name, claims))

    def weighed(self) -> Iterator[DataFault]:
        """Yield parameters that are a sum over ranks where a mean is meant.

        Two replicas `p - g0` and `p - g1` make `2 p - g0 - g1`, in which `p` counts twice.
        """
        starts: dict[str, set[str]] = {}
        for holder in self.replicas.holders:
            if not self.replicas.constant(holder):
                start = self.values.of(holder.rank, holder.parameter.start)
                names = {name for _, form in start for (name, _), _ in form}
                starts.setdefault(holder.parameter.name, set()).update(names)
        for holder in self.replicas.holders:
            rank, name, end = holder.rank, holder.parameter.name, holder.parameter.end
            if self.replicas.constant(holder) or not any(self.replicas.sources(rank, end)):
                continue
            for _, form in self.values.of(rank, end):
                of_start = [number for (atom, _), number in form if atom in starts[name]]
                times = sum(of_start, Fraction(0))
                if times >= Fraction(3, 2):
                    sentence = (
                        f"rank {rank}, {name} at the end: expected a mean over ranks, in which the "
                        f"data of before the steps count once, got a sum in which they count "
                        f"{float(times):.3g} times: divide by the number of ranks"
                    )
                    yield DataFault(sentence, details_of(name, {}))
                    break

    def unlike(self) -> Iterator[DataFault]:
        """Yield parameters whose parts are updated by other functions of data and gradients.

        A placement makes them parts of one; of what ranks put together only the script knows.
        """
        parts: dict[tuple[str, tuple[int, ...]], list[ReplicaHolder]] = {}
        for holder in self.replicas.holders:
            for group in holder.parameter.sharded if holder.claims else ():
                parts.setdefault((holder.parameter.name, group), []).append(holder)
        for holders in parts.values():
            steps = {len(holder.claims) for holder in holders}
            yield from self._unlike(holders, len(steps) == 1)
        for holder in self.replicas.holders:
            sources = self.replicas.sources(holder.rank, holder.parameter.end)
            if any(len(members) > 1 for members in sources):
                yield from self._unlike([holder], None)

    def _unlike(
        self, holders: Sequence[ReplicaHolder], certain: bool | None
    ) -> Iterator[DataFault]:
        """Compare the parts of one parameter, of those that are of one length or are mere sums.

        With None it is certain where gradients are in both, as parts may be left as they are.
        """
        for weighs in (False, True):
            known: dict[int, tuple[str, ReplicaHolder, Segment]] = {}
            for holder in holders:
                for segment in self.values.of(holder.rank, holder.parameter.end):
                    rule, length = self._rule(segment, weighs)
                    this = known.setdefault(length, (rule, holder, segment))
                    for other in {length, 0} if length else known:
                        before, one, part_of = known.get(other, this)
                        if before != rule:
                            if certain is None:
                                made = self.made.keys()
                                certain = all(self._updates((o,), made) for o in (segment, part_of))
                            yield self._updated_otherwise(holder, one, certain and not weighs)
                            return

    def _rule(self, segment: Segment, weighs: bool) -> tuple[str, int]:
        """By which function elements are made of data and gradients, and of how long tensors.

        That has the numbers in it that a script knows; with `weighs` those that it computes, as the
        factor of a clip, too. Names of operations have the lengths of their tensors in them.
        """
        sums: dict[str, Fraction] = {}
        longest = 0
        for (name, first), number in segment.form:
            origin, kind = self.values.origins.get(name, name), "state"
            operation = self.values.made_of.get(origin, NO_OPERATION)
            if origin in self.made:
                kind = "gradient"
            elif origin in self.starts:
                kind = "data"
            elif operation.pointwise:
                rules: list[str] = []
                length = size(operation.inputs[0])
                for given in operation.inputs:
                    if size(given) != length or length == 1:
                        # A factor of each row, as of Muon's kinds, is of these rows alone.
                        rules.append(digest(given) if size(given) == 1 else "state")
                        continue
                    some = part(given, first, first + segment.length) if origin == name else given
                    made = [self._rule(one, weighs) for one in some]
                    rules += sorted({rule for rule, _ in made})
                    longest = max(longest, length, *(longer for _, longer in made))
                kind = digest_of(operation.name, *rules)
            if weighs:
                kind = digest_of(kind, *self.values.weights.get(name, ()))
            sums[kind] = sums.get(kind, Fraction(0)) + number
        return digest_of(*map(str, sorted(sums.items()))), longest

    def _updated_otherwise(
        self, holder: ReplicaHolder, other: ReplicaHolder, certain: bool
    ) -> DataFault:
        rank, name = holder.rank, holder.parameter.name
        pair = [holder] if other is holder else [holder, other]
        claims = {one.rank: one.last for one in pair if one.claims}
        line = "".join(f" after the step at {claim.source}" for claim in list(claims.values())[:1])
        whose = f"as rank {other.rank} updates its own" if other is not holder else "alike"
        sentence = (
            f"rank {rank}, {name}{line}: expected all parts of the parameter to be updated "
            f"{whose}, got another learning rate, decay or factor: use one number on all ranks"
        )
        sentence += "" if certain else ", if these parts are meant alike"
        return DataFault(sentence, details_of(name, claims), certain)

    def _updates(self, value: Value, known: Set[str]) -> set[tuple[str, int | None]]:
        """The gradients that a value is computed from, with the element that is its first one.

        For example, what Adam writes is `p - lr * m / (sqrt(v) + eps)`, of the same elements of `m`
        and `v`, and these of the same ones of the gradient. A number, as a clip's, is left out.
        """
        atoms: set[tuple[str, int | None]] = set()
        seen: set[tuple[str, int | None, int]] = set()
        ready = [(segment, True) for segment in value]
        while ready:
            (length, form), exact = ready.pop()
            for (name, first), _ in form:
                origin = self.values.origins.get(name, name)
                here = first if exact and origin == name else None
                if origin in known:
                    atoms.add((origin, here))
                elif (name, here, length) not in seen:
                    seen.add((name, here, length))
                    _, inputs, pointwise = self.values.made_of.get(origin, NO_OPERATION)
                    for given in inputs:
                        if pointwise and size(given) == size(inputs[0]):
                            some = given if here is None else part(given, first, first + length)
                            ready += [(segment, here is not None) for segment in some]
                        elif not pointwise and size(given) > 1:
                            ready += [(segment, False) for segment in given]
        return atoms
