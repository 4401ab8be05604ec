"""The first paragraph of the page: what agrees with the paper, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.blocks import PaperPoint
from benchmarks.paper.mlp import Mlp
from benchmarks.paper.pipelines import Stack, matching_splits
from benchmarks.paper.printed import Collectives
from benchmarks.paper.yardsticks import (
    best_against_best,
    collective_gains,
    constant_splits,
    is_large,
    mean_gains,
    not_large,
    saved_memory,
    speed_gains,
)


def summary(
    points: Sequence[PaperPoint],
    mlps: Sequence[tuple[Collectives, Mlp, Mlp]],
    stacks: Sequence[Stack],
) -> str:
    """What agrees and what does not, figure by figure, each next to a constant."""
    large = [point for point in points if is_large(point.model)]
    (big, printed_big), (small, printed_small) = map(mean_gains, (large, not_large(points)))
    gains, saved, sums = speed_gains(points), saved_memory(points), collective_gains(mlps)
    same, blind = matching_splits(stacks)[1], constant_splits(stacks)[1]
    best = {stack.model: best_against_best(stack) for stack in stacks}
    ours, printed = best["opt-175b"]
    (_, megatron, primepar), total = mlps[0], len(points)
    return (
        f"**What agrees, and what does not.** The models of 175 and 176 billion parameters gain "
        f"{big:.0%} over Megatron in the mean, the paper's {printed_big:.0%}. Those of up to 70 "
        f"billion gain {small:.0%}, the paper's {printed_small:.0%}: that is not reproduced. "
        f"Kendall's tau of all {total} gains is {gains.tau:+.2f}. A gain is off by "
        f"{100 * gains.off:.0f} points in the mean, where a constant would be off by "
        f"{100 * gains.constant_off:.0f}. Memory is off by {100 * saved.off:.0f} points, a "
        f"constant by {100 * saved.constant_off:.0f}. The MLP of figure 9, right, takes "
        f"{primepar.seconds / megatron.seconds:.2f} of Megatron's time, the paper's 0.71; the "
        f"{len(mlps)} ratios of collectives, left, are off by {100 * sums.off:.0f} points, a "
        f"constant by {100 * sums.constant_off:.0f}. Of figure 10 the best two splits are the "
        f"paper's for {same} of {len(stacks)} models under PrimePar's plans; one pair for all "
        f"would be right for {blind}. Best against best, OPT 175B gains {ours:.2f}, the paper's "
        f"{printed:.2f}. Constants are chosen after looking."
    )
