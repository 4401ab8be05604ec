"""GPipe: all forwards of a step, then all backwards.

Source: Huang et al., NeurIPS 2019, arXiv 1811.06965, section 2.2 and figure 2c.

The layers of a model are cut into p stages, and the batch into M micro-batches. A stage runs the
forwards of all micro-batches in order, then their backwards in reverse order. Weights change once,
after the last backward, so the step is that of the whole batch. F is a forward, B the gradient of
its input and W that of the weights; B and W are one action, after which B's result is sent.

    stage s:  F(0) F(1) ... F(M - 1)  B(M - 1) W(M - 1) ... B(0) W(0)

A start for every action proves that no stage waits without end, for all p and M (ours). Where F, B
and W take one unit each, it is the earliest one:

    start of F(s, k) = s + k
    start of B(s, k) = M + p - 1 + 2 (M - 1 - k) + 2 (p - 1 - s)
    start of W(s, k) = start of B(s, k) + 1

Sent per stage:   2 M activations of a micro-batch, forward and back, less those of the first and
                  the last stage. The bubble is (p - 1) (f + b + w) for times f, b and w.
Held per stage:   the stashes of all M micro-batches. GPipe recomputes them (section 2.3); here they
                  are kept.
"""

from __future__ import annotations

from primepar.partition.pipeline.method import PipelineMethod


class GPipe(PipelineMethod, frozen=True, kw_only=True):
    """All forwards of a step, then all backwards in reverse order."""

    name = "gpipe"
    schedule = "gpipe"
