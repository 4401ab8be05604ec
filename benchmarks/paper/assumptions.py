"""What the paper leaves out and the reproduction assumes, as its page states it first."""

from __future__ import annotations

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
