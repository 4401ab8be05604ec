"""Labels of placements: what a script labels as replicated is the same on all ranks of the group.

A partial sum that is labelled `Replicate` is used as if it were the whole sum. Two ranks hold the
same data if they compute it by the same operations from the same data. This property is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter

from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.terms import RankTerms, ReplicaClaim
from primepar.preflight.meaning.values import digest
from primepar.schedule.counterexample import Counterexample, InvolvedInstruction
from primepar.verify.report import PropertyResult

NAME = "replication"


def replication(values: TermValues, terms: Sequence[RankTerms]) -> PropertyResult:
    """Decide whether every tensor that is labelled as replicated is the same on all its ranks.

    The k-th label of a group on one rank is that of the same tensor as the k-th one on another.
    """
    start = perf_counter()
    for claims in _by_tensor(terms):
        ranks = sorted(claims)
        names = {rank: digest(values.of(rank, claims[rank].term)) for rank in ranks}
        other = next((rank for rank in ranks if names[rank] != names[ranks[0]]), None)
        if other is not None:
            return _refuted(claims, ranks[0], other, perf_counter() - start)
    return PropertyResult(NAME, "proved", perf_counter() - start)


def _by_tensor(terms: Sequence[RankTerms]) -> list[dict[int, ReplicaClaim]]:
    claims: dict[tuple[tuple[int, ...], int], dict[int, ReplicaClaim]] = defaultdict(dict)
    for rank, of_rank in enumerate(terms):
        counts: dict[tuple[int, ...], int] = defaultdict(int)
        for claim in of_rank.replicas:
            claims[claim.group, counts[claim.group]][rank] = claim
            counts[claim.group] += 1
    return list(claims.values())


def _refuted(
    claims: dict[int, ReplicaClaim], first: int, other: int, seconds: float
) -> PropertyResult:
    group = ",".join(map(str, claims[other].group))
    sentence = (
        f"rank {other}, tensor labelled as replicated at {claims[other].source}: expected the data "
        f"of rank {first}, got data that is computed otherwise: label it Partial or Shard, or "
        f"reduce it over ranks {group} before"
    )
    events = tuple(
        InvolvedInstruction(
            rank, "labels a tensor as replicated", wrong=rank == other, source=claims[rank].source
        )
        for rank in (first, other)
    )
    details = Counterexample("wrong-data", (first, other), events=events)
    return PropertyResult(NAME, "refuted", seconds, counterexample=sentence, details=details)
