"""Time and memory of routed experts, spread over the devices: priced, not run.

Every token is sent to the devices of its chosen experts, and their outputs come back: two
all-to-alls in forward and two in backward, of the dispatch's sizes. A token that several devices
hold is routed by one of them. The router spreads tokens evenly.

Expert parallelism is an axis of its own over the innermost devices: one for each expert, or all.
Each has an equal part of the experts; groups of such devices sum gradients.

Example: 8 experts, 2 for each token, on 16 devices with 16 tokens each, in rows. Groups of 8 have
an expert on every device. A device sends 2 x 16 rows, 7 / 8 of them to others, and as many arrive.
"""

from __future__ import annotations

from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.priced_parts import Experts
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training
from primepar.plan.cost.links import ClusterLinks


class Weights(NamedTuple):
    """Elements of the weights of a mean layer: of routed experts, and of what all tokens meet."""

    routed: float
    shared: float

    @classmethod
    def of(cls, model: ModelConfig, experts: Experts, weights: float) -> Weights:
        """Of the `weights` of an operator of experts those that are routed, and all others."""
        matrices = 3 if model.gated else 2
        layers = (model.layers - experts.dense) / model.layers
        routed = layers * experts.count * matrices * model.hidden * experts.ffn
        return cls(routed, weights - routed)


def expert_bits(experts: Experts, links: ClusterLinks) -> tuple[int, ...]:
    """The innermost device bits over which experts are spread, the same number on each."""
    most = (experts.count & -experts.count).bit_length() - 1
    return tuple(range(links.bits - min(links.bits, most), links.bits))


def experts_cost(
    training: Training, model: ModelConfig, experts: Experts, layouts: Layouts, layout: int
) -> Cost:
    """Cost of the experts of a layer over a training step, in a layout with whole columns."""
    links, item = training.links, training.item
    elements, active = model.layer_weights["experts"]
    spread, weights = expert_bits(experts, links), Weights.of(model, experts, elements)
    here = layouts.share(layout) * training.rows  # rows that a device holds
    tokens = training.rows / links.devices  # rows that it routes
    copies = layouts.others(layouts.line(layout, 0))
    dispatch = all_to_all(links, spread, tokens * experts.chosen * model.hidden * item)
    gathered = links.all_gather(copies, tokens * model.hidden * item)
    routed = weights.routed / 2 ** len(spread)
    width = 3 if model.gated else 2
    inside = experts.chosen * (model.hidden + width * experts.ffn) + width * experts.shared
    touched = tokens * (inside + model.hidden) + routed + weights.shared
    forward = training.seconds(2 * tokens * active, touched)
    apart = tuple(bit for bit in range(links.bits) if bit not in spread)
    everybody = tuple(range(links.bits))
    parts = (
        training.parameter(routed, weights.routed, apart, apart),
        training.parameter(weights.shared, weights.shared, everybody, everybody),
    )
    kept = {term: parts[0][term] + parts[1][term] for term in parts[0]}
    return Cost(
        compute=3 * forward, communication=4 * dispatch + 2 * gathered,
        forward=forward, forward_communication=2 * dispatch + gathered,
        stash=(here * model.hidden + tokens * inside) * item, unmoved=here * model.hidden * item,
        running=2 * tokens * experts.chosen * model.hidden * item, **kept,
    )  # fmt: skip


def all_to_all(links: ClusterLinks, bits: tuple[int, ...], size: float) -> float:
    """Seconds in which devices that differ in innermost bits exchange `size` bytes from each.

    A level carries what goes to the devices that it joins and the level below does not; behind a
    shared port are all devices of the level below. Example: of 16 devices in two nodes, 8 / 16 of
    the bytes of each leave a node, by the port that 8 devices share.
    """
    group, below, seconds = 1 << len(bits), 1, 0.0
    for level, link in enumerate(links.by_level):
        joined = min(group, 1 << sum(bit_level <= level for bit_level in links.levels))
        if joined > below:
            behind = below if link.shared else 1
            sent = behind * size * (joined - below) / group
            lines = link.collective("all_to_all", joined, sent / behind, joined - below)
            seconds = max(seconds, lines.start + sent / (link.bandwidth if link.shared else
                                                         lines.bandwidth))  # fmt: skip
        below = max(below, joined)
    return seconds
