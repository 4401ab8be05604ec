"""Gathers and scatters next to the products of a linear operator, in buckets that products hide.

Sequence parallelism gathers the rows of an input before one product, and scatters the sum after
another. In n buckets one is multiplied while the next one travels. So of R seconds of transfers and
T seconds of products, what stays is the first bucket, or what is longer than the products:
`max(R / n, R - T (n - 1) / n)`, as for sums of gradients. The pass `chunk-transfers` does that in a
step's program, by a number of chunks. Launches of the products of buckets are not counted. The rule
is ours.
"""

from __future__ import annotations

from primepar.plan.cost.chunks import MOST_CHUNKS
from primepar.plan.pipeline.sharded_seconds import Buckets, bucket_count
from primepar.plan.pipeline.stage import ChosenOption, StageDevices


def hidden_seconds(group: StageDevices, chosen: ChosenOption, bucket: float) -> tuple[float, float]:
    """Seconds of an operator's transfers that are hidden, in forward and in backward.

    Only operators with one step and transfers of their own have them. `bucket` is in bytes.
    """
    candidate, cost = chosen.candidate, chosen.cost
    if candidate.mover is None or candidate.steps > 1 or chosen.operator.kind != "linear":
        return 0.0, 0.0
    devices = 1 << len(candidate.mover[1])
    share = group.catalogue.layouts.share(chosen.leaves)
    output = share * group.training.rows * chosen.operator.K * group.training.item
    count = bucket_count(devices * min(cost.unmoved, output), bucket, MOST_CHUNKS)
    forward, backward = (
        transfers - Buckets(count, products).exposed(transfers)
        for transfers, products in (
            (cost.forward_communication, cost.forward),
            (cost.communication - cost.forward_communication, cost.compute - cost.forward),
        )
    )
    return forward, backward
