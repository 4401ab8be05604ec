"""Figures 9 and 10 on the page: collectives of an MLP, and splits of 32 GPUs, next to constants."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.paper.mlp import Mlp
from benchmarks.paper.page_text import table, words
from benchmarks.paper.pipelines import (
    Stack,
    best_two,
    matching_splits,
    most_microbatches,
    pairs,
)
from benchmarks.paper.printed import FIGURE_9_MLP, NAMES, SPLITS, Collectives
from benchmarks.paper.yardsticks import (
    best_against_best,
    best_gains,
    collective_gains,
    constant_splits,
    split_taus,
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
