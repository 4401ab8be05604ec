"""What a function of autograd copies to ranks is the same on them, and becomes parts of a sum.

Megatron's f returns its input, and its backward pass sums the gradients of all ranks:

    x = f(h)                          # the same h on all ranks
    h = h + all_reduce(w1 @ (w0 @ x))     # each rank adds a part

What is computed of `x` on a rank is a part, until ranks sum or gather it, whatever its numbers are:
shards that start alike give equal parts, of which one is not the sum. Where the all-reduce is left
out, a part enters the next f, and its backward pass sums gradients of different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.preflight.meaning.evaluate import TermPlace, TermValues
from primepar.preflight.meaning.faults import DataFault
from primepar.preflight.meaning.terms import CopiedInput, Mapped, RankTerms, Received
from primepar.preflight.meaning.values import digest
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.program import AllReduce
from primepar.schedule.words import ranks_text


def copied_parts(values: TermValues, terms: Sequence[RankTerms]) -> Iterator[DataFault]:
    """Yield inputs whose gradients are summed over ranks that do not have the same input."""
    parts: dict[TermPlace, int] = {}
    asked: dict[tuple[int, int], dict[int, CopiedInput]] = {}
    """First side of a call -> the input of each rank whose gradient it sums."""
    for rank, of_rank in enumerate(terms):
        for one in of_rank.copied:
            side = _sum_of(values, rank, one.gradient)
            if side is not None:
                members = values.matches.partners[side]
                place = [member for member, _, _ in members].index(rank)
                parts |= {TermPlace(rank, output): place for output in one.outputs}
                asked.setdefault(members[0][:2], {})[rank] = one
    marked = TermValues(values.matches, terms, parts) if parts else values
    for copies in asked.values():
        names = {rank: digest(marked.of(rank, one.data)) for rank, one in copies.items()}
        first = min(names)
        other = next((rank for rank in sorted(names) if names[rank] != names[first]), None)
        if other is not None:
            yield _differs(copies, first, other)
    for copies in {tuple(sorted(copies)): copies for copies in asked.values()}.values():
        ranks = sorted(copies)
        for roots in zip(*(terms[rank].roots for rank in ranks), strict=False):
            alike, apart = (
                len({digest(of.of(*place)) for place in zip(ranks, roots, strict=True)}) == 1
                for of in (values, marked)
            )
            if alike and not apart:
                yield _unsummed(copies)
                return


def _sum_of(values: TermValues, rank: int, node: int) -> tuple[int, int, int] | None:
    """The side of the all-reduce that returned a gradient as it is."""
    nodes = values.nodes[rank]
    while isinstance(term := nodes[node], Mapped):
        node = term.input
    if not isinstance(term, Received):
        return None
    side = rank, values.calls[rank][term.call].instruction, 0
    post = values.matches.post(side)
    sums = isinstance(post, AllReduce) and post.reduction == "sum" and post.scale_value == 1
    return side if sums else None


def _unsummed(copies: dict[int, CopiedInput]) -> DataFault:
    """All ranks compute one output, and gradients are summed as if each had a part of it."""
    rank, one = min(copies.items())
    ranks = ranks_text(sorted(copies))
    sentence = (
        f"rank {rank}, backward of {one.name} at {one.source}: expected parts of which ranks "
        f"{ranks} make one output, as it sums their gradients, got the output of each, equal by "
        "equal data: all-reduce the parts in the forward pass, if these ranks hold shards"
    )
    event = InvolvedInstruction(
        rank, f"{one.name} sums gradients", role="writes it", wrong=True, source=one.source
    )
    return DataFault(sentence, Counterexample("wrong-data", (rank,), events=(event,)), False)


def _differs(copies: dict[int, CopiedInput], first: int, rank: int) -> DataFault:
    one = copies[rank]
    sentence = (
        f"rank {rank}, backward of {one.name} at {one.source}: expected an input that ranks "
        f"{ranks_text(sorted(copies))} have in common, as it sums their gradients, got one that "
        f"rank {first} computes otherwise, such as a part that is not summed: all-reduce the parts "
        "in the forward pass before"
    )
    events = tuple(
        InvolvedInstruction(
            member, f"{copies[member].name} sums gradients", role="writes it",
            wrong=member == rank, source=copies[member].source,
        )
        for member in (rank, first)
    )  # fmt: skip
    return DataFault(sentence, Counterexample("wrong-data", (rank, first), events=events))
