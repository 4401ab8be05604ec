"""What a layer keeps from forward to backward, and what is there in full while it runs again.

Of what an operator keeps, some is its input as it took it. That is made again by the operator
before. The rest it makes itself: the rows that a norm has normalized, keys from other devices, an
input that was sent. So is an input that was redistributed. An operator that runs again needs its
own input: it is made again, too, or it is kept. Example: where `norm1` runs again and nothing
before it, the input of the layer is kept instead of the rows that the norm keeps otherwise.

What runs again is made where backward of the layer begins, or later where its input is there. So
what consecutive operators make again is there at once, at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from primepar.models.graph import Operator
from primepar.plan.pipeline.computed_again import KEEP_INPUT, Repeated, repeated
from primepar.plan.pipeline.stage import ChosenOption, StageDevices
from primepar.plan.pipeline.training_options import Recompute


class KeptBytes(NamedTuple):
    """Bytes of a layer: kept for backward, and made again at once."""

    kept: float
    again: float


@dataclass(frozen=True)
class LayerActivations:
    """The operators of a layer in the order of execution, and the one `before` the layer."""

    group: StageDevices
    before: ChosenOption
    chosen: tuple[ChosenOption, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, without what is chosen for them."""
        return tuple(chosen.operator for chosen in self.chosen)

    def seconds(self, recompute: Recompute) -> tuple[float, float]:
        """Seconds of computing again for a micro-batch, and of messages again."""
        runs = repeated(self.operators, recompute)
        compute = messages = 0.0
        for chosen in self.chosen:
            if chosen.name in runs.again:
                compute += chosen.cost.forward
                messages += chosen.cost.forward_communication * runs.sends
            messages += chosen.forward * (chosen.name in runs.received)
        return compute, messages

    def bytes(self, recompute: Recompute) -> KeptBytes:
        """Bytes of a device for a micro-batch."""
        runs = repeated(self.operators, recompute)
        kept = sum(dict(self._inputs(runs)).values())
        most = made = 0.0
        for chosen in self.chosen:
            freed = self._freed(chosen, runs)
            kept += chosen.cost.stash - freed
            made += freed
            most = max(most, made)
            if chosen.name not in runs.allowed:
                made = 0.0
        return KeptBytes(kept, most)

    def _freed(self, chosen: ChosenOption, runs: Repeated) -> float:
        """Bytes of an operator's stash that are made again."""
        cost, freed = chosen.cost, 0.0
        if chosen.name in runs.allowed and runs.sends:
            freed = cost.stash - cost.unmoved
        elif chosen.name in runs.allowed and chosen.operator.kind == "norm":
            freed = self._output(chosen, self.group.training.wide_item)
        made = (chosen.name in runs.received if chosen.forward
                else not runs.again.isdisjoint(chosen.operator.inputs))  # fmt: skip
        return freed + cost.unmoved * made

    def _inputs(self, runs: Repeated) -> Iterator[tuple[str, float]]:
        """Bytes of inputs of what runs again that are kept for that alone, by their maker."""
        makers = {chosen.name: chosen for chosen in (self.before, *self.chosen)}
        item = self.group.training.item
        for chosen in self.chosen:
            is_moved = chosen.forward > 0
            needs = chosen.name in runs.again
            if chosen.operator.kind in KEEP_INPUT:
                needs = is_moved and chosen.name in runs.received
            for source in chosen.operator.inputs if needs else ():
                if source not in runs.again:
                    here = is_moved and not runs.sends
                    yield source, self._output(chosen if here else makers[source], item)

    def _output(self, chosen: ChosenOption, item: int) -> float:
        """Bytes on a device of an operator's output, of elements with `item` bytes."""
        share = self.group.catalogue.layouts.share(chosen.leaves)
        return share * self.group.training.rows * chosen.operator.K * item
