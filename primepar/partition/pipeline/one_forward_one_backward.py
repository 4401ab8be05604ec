"""1F1B: after a warm-up, one forward and one backward alternate on every stage.

Source: Narayanan et al., ICML 2021, arXiv 2006.09503, as PipeDream-Flush; the same, SC 2021,
arXiv 2104.04473, section 2.2.1.

Stage s of p runs min(p - 1 - s, M) forwards, enough to bridge the way to the last stage and back.
Then one forward and one backward alternate until the forwards end, and the other backwards follow.
Weights change once, after the last backward. F, B and W are as in GPipe, with B and W one action.

    w = min(p - 1 - s, M):  F(0) ... F(w - 1)  F(w) B(0) W(0)  F(w + 1) B(1) W(1) ...

The bubble is that of GPipe, but a stage keeps the stashes of p - s micro-batches only, whatever M
is. A start for every action proves that no stage waits without end, for all p and M (ours). Where
F, B and W take one unit each, it is the earliest one:

    start of F(s, k) = s + k                                for k <= p - 1 - s
                       start of B(s, k - p + s) + 2         else
    start of B(s, k) = p + 2 (p - 1 - s) + 3 k
    start of W(s, k) = start of B(s, k) + 1

Sent per stage:   2 M activations of a micro-batch, forward and back, less those of the first and
                  the last stage. The bubble is (p - 1) (f + b + w) for times f, b and w.
Held per stage:   stashes of min(p - s, M) micro-batches on stage s.
"""

from __future__ import annotations

from primepar.partition.pipeline.method import PipelineMethod


class OneForwardOneBackward(PipelineMethod, frozen=True, kw_only=True):
    """After a warm-up, one forward and one backward of each stage alternate."""

    name = "1f1b"
    schedule = "1f1b"
