"""The scale of the loss in float16, adapted after every step as torch.amp.GradScaler does.

Gradients of float16 below 6e-8 are zero, and above 65504 infinite. So backward is of the loss times
a scale (Micikevicius et al., ICLR 2018, section 3.2). A step whose gradient is not finite is
skipped, and the scale is halved. After some good steps it is doubled.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from primepar.distributed.training.settings import LOSS_SCALE, Settings

GROWTH, BACKOFF = 2.0, 0.5
LEAST = 1.0
"""A gradient that is not finite with this scale ends the run."""
MOST = 2.0**127
"""The largest power of two in float32."""
_Count = Annotated[int, Meta(ge=0)]


class LossScale(Struct, frozen=True):
    """The scale of the next step, with `good` steps since it last changed.

    `skipped` are all steps so far whose gradient was not finite.
    """

    scale: Annotated[float, Meta(gt=0)]
    good: _Count = 0
    skipped: _Count = 0

    @classmethod
    def of(cls, settings: Settings, saved: Any) -> LossScale | None:
        """Return that of a checkpoint, or of the first step; None if the dtype needs none."""
        if settings.dtype != "float16":
            return None
        if saved is not None:
            return msgspec.convert(saved, cls)
        return cls(LOSS_SCALE if settings.loss_scale is None else settings.loss_scale)

    def can_skip(self) -> bool:
        """Return whether a gradient that is not finite may be the fault of the scale."""
        return self.scale > LEAST

    def after(self, norm: float, every: int) -> LossScale:
        """Return the scale after a step with this norm of the gradient.

        It is doubled after `every` good steps.
        """
        if not isfinite(norm):
            return LossScale(max(LEAST, self.scale * BACKOFF), 0, self.skipped + 1)
        if self.good + 1 < every:
            return LossScale(self.scale, self.good + 1, self.skipped)
        return LossScale(min(MOST, self.scale * GROWTH), 0, self.skipped)
