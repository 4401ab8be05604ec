"""The gradient that comes back for what was sent is the one with respect to its copy, once.

A tensor `y` that rank 0 sends and rank 1 uses as the leaf `x` is copied. Rank 1 computes the
gradient of `x`; it has to enter `backward` on rank 0 for that `y`, and for no other one:

    rank 0: y0, y1 = f(a0), f(a1); send(y0); send(y1); recv(g); backward(y0, g); ...
    rank 1: recv(x0); recv(x1); h(x1).backward(); send(x1.grad); ...            # x1 is y1: refuted

That is the adjoint of the copy. Values have it element by element: a gradient is known by what it
is the gradient of. So the same rule holds for what is put together, scaled and summed on the way.
Where ranks compute one gradient alike, each may take its own, or send a share.

Functions of autograd that communicate, such as a gather, Megatron's f and g, a halo or ring
attention, are done again on random numbers (`replay.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

from primepar.preflight.meaning.copied import copied_parts
from primepar.preflight.meaning.evaluate import TermPlace, TermValues
from primepar.preflight.meaning.faults import DataFault, worst
from primepar.preflight.meaning.replay import ReplayedGradient, replays
from primepar.preflight.meaning.terms import (
    Added,
    Cotangent,
    Joined,
    Mapped,
    Pullback,
    RankTerms,
    Received,
    Scaled,
    WeightedTerm,
)
from primepar.preflight.meaning.traces import TracedCall
from primepar.preflight.meaning.values import Value, aligned, digest, part, size, total
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.program import Group, Program
from primepar.schedule.program_file import instruction_line
from primepar.schedule.words import ranks_text
from primepar.verify.report import PropertyResult, Verdict

NAME = "adjoint"
_LINEAR = Received | Joined | Mapped | Scaled | WeightedTerm | Added


def adjoint(
    program: Program, values: TermValues, terms: Sequence[RankTerms]
) -> PropertyResult | None:
    """Decide whether gradients come back to what they are gradients of; None if none comes back."""
    start = perf_counter()
    asked = _AdjointQuestions(program, values, terms)
    done = replays(values, terms)
    replayed = (_of_replay(program, values, one) for one in done.wrong)
    wrong = worst(chain(asked.wrong(), copied_parts(values, terms), replayed))
    if wrong is not None:
        return wrong.result(NAME, start)
    reasons = asked.reasons()
    compared = bool(asked.compared or asked.opaque or done.compared)
    verdict: Verdict = "unknown" if done.left else "proved" if compared else "not asked"
    reasons += [
        f"{count} gradients of {name} are those that autograd computes of all ranks' forward pass, "
        "on random numbers"
        for name, count in done.compared.items()
        if name not in done.left
    ]
    reasons += [f"the backward of {name} is not compared: {why}" for name, why in done.left.items()]
    if not reasons:
        return None
    return PropertyResult(NAME, verdict, perf_counter() - start, reason="; ".join(reasons))


def _of_replay(program: Program, values: TermValues, wrong: ReplayedGradient) -> DataFault:
    trace = wrong.trace

    def calls(listed: Sequence[Any]) -> str:
        numbers = [
            values.calls[wrong.rank][one.call].instruction
            for one in listed if isinstance(one, TracedCall)
        ]  # fmt: skip
        nodes = [program.programs[wrong.rank][number] for number in numbers]
        parts = [
            one for node in nodes for one in (node.body if isinstance(node, Group) else [node])
        ]
        return " and ".join(dict.fromkeys(instruction_line(one).split()[0] for one in parts))

    sentence = (
        f"rank {wrong.rank}, backward of {trace.name} at {trace.source}: expected the gradient "
        "that autograd computes of the forward pass of all ranks, got one that differs by "
        f"{wrong.difference:.0%} of its size on random numbers: its forward pass communicates by "
        f"{calls(trace.forward) or 'none'} and its backward by {calls(trace.backward) or 'none'}: "
        "send back, and sum, what the forward pass has sent"
    )
    event = InvolvedInstruction(
        wrong.rank, "a gradient is returned", role="writes it", wrong=True, source=trace.source
    )
    return DataFault(sentence, Counterexample("wrong-data", (wrong.rank,), events=(event,)))


class _Copy(NamedTuple):
    """A tensor whose gradient was computed, once or by several ranks alike."""

    rank: int
    place: TermPlace
    data: Value
    term: Cotangent


class _Source(NamedTuple):
    """What a rank gave to others, and the gradients that came back for it."""

    rank: int
    data: Value
    claims: list[Pullback]


class _Part(NamedTuple):
    """A gradient that came back to its source, and how often it counts there."""

    source: _Source
    copy: _Copy
    times: Fraction
    alike: int
    """Sources with the same data, whose shares of a sum are one number."""


class _AdjointQuestions:
    def __init__(self, program: Program, values: TermValues, terms: Sequence[RankTerms]) -> None:
        self.program, self.values, self.terms = program, values, terms
        self.copies: dict[str, list[_Copy]] = {}
        """Atom of a gradient -> the copies that it was computed for."""
        self.sources: dict[tuple[int, str], _Source] = {}
        """Rank and name of what was given."""
        self.places: dict[TermPlace, tuple[int, str]] = {}
        self.known: dict[str, list[_Source]] = defaultdict(list)
        """Atom of what was given -> where it was."""
        self.compared = 0
        self.opaque = 0
        """Those that are computed, in whatever way, of all that has to come back."""
        self.parts: dict[str, list[_Part]] = {}
        self.undecided = 0
        for rank, of_rank in enumerate(terms):
            for number in of_rank.cotangents:
                term, place = of_rank.nodes[number], TermPlace(rank, number)
                assert isinstance(term, Cotangent)
                atom = values.of(*place)[0].form[0][0][0]
                data = values.of(rank, term.of)
                self.copies.setdefault(atom, []).append(_Copy(rank, place, data, term))
            for claim in of_rank.pullbacks:
                data = values.of(rank, claim.data)
                key = rank, digest(data)
                self.sources.setdefault(key, _Source(rank, data, [])).claims.append(claim)
                for place in self._same(TermPlace(rank, claim.data)):
                    self.places.setdefault(place, key)
        for source in self.sources.values():
            for atom in self.values.origins_of(source.data):
                self.known[atom].append(source)

    def wrong(self) -> Iterator[DataFault]:
        """Yield what is wrong: a gradient of something else, one that is missing, and factors."""
        required = self._required()
        for key, source in self.sources.items():
            sums = [self.values.of(source.rank, claim.gradient) for claim in source.claims]
            if any(size(value) != size(source.data) for value in sums):
                self.undecided += 1
                continue
            entered, place, compared = set[str](), 0, False
            for length, form in total(sums):
                for (atom, first), number in form:
                    origin = self.values.origins.get(atom, atom)
                    if origin not in self.copies:
                        continue
                    entered.add(origin)
                    copy = self.copies[origin][0]
                    data = copy.data
                    if origin == atom:
                        data = part(data, first, first + length)
                    sent = part(source.data, place, place + length)
                    matches = self._ratio(sent, data, exact=origin == atom)
                    if matches is False:
                        yield self._of_another(source, copy, data)
                    elif matches is None:
                        self.undecided += 1
                    else:
                        compared = True
                        if isinstance(matches, Fraction):
                            alike = sum(data == key[1] for _, data in self.sources)
                            part_of = _Part(source, copy, number / matches, alike)
                            self.parts.setdefault(origin, []).append(part_of)
                place += length
            self.compared += len(source.claims) * compared
            missing = required.get(key, {}).keys() - entered
            if missing:
                missing -= self._entered_opaquely(source)
                self.opaque += not missing
            if missing:
                yield self._missing(source, [self.copies[atom][0] for atom in sorted(missing)])
        yield from self._factors()

    def reasons(self) -> list[str]:
        """What a proof compared."""
        reasons = []
        for count, how in (
            (self.compared, "came back to what they are gradients of"),
            (self.opaque, "of outputs computed of all that came back, in a way that is not "
                          "looked into"),
        ):  # fmt: skip
            if count:
                reasons.append(f"{count} gradient{'s' * (count > 1)} {how}")
        if self.undecided:
            reasons.append(f"of {self.undecided} it was not decided what they are gradients of")
        return reasons

    def _same(self, place: TermPlace) -> Iterator[TermPlace]:
        """A term, and those of the same rank that it is put together from."""
        yield place
        node = self.values.nodes[place.rank][place.node]
        if isinstance(node, Joined):
            for number, _, _ in node.parts:
                yield from self._same(TermPlace(place.rank, number))

    def _ratio(self, sent: Value, data: Value, exact: bool) -> Fraction | bool | None:
        """The factor of what was sent in data that was computed of it, such as a sum.

        True where the factor is not known, False if data are of something else that was sent, and
        None if it is not known of what.
        """
        ratios: set[Fraction | None] = set()
        if exact:
            for one, other in aligned([sent, data]):
                here = dict(other.form)
                ratios |= {here[a] / number if a in here else None for a, number in one.form}
            if len(ratios) == 1 and None not in ratios:
                return next(iter(ratios))
        of, made = self.values.origins_of(sent), self.values.origins_of(data)
        mapped = any(atom in self.values.origins for atom in _atoms(sent) | _atoms(data))
        if of & made and (mapped or not exact):
            return True
        is_known = all(atom in self.known or atom in self.copies for atom in made)
        return False if made and is_known and not made < of else None

    def _required(self) -> dict[tuple[int, str], dict[str, None]]:
        """The gradients that have to come back for each source: those of its direct copies."""
        required: dict[tuple[int, str], dict[str, None]] = defaultdict(dict)
        for atom, copies in self.copies.items():
            for copy in copies:
                for place in self._origin_places(TermPlace(copy.rank, copy.term.of)):
                    key = self.places[place]
                    if self.values.origins_of(self.sources[key].data) & self.values.origins_of(
                        copy.data
                    ):
                        required[key][atom] = None
        return required

    def _origin_places(self, start: TermPlace) -> Iterator[TermPlace]:
        """The sources that a copy was received from."""
        ready, seen = [(start, False)], {(start, False)}
        while ready:
            place, crossed = ready.pop()
            if crossed and place in self.places:
                yield place
                continue
            node = self.values.nodes[place.rank][place.node]
            if isinstance(node, _LINEAR):
                for need in self.values.needs(place):
                    state = need, crossed or isinstance(node, Received)
                    if state not in seen:
                        seen.add(state)
                        ready.append(state)

    def _entered_opaquely(self, source: _Source) -> set[str]:
        """The gradients that what came back was computed from in any way."""
        roots = [TermPlace(source.rank, claim.gradient) for claim in source.claims]
        entered = {
            place
            for place in self.values.cone(roots, Cotangent)
            if isinstance(self.values.nodes[place.rank][place.node], Cotangent)
        }
        return set[str]().union(*(_atoms(self.values.of(*place)) for place in entered))

    def _of_another(self, source: _Source, copy: _Copy, data: Value) -> DataFault:
        claim, atoms = source.claims[0], self.values.origins_of(data)
        others = [other for atom in sorted(atoms) for other in self.known.get(atom, ())]
        others.sort(key=lambda other: other.data != data)
        what = f"that of {self._sent(others[0])}" if others else "that of a gradient"
        sentence = (
            f"{_where(source)}: expected the gradient of {self._sent(source)}, got {what}, which "
            f"rank {copy.rank} {self._received(copy)}computed at {copy.term.source}: send and "
            "receive both in one order, and give each gradient to the output that it belongs to"
        )
        return DataFault(sentence, _details(source, claim, copy))

    def _missing(self, source: _Source, copies: Sequence[_Copy]) -> DataFault:
        claim, copy = source.claims[0], copies[0]
        ranks = sorted({copy.rank for copy in copies})
        shown = f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"
        sentence = (
            f"{_where(source)}: expected the gradient of {self._sent(source)} with that of its "
            f"copies on {shown}, computed at {copy.term.source}, got it without: let {shown} send "
            "it, and add it to the others before backward"
        )
        return DataFault(sentence, _details(source, claim, copy))

    def _factors(self) -> Iterator[DataFault]:
        """Yield gradients that do not count once; where all share one factor it may be meant.

        Where several ranks compute one gradient alike, it counts once for one or for each of them.
        """
        allowed = {
            atom: {
                parts[0].times * alike / count
                for alike in range(1, 1 + parts[0].alike)
                for count in range(1, 1 + len(self.copies[atom]))
            }
            for atom, parts in self.parts.items()
        }
        common = set.intersection(*allowed.values()) if allowed else set()
        once = Fraction(1)
        for atom, parts in self.parts.items():
            for source, copy, times, _ in parts:
                alike = times == parts[0].times
                if not alike or once not in allowed[atom]:
                    expected = once
                    if not alike and (common or once in allowed[atom]):
                        expected = parts[0].times
                    sentence = (
                        f"{_where(source)}: expected the gradient of {self._sent(source)}, which "
                        f"rank {copy.rank} computed at {copy.term.source}, times {expected}, got "
                        f"it times {times}: let each copy's gradient come back once"
                    )
                    certain = not (alike and common)
                    sentence += "" if certain else ", unless that factor is meant"
                    yield DataFault(sentence, _details(source, source.claims[0], copy), certain)

    def _sent(self, source: _Source) -> str:
        """What was given, by the instruction that reads it."""
        places = {place.node for claim in source.claims
                  for place in self._same(TermPlace(source.rank, claim.data))}  # fmt: skip
        for call in self.terms[source.rank].calls:
            if places & set(call.reads):
                node = self.program.programs[source.rank][call.instruction]
                line = f" at {node.source}" if node.source else ""
                return (
                    f"what rank {source.rank} gave to instruction {call.instruction} "
                    f"({instruction_line(node)}){line}"
                )
        return (
            f"the output for which rank {source.rank} calls backward at {source.claims[0].source}"
        )

    def _received(self, copy: _Copy) -> str:
        """The instruction that received a copy, if it is a leaf that was received as it is."""
        node = self.terms[copy.rank].nodes[copy.term.of]
        if not isinstance(node, Received):
            return ""
        number = self.terms[copy.rank].calls[node.call].instruction
        instruction = self.program.programs[copy.rank][number]
        line = f" at {instruction.source}" if instruction.source else ""
        return f"received in instruction {number} ({instruction_line(instruction)}){line} and "


def _where(source: _Source) -> str:
    return f"rank {source.rank}, backward at {source.claims[0].source}"


def _atoms(value: Value) -> set[str]:
    return {atom for _, form in value for (atom, _), _ in form}


def _details(source: _Source, claim: Pullback, copy: _Copy) -> Counterexample:
    events = (
        InvolvedInstruction(
            source.rank, "a gradient enters backward", role="reads it", wrong=True,
            source=claim.source,
        ),
        InvolvedInstruction(
            copy.rank, "the gradient is computed", role="writes it", source=copy.term.source
        ),
    )  # fmt: skip
    return Counterexample("wrong-data", (source.rank, copy.rank), events=events)
