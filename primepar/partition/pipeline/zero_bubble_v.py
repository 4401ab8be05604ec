"""ZBV: two chunks on every stage, placed as a V, and no bubble for equal times.

Source: Qi et al., ICLR 2024, arXiv 2401.10241, section 6; also arXiv 2405.15362, which names the V.

The model is cut into 2 p chunks. Chunk i is on stage i for i < p and on stage 2 p - 1 - i from p
on: down the stages and up again. So the first stage has the first and the last chunk, the backward
of a micro-batch starts where its forward did, and the turn on the last stage sends nothing. W is
apart from B, as in ZB-H1.

    stage s:  2 (p - s) - 1 times   F of chunk 0
              s times               F of chunk 1, F of chunk 0
              p - s times           F, B, W of chunk 1
              then                  F, B, W of chunk 0 and of chunk 1 in turn
              at the end            B of both chunks first, W of both last

Where f = b = w and M >= 2 p - 1, no stage is idle between its first and its last action. Stages
begin one after another, so that the whole step takes p - 1 units longer than the work of a stage.

Sent per stage:   up to 4 M activations of a micro-batch: in both directions, forward and back.
Held per stage:   min(2 p, M + s + 1, 2 M) stashes of a chunk, each half of a stage: those of p
                  micro-batches, on every stage alike.
"""

from __future__ import annotations

from primepar.partition.pipeline.method import PipelineMethod


class ZeroBubbleV(PipelineMethod, frozen=True, kw_only=True):
    """Two chunks on every stage, down and up again, with gradients of weights apart."""

    name = "zbv"
    schedule = "zbv"
