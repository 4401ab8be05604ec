"""Labels of placements: what a script labels as replicated is the same on all ranks of the group.

A partial sum that is labelled `Replicate` is used as if it were the whole sum. Two ranks hold the
same data if they compute it by the same operations from the same data. This property is ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from time import perf_counter

from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.terms import RankTerms, ReplicaClaim
from primepar.preflight.meaning.values import digest
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.verify.report import PropertyResult

NAME = "replication"


def replication(values: TermValues, terms: Sequence[RankTerms]) -> PropertyResult:
    """Decide whether every tensor that is labelled as replicated is the same on all its ranks.

    The k-th label of a group on one rank is that of the same tensor as the k-th one on another.
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
        seconds = perf_counter() - start
        return PropertyResult(NAME, "refuted", seconds, counterexample=sentence, details=details)
    return PropertyResult(NAME, "proved", perf_counter() - start)
