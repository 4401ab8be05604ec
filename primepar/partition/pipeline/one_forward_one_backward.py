"""1F1B: after a warm-up, one forward and one backward alternate on every stage.

Source: PipeDream-Flush, Narayanan et al., ICML 2021, arXiv 2006.09503, and SC 2021, arXiv
2104.04473, section 2.2.1.

Stage s of p runs min(p - 1 - s, M) forwards, enough to bridge the way to the last stage and back.
Then one forward and one backward alternate until the forwards end, and the other backwards follow.
Weights change once, after the last backward. F, B and W are as in GPipe, with B and W one action.

    stage s, w = min(p - 1 - s, M):  F(0) ... F(w - 1)  F(w) B(0) W(0)  F(w + 1) B(1) W(1) ...

The bubble is that of GPipe, but a stage keeps the stashes of p - s micro-batches only, whatever M
is. A time for every action proves that no stage waits without end, for all p and M (ours):

    T(F, s, k) = s + 2 k,    T(B, s, k) = 2 p + 2 k - s - 1

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
