"""The collectives that hops and sums of a primitive make, by the rules of its program.

`schedule.transfers` states which hops are an all-gather, and which sums a reduce-scatter. Between
two devices a program sends messages instead, and a group whose devices differ in other ways than in
some bits alone has no ring here: for both, hops and sums stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from primepar.plan.cluster import Collective
from primepar.schedule.lowering import scatters, split, spreadings
from primepar.schedule.movement import Hop, Return
from primepar.schedule.operators import block_name
from primepar.schedule.sequence import Sequence

Group = tuple[int, ...]


class RingCall(NamedTuple):
    """A collective over all groups of devices that differ in some bits, the outermost first.

    `share` is the share of the tensor that a device gives to it, or keeps of a reduce-scatter.
    """

    name: Collective
    tensor: str
    bits: tuple[int, ...]
    share: float


class _Calls:
    """Calls, those of one kind over the same devices together, as a program merges them."""

    def __init__(self, sequence: Sequence, share: Callable[[str], float]) -> None:
        self.places, self._share = sequence.ranks.bit_length() - 1, share
        self._shares: dict[tuple[Collective, str, Group], dict[Group, float]] = {}

    def add(self, name: Collective, tensor: str, group: Group) -> bool:
        """Add a call of one block of every member; False where it is none."""
        apart = 0
        for rank in group:
            apart |= rank ^ group[0]
        if len(group) < 3 or len(group) != 1 << apart.bit_count():
            return False
        places = tuple(place for place in range(self.places)
                       if apart >> (self.places - 1 - place) & 1)  # fmt: skip
        by_group = self._shares.setdefault((name, tensor, places), {})
        by_group[group] = by_group.get(group, 0.0) + self._share(tensor)
        return True

    @property
    def made(self) -> tuple[RingCall, ...]:
        """All of them; groups that differ in the same bits call at the same time."""
        return tuple(RingCall(*key, max(shares.values())) for key, shares in self._shares.items())


def gathered(
    sequence: Sequence,
    share: Callable[[str], float],
    hops: tuple[Hop, ...],
    is_read: Callable[[Hop], bool],
) -> tuple[tuple[RingCall, ...], list[Hop]]:
    """All-gathers among hops, and the hops that are none; `share` is that of a tensor's block."""
    calls, taken = _Calls(sequence, share), set[tuple[str, int]]()
    _, spread = split(hops, is_read)
    for group, blocks, source in spreadings(spread):
        tensor = blocks[0].partition("[")[0]
        if source is None and calls.add("all_gather", tensor, group):
            taken.update(zip(blocks, group, strict=True))
    rest = [hop for hop in hops if (block_name(hop.tensor, hop.index), hop.source) not in taken]
    return calls.made, rest


def summed(
    sequence: Sequence, share: Callable[[str], float], returns: Iterable[tuple[Return, ...]]
) -> tuple[tuple[RingCall, ...], list[Return]]:
    """Reduce-scatters and all-reduces among the sums of each phase, and those that are none."""
    calls, rest = _Calls(sequence, share), list[Return]()
    for of_phase in returns:
        scattered = set[str]()
        for group, blocks in scatters(of_phase)[0]:
            if calls.add("reduce_scatter", blocks[0].partition("[")[0], group):
                scattered.update(blocks)
        for total in of_phase:
            everywhere = total.ranks == total.homes
            if everywhere and calls.add("all_reduce", total.tensor, total.homes):
                continue
            if block_name(total.tensor, total.index) not in scattered:
                rest.append(total)
    return calls.made, rest


def sent(call: RingCall, size: float) -> tuple[float, int]:
    """Bytes that a device sends of a tensor of `size` bytes, and steps of the ring."""
    others = (1 << len(call.bits)) - 1
    if call.name == "all_reduce":
        return 2 * others / (others + 1) * call.share * size, 2 * others
    return others * call.share * size, others
