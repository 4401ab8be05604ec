"""What is on the device and what on the host, moment by moment, under one policy of eviction."""

from __future__ import annotations

from collections.abc import Hashable

from primepar.passes.offload.moments import Moments, TraceMoment
from primepar.passes.offload.policies import Policy
from primepar.schedule.program import Evict, Fetch, Instruction


class Residency:
    """One rank's list with its transfers, `nodes`, and the elements that they move, `moved`."""

    def __init__(self, moments: Moments, policy: Policy, limit: int) -> None:
        self.moments, self.policy, self.limit = moments, policy, limit
        self.nodes: list[Instruction] = []
        self.moved = 0
        self._device: dict[Hashable, dict[str, int]] = {}
        self._host: dict[Hashable, dict[str, int]] = {}
        """Chunk -> its blocks there, with their elements."""
        self._total = 0
        for name in moments.initial:
            self._make(name)
        for name in moments.host_initial:
            self._host.setdefault(moments.chunk(name), {})[name] = moments.size(name)
        for place, moment in enumerate(moments.trace):
            if moment.node is None:
                self._end()
            self._access(place, moment)

    def _make(self, name: str) -> None:
        blocks = self._device.setdefault(self.moments.chunk(name), {})
        if name not in blocks:
            blocks[name] = self.moments.size(name)
            self._total += blocks[name]

    def _access(self, place: int, moment: TraceMoment) -> None:
        """Fetch the chunks of an instruction, after evictions that make room, and run it."""
        missing = sorted((key for key in moment.chunks if self._host.get(key)), key=str)
        needed = self._growth(moment, missing)
        while self._total + needed > self.limit:
            self._evict(self._next(place, moment))
        for key in missing:
            self._fetch(key)
        if moment.node is None:
            return
        self.nodes.append(moment.node)
        for name in moment.gone:
            self._total -= self._device[self.moments.chunk(name)].pop(name, 0)
        for name in moment.made:
            self._make(name)

    def _growth(self, moment: TraceMoment, missing: list[Hashable]) -> int:
        """Return the elements that fetches and the instruction add."""
        size, chunk = self.moments.size, self.moments.chunk
        coming = {name for key in missing for name in self._host[key]}
        there = coming | {
            name for name in moment.blocks if name in self._device.get(chunk(name), ())
        }
        after = (there | set(moment.made)) - (set(moment.gone) - set(moment.made))
        return (
            sum(map(size, coming)) + sum(map(size, after - there)) - sum(map(size, there - after))
        )

    def _next(self, place: int, moment: TraceMoment) -> Hashable:
        """Return the chunk to evict: a state if one may move, else another block."""
        kept = moment.chunks | moment.in_flight | self.moments.stays
        movable = [key for key, blocks in self._device.items() if blocks and key not in kept]
        uses, count = self.moments.uses, len(self.moments.trace)
        return max(
            movable,
            key=lambda key: (
                key in self.moments.states, self.policy(uses, count, key, place), str(key)
            ),
        )  # fmt: skip

    def _evict(self, key: Hashable) -> None:
        blocks = self._device.pop(key)
        self.nodes += map(Evict, blocks)
        self._host.setdefault(key, {}).update(blocks)
        self._total -= sum(blocks.values())
        self.moved += sum(blocks.values())

    def _fetch(self, key: Hashable) -> None:
        blocks = self._host.pop(key)
        self.nodes += map(Fetch, blocks)
        self._device.setdefault(key, {}).update(blocks)
        self._total += sum(blocks.values())
        self.moved += sum(blocks.values())

    def _end(self) -> None:
        """Evict the states: they end in host memory."""
        for key in [key for key in self._device if key in self.moments.states]:
            self._evict(key)
