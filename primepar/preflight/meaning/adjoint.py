"""The gradient that comes back for what was sent is the one with respect to its copy, once.

A tensor `y` that rank 0 sends and rank 1 uses as the leaf `x` is copied. Rank 1 computes the
gradient of `x`; it has to enter `backward` on rank 0 for that `y`, and for no other one:

    rank 0: y0, y1 = f(a0), f(a1); send(y0); send(y1); recv(g); backward(y0, g); ...
    rank 1: recv(x0); recv(x1); h(x1).backward(); send(x1.grad); ...            # x1 is y1: refuted

That is the adjoint of the copy. Values have it element by element: a gradient is known by what it
is the gradient of. So the same rule holds for all that is linear. Where a function of autograd
gathers, its backward has to sum what comes back for each part (reduce-scatter); the adjoint of an
all-to-all, a shift to the next rank or a halo sends back where it came from; that of copies
(Megatron's f) is a sum. Where ranks compute one gradient alike, each may take its own, as after
Megatron's g.

A function that computes too, as ring attention, is done again on random numbers (`replay.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from time import perf_counter
from typing import NamedTuple

from primepar.preflight.meaning.evaluate import TermPlace, TermValues
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
from primepar.preflight.meaning.values import Value, aligned, digest, part, size, total
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.program import Program
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
    wrong = next(chain(asked.wrong(), map(_of_replay, done.wrong)), None)
    seconds = perf_counter() - start
    if wrong is not None:
        sentence, details = wrong
        return PropertyResult(NAME, "refuted", seconds, counterexample=sentence, details=details)
    if not (+asked.compared or +asked.opaque or asked.undecided):
        return None
    verdict: Verdict = "proved" if +asked.compared or +asked.opaque else "not asked"
    left = {name: why for name, why in done.left.items() if asked.opaque[name]}
    if left:
        verdict = "unknown"
    reasons = [
        f"{count} gradients of {name} are those that autograd computes of all ranks' forward pass, "
        "on random numbers"
        for name, count in done.compared.items()
        if name not in left
    ]
    reasons += [
        f"the backward of {name} computes too, and is not compared: {why}"
        for name, why in left.items()
    ]
    for name in done.compared.keys() | left.keys():
        asked.opaque[name] = 0
    known = [asked.reason()] if asked.reason() else []
    return PropertyResult(NAME, verdict, seconds, reason="; ".join(known + reasons))


def _of_replay(wrong: ReplayedGradient) -> tuple[str, Counterexample]:
    sentence = (
        f"rank {wrong.rank}, backward of {wrong.function} at {wrong.source}: expected the gradient "
        "that autograd computes of the forward pass of all ranks, got one that differs by "
        f"{wrong.difference:.0%} of its size on random numbers: send back, and sum, what the "
        "forward pass has sent"
    )
    event = InvolvedInstruction(
        wrong.rank, "a gradient is returned", role="writes it", wrong=True, source=wrong.source
    )
    return sentence, Counterexample("wrong-data", (wrong.rank,), events=(event,))


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
        self.sources: dict[tuple[str, int, str], _Source] = {}
        """Function, rank and name of what was given."""
        self.places: dict[tuple[str, TermPlace], tuple[str, int, str]] = {}
        self.known: dict[str, list[_Source]] = defaultdict(list)
        """Atom of what was given -> where it was."""
        self.forward: dict[str, set[tuple[int, int]]] = defaultdict(set)
        """Function -> rank and call of what it communicates in its forward pass."""
        self.compared: Counter[str] = Counter()
        self.opaque: Counter[str] = Counter()
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
                self.forward[claim.function] |= {(rank, call) for call in claim.forward}
                if not size(data):
                    continue
                key = claim.function, rank, digest(data)
                self.sources.setdefault(key, _Source(rank, data, [])).claims.append(claim)
                for place in self._same(TermPlace(rank, claim.data)):
                    self.places.setdefault((claim.function, place), key)
        for source in self.sources.values():
            for atom in self._origins(source.data):
                self.known[atom].append(source)

    def wrong(self) -> Iterator[tuple[str, Counterexample]]:
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
                            alike = sum(
                                (key[0], key[2]) == (name, data) for name, _, data in self.sources
                            )
                            part_of = _Part(source, copy, number / matches, alike)
                            self.parts.setdefault(origin, []).append(part_of)
                place += length
            self.compared[source.claims[0].function] += len(source.claims) * compared
            missing = required.get(key, {}).keys() - entered
            if missing:
                missing -= self._entered_opaquely(source)
                self.opaque[source.claims[0].function] += not missing
            if missing:
                yield self._missing(source, [self.copies[atom][0] for atom in sorted(missing)])
        yield from self._factors()

    def reason(self) -> str:
        """What a proof compared."""
        kinds = [
            f"{count} gradient{'s' * (count > 1)} came back to "
            + (f"what {name} was given" if name else "what they are gradients of")
            for name, count in self.compared.items()
            if count
        ]
        kinds += [
            f"{count} gradient{'s' * (count > 1)} of {name or 'outputs'} computed of all that came "
            "back, in a way that is not looked into"
            for name, count in self.opaque.items()
            if count
        ]
        if self.undecided:
            kinds.append(f"of {self.undecided} it was not decided what they are gradients of")
        return "; ".join(kinds)

    def _same(self, place: TermPlace) -> Iterator[TermPlace]:
        """A term, and those of the same rank that it is put together from."""
        yield place
        node = self.values.nodes[place.rank][place.node]
        if isinstance(node, Joined):
            for number, _, _ in node.parts:
                yield from self._same(TermPlace(place.rank, number))

    def _origins(self, value: Value) -> set[str]:
        origins = self.values.origins
        return {origins.get(atom, atom) for _, form in value for (atom, _), _ in form}

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
        of, made = self._origins(sent), self._origins(data)
        mapped = any(atom in self.values.origins for atom in _atoms(sent) | _atoms(data))
        if of & made and (mapped or not exact):
            return True
        is_known = all(atom in self.known or atom in self.copies for atom in made)
        return False if made and is_known and not made < of else None

    def _required(self) -> dict[tuple[str, int, str], dict[str, None]]:
        """The gradients that have to come back for each source: those of its direct copies."""
        required: dict[tuple[str, int, str], dict[str, None]] = defaultdict(dict)
        for atom, copies in self.copies.items():
            for copy in copies:
                function = copy.term.function
                for place in self._origin_places(TermPlace(copy.rank, copy.term.of), function):
                    key = self.places[function, place]
                    if function or self._origins(self.sources[key].data) & self._origins(copy.data):
                        required[key][atom] = None
        return required

    def _origin_places(self, start: TermPlace, function: str) -> Iterator[TermPlace]:
        """The sources of a function, or of `backward`, that a copy was received from."""
        ready, seen = [(start, False)], {(start, False)}
        while ready:
            place, crossed = ready.pop()
            if crossed and (function, place) in self.places:
                yield place
                continue
            node = self.values.nodes[place.rank][place.node]
            if isinstance(node, Cotangent) or not (function or isinstance(node, _LINEAR)):
                continue
            if function and place != start and (function, place) in self.places:
                continue
            received = isinstance(node, Received)
            # A function's own calls alone: what a layer before has communicated comes back there.
            if (
                isinstance(node, Received)
                and function
                and (place.rank, node.call) not in self.forward[function]
            ):
                continue
            for need in self.values.needs(place):
                state = need, crossed or received
                if state not in seen:
                    seen.add(state)
                    ready.append(state)

    def _entered_opaquely(self, source: _Source) -> set[str]:
        """The gradients that what came back was computed from in any way."""
        ready = [TermPlace(source.rank, claim.gradient) for claim in source.claims]
        seen, entered = set(ready), set[str]()
        while ready:
            place = ready.pop()
            if isinstance(self.values.nodes[place.rank][place.node], Cotangent):
                entered |= _atoms(self.values.of(*place))
                continue
            later = [need for need in self.values.needs(place) if need not in seen]
            seen.update(later)
            ready += later
        return entered

    def _of_another(self, source: _Source, copy: _Copy, data: Value) -> tuple[str, Counterexample]:
        claim, atoms = source.claims[0], self._origins(data)
        others = [other for atom in sorted(atoms) for other in self.known.get(atom, ())]
        others.sort(key=lambda other: other.data != data)
        what = f"that of {self._sent(others[0])}" if others else "that of a gradient"
        sentence = (
            f"{_where(source)}: expected the gradient of {self._sent(source)}, got {what}, which "
            f"rank {copy.rank} {self._received(copy)}computed at {copy.term.source}: send and "
            "receive both in one order, and give each gradient to the output that it belongs to"
        )
        return sentence, _details(source, claim, copy)

    def _missing(self, source: _Source, copies: Sequence[_Copy]) -> tuple[str, Counterexample]:
        claim, copy = source.claims[0], copies[0]
        ranks = sorted({copy.rank for copy in copies})
        shown = f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"
        if claim.function:
            calls = self._calls(source.rank, claim.forward) or "none"
            back = self._calls(source.rank, claim.backward) or "none"
            what = (
                f"its forward pass communicates by {calls} and its backward by {back}: "
                f"sum what comes back by {_CONJUGATES.get(calls, 'sending it back')}"
            )
        else:
            what = f"let {shown} send it, and add it to the others before backward"
        sentence = (
            f"{_where(source)}: expected the gradient of {self._sent(source)} with that of its "
            f"copies on {shown}, computed at {copy.term.source}, got it without: {what}"
        )
        return sentence, _details(source, claim, copy)

    def _factors(self) -> Iterator[tuple[str, Counterexample]]:
        """Yield gradients that do not count once, unless all share one factor.

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
        usual = next(iter(common - {Fraction(1)}), Fraction(1)) if Fraction(1) not in common else 1
        for atom, parts in self.parts.items():
            for source, copy, times, _ in parts:
                if times != parts[0].times or not (common or usual in allowed[atom]):
                    expected = parts[0].times if common or usual in allowed[atom] else usual
                    sentence = (
                        f"{_where(source)}: expected the gradient of {self._sent(source)}, which "
                        f"rank {copy.rank} computed at {copy.term.source}, times {expected}, got "
                        f"it times {times}: let each copy's gradient come back once"
                    )
                    yield sentence, _details(source, source.claims[0], copy)

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
        if source.claims[0].function:
            return f"the input of {source.claims[0].function} on rank {source.rank}"
        return (
            f"the output for which rank {source.rank} calls backward at {source.claims[0].source}"
        )

    def _received(self, copy: _Copy) -> str:
        """The instruction that received a copy, if it is a leaf that was received as it is."""
        node = self.terms[copy.rank].nodes[copy.term.of]
        if copy.term.function or not isinstance(node, Received):
            return ""
        number = self.terms[copy.rank].calls[node.call].instruction
        instruction = self.program.programs[copy.rank][number]
        line = f" at {instruction.source}" if instruction.source else ""
        return f"received in instruction {number} ({instruction_line(instruction)}){line} and "

    def _calls(self, rank: int, calls: Sequence[int]) -> str:
        """The names of some calls of a rank, each once."""
        numbers = [self.terms[rank].calls[call].instruction for call in calls]
        nodes = [self.program.programs[rank][number] for number in numbers]
        return " and ".join(dict.fromkeys(instruction_line(node).split()[0] for node in nodes))


_CONJUGATES = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "broadcast": "reduce",
}


def _where(source: _Source) -> str:
    claim = source.claims[0]
    function = f" of {claim.function}" if claim.function else ""
    return f"rank {source.rank}, backward{function} at {claim.source}"


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
