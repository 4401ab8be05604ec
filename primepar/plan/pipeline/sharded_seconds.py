"""Seconds of sums of gradients, gathers of parameters and updates, by what is in shards.

An all-reduce of gradients is a reduce-scatter and an all-gather. With states in shards it is a
reduce-scatter of gradients and an all-gather of new parameters, once in a step. Gradients in shards
are scattered after every micro-batch, because no device has room for a whole sum. Parameters in
shards are gathered for forward and again for backward, and scattered: 3/2 of the traffic of an
all-reduce (Rajbhandari et al., arXiv 1910.02054, section 7), in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np

from primepar.plan.pipeline.training_options import Shard
from primepar.plan.search.segments import Vector

Amount = TypeVar("Amount", float, Vector)


def seconds_for_parameters(terms: Mapping[str, Amount], shard: Shard) -> tuple[Amount, Amount]:
    """Seconds for every micro-batch, and once in a step, by the terms of a `Cost`."""
    if shard == "none":
        return 0 * terms["update"], terms["reduction"] + terms["update"]
    scatter, gather, update = (terms[name] for name in ("scatter", "gather", "shard_update"))
    if shard == "optimizer":
        return 0 * update, scatter + gather + update
    if shard == "gradients":
        return scatter, gather + update
    return scatter + 2 * gather, update


def kept_for_parameters(terms: Mapping[str, Vector], shard: Shard) -> Vector:
    """Bytes of parameters, gradients and states of every option, by the terms of a `Cost`."""
    parameters, gradients, states = (terms[name] for name in ("parameters", "gradients", "states"))
    if shard != "none":
        has = np.maximum(parameters, 1.0)  # where there are none, there are no states
        states = states * terms["shard"] / has
    if shard in ("gradients", "parameters"):
        gradients = terms["shard"]
    return (terms["shard"] if shard == "parameters" else parameters) + gradients + states


class Buckets(NamedTuple):
    """Sums of gradients that run during backward, one bucket after another.

    A bucket is ready once backward has passed the operators of its parameters. With n equal
    buckets, T seconds of backward that hide them, and R seconds of all sums, bucket j begins no
    earlier than j T / n. So the last sum ends R / n or R - T (n - 1) / n after backward, whichever
    is more. That is what stays of R where buckets are equal. One operator is in one bucket, and the
    longest sum of an operator may be the last. So that is counted after a bucket, which has the
    second longest at least: in GPT-2 the token table comes right after the first qkv. The rule is
    ours.
    """

    parts: int
    hiding: float
    """Seconds of computing that may hide transfers."""
    after: float = 0.0
    """Seconds of small sums that nothing hides: of vectors' gradients, and for their norm."""

    def exposed(self, seconds: float, longest: float = 0.0, second: float = 0.0) -> float:
        """Seconds of transfers that are not hidden; two operators have the `longest`, `second`."""
        parts = self.parts
        late = seconds - self.hiding * (parts - 1) / parts
        return min(seconds, self.after + max(max(seconds / parts, second) + longest, late))


def bucket_count(size: float, bucket: float | None, operators: int) -> int:
    """Number of buckets for gradients of `size` bytes; an operator is in one bucket."""
    if bucket is None:
        return 1
    return max(1, min(operators, ceil(size / bucket)))
