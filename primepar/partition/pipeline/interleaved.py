"""Interleaved 1F1B: every stage has several chunks of the model, and the bubble shrinks.

Source: Narayanan et al., SC 2021, arXiv 2104.04473, section 2.2.2.

The model is cut into v p chunks, and chunk i is on stage i mod p. A micro-batch passes all stages v
times. Stages work on p micro-batches with one chunk, then on these with the next chunk. So M must
be a multiple of p. Stage s runs min((v - 1) p + 2 (p - 1 - s), v M) forwards, then one forward and
one backward alternate. Backwards take the chunks in reverse order.

    pass n of v M:  turn n div (v p), chunk (n mod v p) div p, micro-batch turn p + (n mod p)

Chunks are v times smaller, so with the same (p - 1) (f + b + w) of the times of a chunk the bubble
is a v-th of that of 1F1B.

Sent per stage:   v times as much as in 1F1B, and the last stage sends to the first.
Held per stage:   min((v - 1) p + 2 (p - s) - 1, v M) stashes of a chunk on stage s, about
                  1 + (p - 1) / (v p) times those of 1F1B on the first stage.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from primepar.partition.pipeline.method import PipelineMethod


class InterleavedOneForwardOneBackward(PipelineMethod, frozen=True, kw_only=True):
    """1F1B over several chunks of the model on every stage."""

    name = "interleaved-1f1b"
    schedule = "interleaved-1f1b"
    chunks: Annotated[int, Meta(ge=2, le=16)] = 2

    @property
    def chunk_count(self) -> int:
        """Chunks of a stage."""
        return self.chunks
