"""ZB-H1: 1F1B with the gradients of the weights apart, which fill two thirds of the bubble.

Source: Qi et al., ICLR 2024, arXiv 2401.10241, section 2.1 and figure 3.

Only B, the gradient of the input, is needed by the stage before. W, the gradient of the weights,
can run at any later time. The order of F and B is that of 1F1B. Stage s runs the W of a micro-batch
after the B that is s micro-batches later, and so sends B earlier. The last W fill what would be
idle at the end.

    stage s, w = min(p - 1 - s, M):  ... F(w + k) B(k) W(k - s) ...

Where f = b = w the bubble is a third of that of 1F1B. Every stage keeps the stashes of p
micro-batches, as the first stage of 1F1B does.

Sent per stage:   as in 1F1B. The bubble is (p - 1) (f + b - w) for times f, b and w <= f, M >= p.
Held per stage:   stashes of min(p, M) micro-batches.
"""

from __future__ import annotations

from primepar.partition.pipeline.method import PipelineMethod


class ZeroBubbleH1(PipelineMethod, frozen=True, kw_only=True):
    """1F1B whose gradients of weights run later, where a stage would be idle."""

    name = "zb-h1"
    schedule = "zb-h1"
