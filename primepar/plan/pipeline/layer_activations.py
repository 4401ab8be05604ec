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
from typing import NamedTuple

from primepar.plan.pipeline.computed_again import (
    KEEP_INPUT,
    allowed_again,
    computed_again,
    received_again,
    sends_again,
)
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

    def seconds(self, recompute: Recompute) -> tuple[float, float]:
        """Seconds of computing again for a micro-batch, and of messages again."""
        operators = tuple(chosen.operator for chosen in self.chosen)
        again = computed_again(operators, recompute)
        received = received_again(operators, recompute)
        compute = messages = 0.0
        for operator, _, _, cost, forward, _ in self.chosen:
            if operator.name in again:
                compute += cost.forward
                messages += cost.forward_communication * sends_again(recompute)
            messages += forward * (operator.name in received)
        return compute, messages

    def bytes(self, recompute: Recompute) -> KeptBytes:
        """Bytes of a device for a micro-batch."""
        allowed = allowed_again(tuple(chosen.operator for chosen in self.chosen), recompute)
        kept = sum(self._needed(recompute).values())
        most = made = 0.0
        for chosen in self.chosen:
            freed = self._freed(chosen, recompute)
            kept += chosen.cost.stash - freed
            made += freed
            most = max(most, made)
            if chosen.operator.name not in allowed:
                made = 0.0
        return KeptBytes(kept, most)

    def _freed(self, chosen: ChosenOption, recompute: Recompute) -> float:
        """Bytes of an operator's stash that are made again."""
        operators = tuple(known.operator for known in self.chosen)
        operator, cost = chosen.operator, chosen.cost
        runs = operator.name in allowed_again(operators, recompute)
        own = input_ = 0.0
        if runs and sends_again(recompute):
            own = cost.stash - cost.unmoved
        elif runs and operator.kind == "norm":
            own = self._output(chosen, self.group.training.wide_item)
        if chosen.forward:
            input_ = cost.unmoved * (operator.name in received_again(operators, recompute))
        elif not computed_again(operators, recompute).isdisjoint(operator.inputs):
            input_ = cost.unmoved
        return own + input_

    def _needed(self, recompute: Recompute) -> dict[str, float]:
        """Bytes of inputs of what runs again that are kept for that alone, by their maker."""
        return dict(self._kept_inputs(recompute))

    def _kept_inputs(self, recompute: Recompute) -> Iterator[tuple[str, float]]:
        operators = tuple(chosen.operator for chosen in self.chosen)
        again, item = computed_again(operators, recompute), self.group.training.item
        received = received_again(operators, recompute)
        makers = {chosen.operator.name: chosen for chosen in (self.before, *self.chosen)}
        for chosen in self.chosen:
            operator = chosen.operator
            is_moved = chosen.forward > 0
            if operator.kind in KEEP_INPUT:
                needs = is_moved and operator.name in received
            else:
                needs = operator.name in again
            for source in operator.inputs if needs else ():
                if source not in again:
                    here = is_moved and not sends_again(recompute)
                    yield source, self._output(chosen if here else makers[source], item)

    def _output(self, chosen: ChosenOption, item: int) -> float:
        """Bytes on a device of an operator's output, of elements with `item` bytes."""
        share = self.group.catalogue.layouts.share(int(chosen.options.leaves[chosen.number]))
        return share * self.group.training.rows * chosen.operator.K * item
