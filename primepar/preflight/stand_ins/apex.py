"""In place of the package apex: its optimizers, norms and wrappers, as torch computes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import SyncBatchNorm
from torch.nn.utils import clip_grad_norm_

convert_syncbn_model = SyncBatchNorm.convert_sync_batchnorm
__all__ = ["SyncBatchNorm", "clip_grad_norm_"]


class FusedAdam(torch.optim.Adam):
    """Adam, whose decay is AdamW's by default."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, adam_w_mode: bool = True,
        weight_decay: float = 0.0, amsgrad: bool = False, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=adam_w_mode
        )


class _FusedNorm:
    """A norm over the last dims, whatever memory it saves."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
                 memory_efficient: bool = False) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine)  # type: ignore[call-arg]


class FusedLayerNorm(_FusedNorm, nn.LayerNorm):
    """A layer norm."""


class FusedRMSNorm(_FusedNorm, nn.RMSNorm):
    """A norm without a mean."""


MixedFusedLayerNorm, MixedFusedRMSNorm = FusedLayerNorm, FusedRMSNorm


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """Replicas whose gradients are averaged."""

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        super().__init__(module)


def initialize(models: Any, optimizers: Any = None, *_: Any, **__: Any) -> Any:
    """Of `amp`: all is computed in the types that the model has."""
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(loss: torch.Tensor, optimizers: Any, *_: Any, **__: Any) -> Iterator[torch.Tensor]:
    """Of `amp`: a loss that is scaled by 1."""
    yield loss


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Of `amp`: the parameters of an optimizer."""
    yield from (one for group in optimizer.param_groups for one in group["params"])
