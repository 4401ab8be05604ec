"""Where in one rank's list a transfer can be in flight: from its last change to its first use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from primepar.passes.block_uses import Rank, RankList, request_of
from primepar.schedule.program import Instruction, Wait


class TransferSpans:
    """The posts of one rank with their waits, and the places where their blocks are used."""

    def __init__(self, nodes: Sequence[Instruction], rank: Rank, initial: Iterable[str]) -> None:
        self.nodes, self.rank = nodes, rank
        self.line = RankList(nodes, rank, initial)
        self._waits: dict[int, int] = {}
        posted: dict[str, int] = {}
        for place, node in enumerate(nodes):
            request = request_of(node)
            if isinstance(node, Wait):
                self._waits[posted.pop(node.request, place)] = place
            elif request is not None:
                posted[request] = place

    def ready(self, places: Sequence[int]) -> int:
        """Return the last place before posts where one of their blocks is used; -1 for none."""
        used = [self.rank.touched(self.nodes[place]) for place in places]
        names = {name for blocks in used for name in blocks.reads + blocks.made}
        before = (self.line.before(name, places[0]) for name in names)
        return max((use for use in before if use is not None), default=-1)

    def needed(self, places: Sequence[int]) -> float:
        """Return the first place after posts and their waits where a result is used."""
        after = (
            self.line.after(name, self._waits.get(place, place))
            for place in places
            for name in self.rank.touched(self.nodes[place]).made
        )
        return min((use for use in after if use is not None), default=inf)
