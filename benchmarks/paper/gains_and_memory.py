"""Figures 2, 7 and 8 on the page: the batch, gains over Megatron, and memory, next to constants."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.paper.blocks import PaperPoint, reduced
from benchmarks.paper.page_text import off, table, words
from benchmarks.paper.printed import FIGURE_2, NAMES
from benchmarks.paper.yardsticks import (
    WITHIN,
    agreement,
    constant,
    constant_share,
    is_large,
    mean_gains,
    not_large,
    saved_memory,
    speed_gains,
)


def speed_row(point: PaperPoint) -> list[str]:
    """A row of figure 7's table."""
    gain, printed = point.speed - 1, point.printed_speed - 1
    return [NAMES[point.model], str(point.devices), f"{printed:.0%}", f"{gain:.0%}",
            f"{100 * (gain - printed):+.0f}", off(point.speed, point.printed_speed),
            f"{1e3 * point.megatron_seconds:,.0f}", f"{1e3 * point.seconds:,.0f}",
            str(point.copies)]  # fmt: skip


def share_row(point: PaperPoint) -> list[str]:
    """A row of figure 8's table."""
    apart = 100 * (point.share - point.printed_share)
    gib = (f"{size / 2**30:.2f}" for size in (point.megatron_memory, point.memory))
    return [NAMES[point.model], str(point.devices), f"{point.printed_share:.0%}",
            f"{point.share:.0%}", f"{apart:+.0f}", *gib]  # fmt: skip


def agreement_row(points: list[PaperPoint]) -> list[str]:
    """What figures 7 and 8 agree in: means, gains, tau, points that are near, memory."""
    score, (small, _) = agreement(points), mean_gains(not_large(points))
    return [f"{score.mean:.2f}", off(score.mean, score.printed_mean), f"{small:.0%}",
            f"{speed_gains(points).tau:+.2f}", f"{score.near} of {len(points)}",
            f"{score.farthest:.0%}", f"{saved_memory(points).tau:+.2f}",
            f"{score.near_shares} of {len(points)}"]  # fmt: skip


def constant_row(points: list[PaperPoint]) -> list[str]:
    """The same row for constants in the place of all points, chosen after looking."""
    speed = constant(point.printed_speed for point in points)
    share = constant_share(point.printed_share for point in points)
    return [f"{speed.value:.2f}", off(speed.value, agreement(points).printed_mean),
            f"{speed.value - 1:.0%}", "0", f"{speed.near} of {len(points)}",
            f"{speed.farthest:.0%}", "0", f"{share.near} of {len(points)}"]  # fmt: skip


def figure_2() -> Iterator[str]:
    """The batch at which Megatron's all-reduces take the share that the paper prints."""
    batches = (4, 8, 16, 32, 64)
    rows = []
    for model, printed in FIGURE_2.items():
        shares = [reduced(model, batch) for batch in batches]
        near = min(zip(batches, shares, strict=True), key=lambda pair: abs(pair[1] - printed))[0]
        rows.append([NAMES[model], f"{printed:.0%}", *(f"{share:.0%}" for share in shares),
                     str(near)])  # fmt: skip
    yield "## Figure 2: the batch"
    yield words(
        "Figure 2 prints the share of all-reduces in a step of Megatron on 16 GPUs, in 4 copies, "
        "one in each node. Ours depends on the batch, and hardly on the model. The nearest power "
        "of two is taken. Other numbers of GPUs and models of the same size have the same number "
        "of sequences for every GPU."
    )
    heads = ["model", "paper", *(f"{batch} sequences" for batch in batches), "nearest"]
    yield table(heads, rows)


def figures_7_and_8(points: list[PaperPoint]) -> Iterator[str]:
    """Tables of both figures, with what agrees."""
    score = agreement(points)
    yield "## Figure 7: throughput"
    yield "![Throughput over Megatron's, the paper's and ours](images/reproduction-figure-7.svg)"
    yield words(gains_text(points))
    yield words(
        f"The geometric mean of the {len(points)} throughputs over Megatron's is {score.mean:.2f}, "
        f"the paper's {score.printed_mean:.2f}: {off(score.mean, score.printed_mean)}. "
        f"{score.near} of them are within 25%; the farthest is off by {score.farthest:.0%}. "
        "Milliseconds are of one block."
    )
    yield words(constant_text(points))
    yield table(["model", "GPUs", "the paper's gain", "ours", "points off", "throughput off",
                 "Megatron ms", "PrimePar ms", "Megatron's copies"],
                map(speed_row, points))  # fmt: skip
    yield "## Figure 8: peak memory"
    yield "![Memory over Megatron's, the paper's and ours](images/reproduction-figure-8.svg)"
    farthest = 100 * max(abs(point.share - point.printed_share) for point in points)
    yield words(
        f"{score.near_shares} of the {len(points)} ratios are within 10 points of the paper's; the "
        f"farthest is off by {farthest:.0f}. GiB are of one block."
    )
    yield words(memory_text(points))
    yield table(["model", "GPUs", "paper", "ours", "points off", "Megatron GiB", "PrimePar GiB"],
                map(share_row, points))  # fmt: skip


def constant_text(points: list[PaperPoint]) -> str:
    """What the count of near points is worth: the score of a constant."""
    score = constant(point.printed_speed for point in points)
    return (
        f"**A constant reaches this count too.** The number {score.value:.1f} in the place of "
        f"every point is within {WITHIN:.0%} of {score.near} of the paper's {len(points)} points, "
        f"and the farthest is off by {score.farthest:.0%}. So the count alone does not show that "
        "the model predicts which plans gain more."
    )


def gains_text(points: list[PaperPoint]) -> str:
    """Gains over Megatron: means of smaller and of larger models, tau, and a constant's."""
    large = [point for point in points if is_large(point.model)]
    (ours, theirs), small, big = map(mean_gains, (points, not_large(points), large))
    gains, within = speed_gains(points), [speed_gains(part) for part in (not_large(points), large)]
    return (
        f"**Gains over Megatron**, as gains: our mean is {ours:.0%}, the paper's {theirs:.0%}. For "
        f"models of up to 70 billion parameters it is {small[0]:.0%}, the paper's {small[1]:.0%}. "
        f"For those of 175 and 176 billion it is {big[0]:.0%}, the paper's {big[1]:.0%}. Kendall's "
        f"tau of the {len(points)} gains is {gains.tau:+.2f}; within the smaller models it is "
        f"{within[0].tau:+.2f}, within the larger ones {within[1].tau:+.2f}. A gain of ours is off "
        f"by {100 * gains.off:.0f} points in the mean. The constant {gains.constant:.0%} for every "
        f"point, chosen after looking, is off by {100 * gains.constant_off:.0f}."
    )


def memory_text(points: list[PaperPoint]) -> str:
    """Saved memory next to a constant."""
    score, saved = constant_share(point.printed_share for point in points), saved_memory(points)
    return (
        f"The constant {score.value:.0%} in the place of every point is within 10 points of "
        f"{score.near} of the {len(points)}. Kendall's tau of the memory that is saved is "
        f"{saved.tau:+.2f}. A share of ours is off by {100 * saved.off:.0f} points in the mean, "
        f"the constant {1 - saved.constant:.0%} by {100 * saved.constant_off:.0f}."
    )
