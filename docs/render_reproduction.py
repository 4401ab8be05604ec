"""The page that compares the paper's evaluation with the planner's, with its pictures.

    python -m docs.render_reproduction

writes docs/reproduction.md and docs/images/reproduction-*.svg, which are kept in git, as this takes
minutes; a test computes some of the points again and compares them with the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from benchmarks.bars import BarPanel, bars
from benchmarks.bench import BenchRun, measured
from benchmarks.bench import page_table as table
from benchmarks.paper import (
    DEVICES,
    FIGURE_2,
    FIGURE_9,
    FIGURE_9_MLP,
    NAMES,
    SETTING,
    SPLITS,
    WITHIN,
    Collectives,
    Mlp,
    PaperPoint,
    Setting,
    Stack,
    agreement,
    best_against_best,
    best_gains,
    best_two,
    collective_gains,
    constant,
    constant_share,
    constant_splits,
    is_large,
    matching_splits,
    mean_gains,
    mlp_pair,
    most_microbatches,
    not_large,
    other_settings,
    pairs,
    point,
    reduced,
    saved_memory,
    speed_gains,
    split_taus,
    stacked,
    without_links,
)
from benchmarks.plan import PAPER
from benchmarks.plan import plan as searches
from primepar.plan.search.search import search

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
Choices = dict[str, list[PaperPoint]]
"""Another choice -> the points of figures 7 and 8."""


def report(text: str) -> str:
    """Print on the terminal what is computed next, and return it."""
    print(text, file=sys.stderr, flush=True)
    return text


def words(text: str) -> str:
    """A paragraph in lines of the width of the other pages."""
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def off(ours: float, printed: float) -> str:
    """By how much a ratio is off, in percent of the paper's."""
    return f"{100 * (ours / printed - 1):+.0f}%"


HEAD = """---
description: >-
  The evaluation of the PrimePar paper next to the results of this planner and simulator.
---

# The paper's results compared with ours

This page compares the evaluation of PrimePar with the numbers of our planner. Section 6 of the
paper ([Wang et al., ASPLOS 2024](https://doi.org/10.1145/3620666.3651357)) measures its plans on
32 V100. Here the same points are computed.
PrimePar is the [search](planner.md#the-search) over the paper's space. Megatron is the fastest of
its plans over all degrees of data parallelism. Both are costed by one
[model](planner.md#what-is-counted) on one [cluster file](planner.md#clusters), `v100-8x4`. Nothing
was run on a V100. `make reproduction` writes this page."""
BEFORE = """\
## What had to be assumed

The paper gives no alpha, no coefficients, no batch, no length of sequences, no data type, no number
of layers and no optimizer. One choice holds for all points, and none is fitted to a point."""
ASSUMED = (
    ("batch of figures 9 and 10", "8 sequences", "figure 9 has 8 and 16"),
    ("batch of figures 7 and 8",
     "2 sequences for every GPU; above 100 billion parameters half a sequence",
     "[figure 2](#figure-2-the-batch)"),
    ("sequence", "2,048 tokens", "the context of OPT and BLOOM; also for Llama 2"),
    ("data type", "float32",
     "the 167 ms of forward of fc1 in figure 9 are 94% of a V100's peak in it"),
    ("layers", "one block",
     "no 4 to 32 V100 hold OPT-175B whole; the ratios are those of a block"),
    ("alpha", "0", "the fastest plan counts"),
    ("rates", "14.8 Tflop/s; 25 GB/s in a node, 6.6 GB/s out of it",
     "the milliseconds of figure 9"),
    ("one ring alone", "3 GB/s out of a node",
     "fitted to the geometric mean of figure 7; figure 9 has Megatron in two groups of 4 on 8 "
     "GPUs, and one group of 8 is no faster where its ring reaches 4.77 GB/s or less"),
    ("memory", "parameters, stashes, what runs",
     "the formula of the paper's section 4 has neither gradients nor an optimizer"),
    ("attention", "two copies of its scores are kept",
     "the paper's graph has softmax and its product with the values as operators, and each keeps "
     "what its backward reads; the time of these is not counted"),
    ("stages", "8 blocks, one microbatch",
     "[Megatron's bars](#figure-10-stages-and-replicas) in figure 10"),
)  # fmt: skip
"""What is assumed, how, and why."""
AFTER = """\
Of these the ring alone is fitted to what PrimePar gains: one number for 24 points. The batch, the
microbatch and the rates are read from Megatron's bars, the scores and the memory from the paper's
graph and formula. The first try had 8 sequences and AdamW everywhere. After it some forty settings
of batch, ring and memory were tried. [A table below](#how-much-depends-on-the-choices) shows what
depends on each."""


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


def figure_9(pairs: list[tuple[Collectives, Mlp, Mlp]]) -> Iterator[str]:
    """The MLP by the simulator."""
    yield "## Figure 9: collectives of an MLP"
    yield words(
        "The programs of fc1 and fc2 run in the [simulator](simulator.md). Megatron has one copy "
        "in each node; PrimePar's plan is what the search finds for a block. "
        "Collectives are all-reduces, over Megatron's; computing is the share of Megatron's time "
        "without them."
    )
    yield words(collectives_text(pairs))
    yield table(["model", "GPUs", "batch", "PrimePar's fc1, fc2", "collectives, paper", "ours",
                 "computing, paper", "ours", "time, ours"],
                [collective_row(*pair) for pair in pairs])  # fmt: skip
    _, megatron, primepar = pairs[0]
    theirs = {plan: sum(labels) for plan, labels in FIGURE_9_MLP.items()}
    yield words(
        f"The paper's labels for OPT-175B on 8 GPUs at batch 8 add up to {theirs['Megatron']:,} ms "
        f"for Megatron and {theirs['PrimePar']:,} ms for PrimePar, "
        f"{theirs['PrimePar'] / theirs['Megatron']:.2f} of it. Simulated are "
        f"{1e3 * megatron.seconds:,.0f} and {1e3 * primepar.seconds:,.0f} ms, "
        f"{primepar.seconds / megatron.seconds:.2f}. The search chooses the paper's plan: fc1 "
        f"`{primepar.sequences[0]}`, fc2 `{primepar.sequences[1]}`."
    )


def collectives_text(pairs: list[tuple[Collectives, Mlp, Mlp]]) -> str:
    """How far our ratios of collectives are from the paper's, next to a constant."""
    gains = collective_gains(pairs)
    return (
        f"Kendall's tau of the {len(pairs)} ratios of collectives is {gains.tau:+.2f}. A ratio of "
        f"ours is off by {100 * gains.off:.0f} points in the mean, the constant "
        f"{gains.constant:.0%}, chosen after looking, by {100 * gains.constant_off:.0f}."
    )


def collective_row(printed: Collectives, megatron: Mlp, primepar: Mlp) -> list[str]:
    """A row of figure 9's table."""
    ratio = primepar.collectives / megatron.collectives
    computing = 1 - megatron.collectives / megatron.seconds
    plan = ", ".join(f"`{text}`" for text in primepar.sequences)
    return [NAMES[printed.model], str(printed.devices), str(printed.batch), plan,
            f"{printed.ratio:.0%}", f"{ratio:.0%}", f"{printed.computing:.0%}", f"{computing:.0%}",
            f"{primepar.seconds / megatron.seconds:.2f}"]  # fmt: skip


def figure_10(stacks: list[Stack]) -> Iterator[str]:
    """Bars of all splits, and whose best two are the paper's."""
    yield "## Figure 10: stages and replicas"
    yield "![Throughput of splits, the paper's and ours](images/reproduction-figure-10.svg)"
    yield words(
        "32 GPUs as p [stages of d replicas of m](planner.md#stages-and-replicas), over Megatron "
        "at (2, 1, 16). The 8 key/value heads of Llama 2 70B are not cut in 16, here as in the "
        "paper: it is over (2, 2, 8). Models are cut to 8 blocks, so that all stages have the same "
        "number."
    )
    least, model = min((most_microbatches(stack.printed), stack.model) for stack in stacks)
    yield words(
        "The paper does not state how many microbatches k a replica has, but its bars bound it. "
        "With one replica a step takes k + p - 1 times a stage. A stage on 8 GPUs of two nodes is "
        "no faster than half of it on 4 of one. So (k + 7) / (k + 3) is at least the ratio of "
        f"Megatron's bars at (4, 1, 8) and (8, 1, 4). For {NAMES[model]} that leaves k at most "
        f"{least:.1f}: one."
    )
    yield table(["model", "plan", "bars", *(f"{tuple(split)}" for split in SPLITS), "best two"],
                [row for stack in stacks for row in split_rows(stack)])  # fmt: skip
    same, blind, taus = matching_splits(stacks), constant_splits(stacks), split_taus(stacks)
    yield words(
        f"The best two splits are the paper's for {same[1]} of the {len(stacks)} models under "
        f"PrimePar's plans, in whichever order, and for {same[0]} under Megatron's. One pair for "
        f"all models, chosen after looking, is right for {blind[1]} and for {blind[0]}. The mean "
        f"of Kendall's tau over the bars of a model is {taus[1]:+.2f} under PrimePar's plans and "
        f"{taus[0]:+.2f} under Megatron's."
    )
    gains = best_gains(stacks)
    yield words(
        "**Best against best:** PrimePar's fastest split over Megatron's fastest split. A gain of "
        f"ours is off by {100 * gains.off:.0f} points in the mean, the constant "
        f"{gains.constant:.0%} by {100 * gains.constant_off:.0f}; tau is {gains.tau:+.2f}."
    )
    yield table(["model", "paper", "ours"], [best_row(stack) for stack in stacks])


def best_row(stack: Stack) -> list[str]:
    """A model's fastest split under PrimePar over its fastest under Megatron."""
    ours, printed = best_against_best(stack)
    return [NAMES[stack.model], f"{printed:.2f}", f"{ours:.2f}"]


def split_rows(stack: Stack) -> Iterator[list[str]]:
    """Rows of figure 10's table."""
    for plan, (ours, printed) in zip(("Megatron", "PrimePar"), pairs(stack), strict=True):
        for name, values in (("paper", printed), ("ours", ours)):
            cells = ["none" if value is None else f"{value:.2f}" for value in values]
            best = ", ".join(str(tuple(SPLITS[split])) for split in best_two(values))
            yield [NAMES[stack.model], plan, name, *cells, best]


def all_points(setting: Setting = SETTING) -> list[PaperPoint]:
    """All points of figures 7 and 8."""
    return [point(model, devices, setting) for model in NAMES for devices in DEVICES]


def table_2() -> Iterator[str]:
    """Times of the search."""
    rows = measured(searches(DEVICES), 3, BenchRun({}))
    cells: dict[str, list[str]] = {}
    for row in rows:
        paper = PAPER[row.model][row.devices]
        cells.setdefault(row.model, []).append(f"{1e3 * paper:,.0f} / {1e3 * row.seconds:,.0f}")
    yield "## Table 2: the time of the search"
    yield words(
        "Milliseconds, the paper's on a Xeon Gold 5218 / ours on the machine that made this page, "
        "one thread each. [`python -m benchmarks plan`](commands.md#benchmarks) measures yours."
    )
    yield table(["model", *(f"{devices} GPUs" for devices in DEVICES)],
                [[NAMES[model], *times] for model, times in cells.items()])  # fmt: skip


def choices(paper_points: list[PaperPoint], others: Choices) -> Iterator[str]:
    """The same figures under other choices."""
    rows = [["as above", *agreement_row(paper_points)]]
    rows += [[name, *agreement_row(points)] for name, points in others.items()]
    rows.append(["constants", *constant_row(paper_points)])
    yield "## How much depends on the choices"
    yield words(
        "Figures 7 and 8 once more with one choice changed. The last row has constants in the "
        "place of all points, chosen after looking."
    )
    yield table(["choice", "geometric mean", "off", "gain up to 70B", "tau", "within 25%",
                 "farthest", "tau of memory", "memory within 10"], rows)  # fmt: skip
    yield "And figure 10, of which the best two splits are compared:"
    stages = {name: replace(SETTING, microbatches=count, batch=batch) for name, count, batch in (
        ("as above", 1, 8), ("two microbatches", 2, 8), ("batch 4", 1, 4), ("batch 16", 1, 16)
    )}  # fmt: skip
    splits = {name: [stacked(model, setting) for model in NAMES]
              for name, setting in stages.items()}  # fmt: skip
    counts = {name: matching_splits(stacks) for name, stacks in splits.items()}
    counts["one pair for all models"] = constant_splits(splits["as above"])
    yield table(["choice", "right under PrimePar's plans", "under Megatron's"],
                [[name, *(f"{models} of 6" for models in same[::-1])]
                 for name, same in counts.items()])  # fmt: skip


def batch_text(points: list[PaperPoint], equal: list[PaperPoint]) -> str:
    """What the batch explains: gains with the same number of sequences everywhere, and figure 2."""
    (ours, printed), (small, _) = (mean_gains(not_large(part)) for part in (points, equal))
    share = reduced("opt-6.7b", SETTING.batch)
    return (
        f"**The batch** is the term that explains most of it. With {SETTING.batch} sequences at "
        f"all points the mean gain up to 70 billion parameters is {small:.0%} in place of "
        f"{ours:.0%}, the paper's {printed:.0%}, and Kendall's tau of all gains is "
        f"{speed_gains(equal).tau:+.2f} in place of {speed_gains(points).tau:+.2f}. But then "
        f"all-reduces take {share:.0%} of Megatron's step of OPT 6.7B on 16 GPUs, where figure 2 "
        f"prints {FIGURE_2['opt-6.7b']:.0%}, and memory is near the paper's at "
        f"{agreement(equal).near_shares} of {len(equal)} points. No batch that was tried gives "
        "both."
    )


def causes(points: list[PaperPoint], equal: list[PaperPoint]) -> Iterator[str]:
    """Where ours is far from the paper's, and what the model shows there."""
    by_place = {(point.model, point.devices): point for point in points}
    free = without_links(SETTING)
    rows = []
    for model in NAMES:
        point = by_place[model, 4]
        most = point.megatron_seconds / search(free.planner(model, 4)).seconds
        rows.append(
            [NAMES[model], f"{point.printed_speed:.2f}", f"{point.speed:.2f}", f"{most:.2f}"]
        )
    yield "## Where ours differs, and why"
    yield words(
        "**On 4 GPUs** ours are below the paper's for all models. With the coefficients of the "
        "paper's own figure 9 there is less to gain. The last column is the throughput over "
        "Megatron's of a plan that had to send nothing at all."
    )
    yield table(["model", "paper", "ours", "nothing sent"], rows)
    large, opt, bloom = (
        by_place["llama-2-70b", 32],
        by_place["opt-175b", 16],
        by_place["bloom-176b", 16],
    )
    yield words(
        "**Up to 70 billion parameters** ours gain less than the paper's on all numbers of GPUs. "
        "At the batch of figure 2 both plans have copies between nodes and differ within one, "
        f"where there is as little to gain as on 4 GPUs. Llama 2 70B on 32 GPUs is farthest below: "
        f"{large.speed:.2f}, the paper's {large.printed_speed:.2f}. With fewer sequences ours gain "
        "more and keep fewer copies than the paper's memory shows."
    )
    yield words(batch_text(points, equal))
    yield words(
        "**BLOOM 176B and OPT 175B** differ by a block that is 1.2 times as wide, and by little "
        f"else that the paper reports. On 16 GPUs it has {bloom.printed_speed:.2f} and "
        f"{opt.printed_speed:.2f}; one model of costs has them near each other, {bloom.speed:.2f} "
        f"and {opt.speed:.2f}."
    )
    yield words(
        "**Figure 10:** replicas cost more in the paper than here. Under Megatron it has OPT 175B "
        "at (2, 4, 4) at 0.66 of (2, 1, 16). Our coefficients are from figure 9. By them the "
        "all-reduces of activations over 16 GPUs of four nodes, which the bubble doubles, take "
        "longer than those of weights between them, once at the end. The paper takes its batch "
        "partition out of the stages, and so do we: there linear operators cut rows only by `P`."
    )


def family() -> Iterator[str]:
    """The same models over every primitive of the library."""
    rows = []
    for model in NAMES:
        for devices in DEVICES:
            report(f"the whole family: {model} on {devices}")
            paper, every, grids = (
                point(model, devices, space=space) for space in ("paper", "all", "grids")
            )
            more = {name.rpartition(".")[2]: text for name, text in every.sequences.items()}
            chosen = ", ".join(f"`{more[name]}`" for name in ("qkv", "proj", "fc1", "fc2"))
            faster = (f"{100 * (paper.seconds / best.seconds - 1):.1f}%" for best in (every, grids))
            rows.append([NAMES[model], str(devices), f"{paper.speed:.2f}", f"{every.speed:.2f}",
                         *faster, f"{paper.share:.0%}", f"{every.share:.0%}", chosen])  # fmt: skip
    yield "## What the paper could have had"
    yield words(
        "The same points over `--space all`. In addition to `P` it "
        "chooses the [stationary family](methods/stationary.md), in which one tensor stays "
        "where it is: `Is` takes I where the operator before it left it, and nothing is "
        "redistributed. Throughput and memory are over the same Megatron. `--space grids` has "
        "[grids](methods/grid.md) and [SUMMA in layers](methods/summa.md) too, also those that "
        "keep what forward gathers."
    )
    yield table(["model", "GPUs", "paper's space", "whole family", "faster by", "with grids",
                 "memory", "whole family", "qkv, proj, fc1, fc2"], rows)  # fmt: skip


def draw(points: list[PaperPoint], stacks: list[Stack]) -> None:
    """Write the pictures of figures 7, 8 and 10."""
    folder = PAGE.parent / "images"
    for figure, ours, printed, top in (
        (7, "speed", "printed_speed", 1.75), (8, "share", "printed_share", 1.25)
    ):  # fmt: skip
        panels = [
            BarPanel(NAMES[model], tuple((f"{point.devices}", (getattr(point, printed),
                                                               getattr(point, ours)))
                                         for point in points if point.model == model))
            for model in NAMES
        ]  # fmt: skip
        label = f"Figure {figure} of the paper and ours"
        text = bars(panels, ("paper", "ours"), 3, top, label)
        (folder / f"reproduction-figure-{figure}.svg").write_text(text, encoding="utf-8")
    panels = [
        BarPanel(NAMES[stack.model], tuple(
            (",".join(map(str, split)), values) for split, *values in
            zip(SPLITS, stack.printed.megatron, stack.bars[0], stack.printed.primepar,
                stack.bars[1], strict=True)
        ))
        for stack in stacks
    ]  # fmt: skip
    series = ("Megatron, paper", "Megatron, ours", "PrimePar, paper", "PrimePar, ours")
    text = bars(panels, series, 2, 2.75, "Figure 10 of the paper and ours")
    (folder / "reproduction-figure-10.svg").write_text(text, encoding="utf-8")


def main() -> None:
    """Compute everything, and write the page and its pictures."""
    report("figures 7 and 8")
    paper_points = all_points()
    report("figure 10")
    stacks = [stacked(model) for model in NAMES]
    draw(paper_points, stacks)
    assumed = table(["what", "choice", "why"], ASSUMED, "---")
    others = {report(name): all_points(setting) for name, setting in other_settings().items()}
    mlps = [(collectives, *mlp_pair(collectives)) for collectives in FIGURE_9]
    parts = [HEAD, words(summary(paper_points, mlps, stacks)), BEFORE, assumed, AFTER, *figure_2()]
    parts += [
        *figures_7_and_8(paper_points),
        *figure_9(mlps),
        *figure_10(stacks),
        *table_2(),
        *choices(paper_points, others),
        *causes(paper_points, others["8 sequences"]),
        *family(),
    ]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    report(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
