"""What all ranks have counts once in a sum over them, where each adds a part of its own.

In tensor parallelism a layer is a sum of products of shards, `h0 + h1`. A bias that both ranks hold
is added after the sum. Where each rank adds it before, it counts twice:

    rank 0: y = all_reduce(h0 + bias)
    rank 1: y = all_reduce(h1 + bias)     # y is h0 + h1 + 2 bias: refuted

The gradient of the bias on each rank is that of one of its two copies, so that no loss has these
gradients: that makes it certain. Otherwise, as where a function sums the gradients of the copies,
two may be meant, and the answer is `unknown`. Sums of data parallel ranks have such addends too, as
a weight decay in a loss, and are right: gradients are summed over the same ranks, and none has a
shard.

A mean counts once, and so does `h0 + bias / 2`. But then each rank's gradient of the bias is that
of its half: they have to be summed, after the backward pass or by a function of autograd.

Compared are sums of forward passes, in functions of autograd or not, by which gradients are
computed and that depend on what was received: from the first update of a parameter on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain
from time import perf_counter
from typing import NamedTuple

from primepar.preflight.meaning.faults import DataFault, worst
from primepar.preflight.meaning.replicas import ReplicaQuestions
from primepar.preflight.meaning.terms import (
    Added,
    Applied,
    Gradient,
    Leaf,
    Mapped,
    RankTerms,
    Received,
    Scaled,
    WeightedTerm,
    inputs_of,
)
from primepar.preflight.meaning.values import digest, digest_of
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.program import AllReduce, Program, Reduce, ReduceScatter
from primepar.schedule.program_file import instruction_line
from primepar.schedule.words import ranks_text
from primepar.verify.report import PropertyResult

NAME = "sums"


def sums(program: Program, replicas: ReplicaQuestions) -> PropertyResult | None:
    """Decide whether sums of forward passes count once what all ranks have; None without any."""
    start = perf_counter()
    asked = _SumQuestions(program, replicas)
    wrong = worst(asked.wrong())
    if wrong is not None:
        return wrong.result(NAME, start)
    seconds = perf_counter() - start
    if asked.compared:
        count = asked.compared
        what = "sums of forward passes count" if count > 1 else "sum of a forward pass counts"
        reason = f"{count} {what} once what all ranks have"
        return PropertyResult(NAME, "proved", seconds, reason=reason)
    if asked.unseen:
        reason = (
            f"what ranks add in {asked.unseen} sums of the first forward pass was not looked into: "
            "take two steps"
        )
        return PropertyResult(NAME, "not asked", seconds, reason=reason)
    return None


class _Addend(NamedTuple):
    """How often a rank adds something, and the terms that it is made of."""

    times: Fraction
    nodes: tuple[int, ...]


_Addends = dict[str, _Addend]
"""Name of what is added, equal on ranks that add the same."""


class _SumQuestions:
    def __init__(self, program: Program, replicas: ReplicaQuestions) -> None:
        self.program, self.replicas = program, replicas
        self.values, self.terms = replicas.values, replicas.terms
        self.compared = 0
        self.unseen = 0
        """Sums of data that were there, of which nothing is known."""
        self.holders = {(one.rank, one.parameter.name): one for one in self.replicas.holders}
        self.places = [
            {call.instruction: number for number, call in enumerate(of_rank.calls)}
            for of_rank in self.terms
        ]
        """Of each rank: instruction -> call."""
        self.names: list[dict[int, str]] = [{} for _ in self.terms]
        """Of each rank: the terms of parameters, and their names."""
        for names, held in zip(self.names, self.replicas.held, strict=True):
            for name, nodes in held.items():
                names.update(dict.fromkeys(nodes, name))

    def wrong(self) -> Iterator[DataFault]:
        """Yield addends that count another number of times than once, and are meant once.

        And those that do, while the gradient on each rank is that of its part alone.
        """
        for rank, of_rank in enumerate(self.terms):
            for number, call in enumerate(of_rank.calls):
                side = self.values.matches.sides((rank, call.instruction))[0]
                node = self.values.matches.post(side)
                if (
                    not call.forward
                    or (call.forward == "open" and number not in self.replicas.differentiated[rank])
                    or not isinstance(node, AllReduce | Reduce | ReduceScatter)
                    or node.reduction != "sum"
                    or rank != min(node.group)
                    or len(node.group) < 2
                ):
                    continue
                given = {
                    member: self.terms[member].calls[self.places[member][index]].reads
                    for member, index, _ in self.values.matches.partners[side]
                }
                for slot in range(len(call.reads)):
                    reads = {member: given[member][slot] for member in sorted(given)}
                    if any(isinstance(self.terms[r].nodes[n], Leaf) for r, n in reads.items()):
                        self.unseen += 1
                        continue
                    self.compared += 1
                    yield from self._judged(rank, number, Fraction(node.scale_value), reads)

    def _judged(
        self, rank: int, call: int, scale: Fraction, reads: dict[int, int]
    ) -> Iterator[DataFault]:
        """Compare what the ranks of a sum add to it."""
        added = {member: self._addends(member, node) for member, node in reads.items()}
        shared = set.intersection(*(set(addends) for addends in added.values()))
        if not shared or not all(
            self._shards(member, addends, shared, reads) for member, addends in added.items()
        ):
            return
        ranks, later = ranks_text(list(reads)), self.factors[rank].get(call, [])
        factors = [scale, *(scale * factor for factor in later if factor)]
        is_mean = any(factor * len(reads) == 1 for factor in factors)
        for name in sorted(shared):
            times = sum((addends[name].times for addends in added.values()), Fraction(0))
            named = self._reached(rank, added[rank][name].nodes, set())
            if not named or not times:
                continue  # data that are there, in a first step perhaps a bias that was divided
            left = [one for one in named if not self._is_reduced(rank, one, reads)]
            parameters = self._parameters(rank, added[rank][name].nodes)
            alone = bool(parameters) and set(parameters) <= set(left)
            if is_mean or any(times * factor == 1 for factor in factors):
                if left:
                    share = added[rank][name].times / times
                    yield self._wrong(
                        rank, call, reads, alone and scale == 1,
                        f"expected the gradient of {_several(left)} to be summed over ranks "
                        f"{ranks}, as each adds {share} of what is computed of it, got that of one "
                        "part alone: sum it, or add what all have after the sum",
                        unless="a function sums it in its backward pass",
                    )  # fmt: skip
                continue
            certain = (
                all(addends[name].times == 1 for addends in added.values())
                and None not in later
                and alone
            )
            yield self._wrong(
                rank, call, reads, certain,
                f"expected what ranks {ranks} all have, computed of {_several(named)}, to count "
                f"once in the sum of their parts, got it {times * scale} times: add it after the "
                "sum, or on one rank alone",
                unless="that number is meant",
            )  # fmt: skip

    def _addends(self, rank: int, node: int) -> _Addends:
        """What a term is a sum of, with coefficients."""
        addends: _Addends = {}
        ready: dict[tuple[int, tuple[str, ...]], Fraction] = {(node, ()): Fraction(1)}
        """Term, and the linear operations after it -> coefficient."""

        def add(number: int, maps: tuple[str, ...], times: Fraction) -> None:
            ready[number, maps] = ready.get((number, maps), Fraction(0)) + times

        while ready:
            number, maps = max(ready)  # its coefficient is whole: inputs have smaller numbers
            times = ready.pop((number, maps))
            nodes: tuple[int, ...] = (number,)
            match self.terms[rank].nodes[number]:
                case _ if number in self.names[rank]:  # whatever its updates have made it of
                    key = digest_of(digest(self.values.of(rank, number)), *maps)
                case Added(inputs=inputs):
                    for one in inputs:
                        add(one, maps, times)
                    continue
                case Scaled(input=one, factor=factor):
                    add(one, maps, times * Fraction(factor))
                    continue
                case Mapped(input=one, digest=name):
                    add(one, (name, *maps), times)
                    continue
                case Applied(addends=parts, inputs=inputs, digest=name) if parts:
                    for one in parts:
                        add(one, maps, times)
                    nodes = tuple(one for one in inputs if one not in parts)
                    if not nodes:
                        continue
                    values = [digest(self.values.of(rank, one)) for one in nodes]
                    key = digest_of(name, *values, *maps)
                case _:
                    key = digest_of(digest(self.values.of(rank, number)), *maps)
            before = addends.get(key, _Addend(Fraction(0), ()))
            addends[key] = _Addend(before.times + times, before.nodes + nodes)
        return addends

    def _shards(
        self, rank: int, addends: _Addends, shared: set[str], reads: dict[int, int]
    ) -> bool:
        """Whether a rank adds something that it computes with a parameter that no other one has."""
        nodes = [node for name in addends.keys() - shared for node in addends[name].nodes]
        return any(
            not self._is_reduced(rank, name, reads)
            and all(self._differ(name, rank, other) for other in reads if other != rank)
            for name in self._reached(rank, nodes, set())
        )

    def _differ(self, name: str, rank: int, other: int) -> bool:
        one, another = self.holders[rank, name], self.holders.get((other, name))
        return another is None or self.replicas.start(one) != self.replicas.start(another)

    def _parameters(self, rank: int, nodes: Sequence[int]) -> list[str]:
        """The parameters whose gradients come back from one copy of an addend alone.

        None are those behind an input of a function that communicates in its backward pass, as
        that may sum the gradients of all copies.
        """
        return self._reached(rank, nodes, set(self.terms[rank].entered))

    def _reached(self, rank: int, nodes: Sequence[int], stops: set[int]) -> list[str]:
        """The parameters that terms are computed from."""
        ready, seen, reached = list(nodes), set(nodes), dict[str, None]()
        while ready:
            number = ready.pop()
            if number in stops:
                continue
            if number in self.names[rank]:
                reached[self.names[rank][number]] = None
                continue
            later = [one for one in inputs_of(self.terms[rank].nodes[number]) if one not in seen]
            seen.update(later)
            ready += later
        return list(reached)

    def _is_reduced(self, rank: int, name: str, reads: dict[int, int]) -> bool:
        """Whether a gradient is put together of those of the ranks of a sum, or there is none.

        Also where a function of autograd that a parameter is given to does it.
        """
        holder, nodes = self.holders[rank, name], self.terms[rank].nodes
        gradients = [claim.gradient for claim in holder.claims.values()]
        gradients += [one for one in [holder.parameter.gradient] if one is not None]
        made = [
            node.input for node in nodes if isinstance(node, Gradient) and node.parameter == name
        ]
        over = [self.replicas.summed_over(rank, gradient) for gradient in gradients]
        over += [self.replicas.sources(rank, gradient) for gradient in made]
        return not gradients or any(
            len(set(members) & reads.keys()) > 1 for members in chain(*over)
        )

    @cached_property
    def factors(self) -> list[dict[int, list[Fraction | None]]]:
        """Of each rank: call -> what its result is multiplied by; None for an unknown factor."""
        return [_factors(of_rank) for of_rank in self.terms]

    def _wrong(
        self, rank: int, call: int, reads: dict[int, int], certain: bool, what: str, unless: str
    ) -> DataFault:
        number = self.terms[rank].calls[call].instruction
        node = self.program.programs[rank][number]
        line = f" at {node.source}" if node.source else ""
        sentence = f"rank {rank}, instruction {number} ({instruction_line(node)}){line}: {what}"
        sentence += "" if certain else f", unless {unless}"
        side = self.values.matches.sides((rank, number))[0]
        events = tuple(
            InvolvedInstruction(
                member, instruction_line(node), index, role="adds it", wrong=member == rank,
                source=self.program.programs[member][index].source,
            )
            for member, index, _ in sorted(self.values.matches.partners[side])
        )  # fmt: skip
        details = Counterexample("wrong-data", tuple(reads), events=events)
        return DataFault(sentence, details, certain)


def _several(names: Sequence[str]) -> str:
    return " and ".join(names[:3]) + ", ..." * (len(names) > 3)


def _factors(terms: RankTerms) -> dict[int, list[Fraction | None]]:
    copies: dict[int, int] = {}
    """Terms that are what a call returned, or elements of it, and that call."""
    factors: dict[int, list[Fraction | None]] = {}
    for number, node in enumerate(terms.nodes):
        match node:
            case Received(call=call):
                copies[number] = call
            case Mapped(input=one) if one in copies:
                copies[number] = copies[one]
            case Scaled(input=one, factor=factor) if one in copies:
                factors.setdefault(copies[one], []).append(Fraction(factor))
            case WeightedTerm(input=one) if one in copies:
                factors.setdefault(copies[one], []).append(None)
    return factors
