"""Torch kernels: one dense function from blocks to a block for each phase of a training step.

A kernel `kernel(site, inputs, into, *blocks)` writes every element of `into`, a contiguous block,
and does not change or keep the others. It depends on no rank, mesh or message, and never waits for
the device. `into` has the dtype of the mesh, or float32 at least if the tensor is `wide`. Sums are
computed in float32 at least, and rounded once. `product` is the kernel of linear operators in a
form that accumulates into a block. Those of `RETURNED` get no `into`: torch's own function makes a
tensor, which is the block.
"""

from collections.abc import Mapping

from primepar.distributed.kernels import (
    attention,
    elementwise,
    embedding,
    linear,
    loss,
    norm,
    regression,
    update,
)
from primepar.distributed.kernels.common import Kernel
from primepar.distributed.kernels.linear import product

KERNELS: dict[str, Kernel] = {
    "linear.forward": linear.multiply,
    "linear.backward": linear.multiply,
    "linear.gradient": linear.multiply,
    "bias.forward": linear.add_bias,
    "bias.gradient": linear.bias_gradient,
    "norm.moments": norm.moments,
    "norm.square": norm.square,
    "norm.normalize": norm.normalize,
    "norm.forward": norm.forward,
    "norm.gradient": norm.gradient,
    "norm.backward.sums": norm.backward_sums,
    "norm.backward": norm.backward,
    "layer_norm.statistics": norm.row_statistics,
    "layer_norm.normalize": norm.normalize_rows,
    "layer_norm.gradient": norm.weight_gradient,
    "layer_norm.backward": norm.layer_norm_backward,
    "attention.keys": attention.keys,
    "attention.forward": attention.forward,
    "attention.backward": attention.backward,
    "attention.backward.keys": attention.backward_keys,
    "activation.forward": elementwise.activate,
    "activation.backward": elementwise.activate_backward,
    "add.forward": elementwise.add,
    "add.backward": elementwise.add_backward,
    "sum.fan-in": elementwise.fan_in,
    "embedding.lookup": embedding.look_up,
    "embedding.forward": embedding.forward,
    "embedding.backward": embedding.backward,
    "token.gradient": embedding.look_up_gradient,
    "position.gradient": embedding.position_gradient,
    "loss.largest": loss.largest,
    "loss.sums": loss.sums,
    "loss.shares": loss.shares,
    "loss.forward": loss.forward,
    "loss.backward": loss.backward,
    "cross_entropy.logs": loss.logs,
    "cross_entropy.forward": loss.whole_forward,
    "cross_entropy.backward": loss.whole_backward,
    "clip.squares": update.squares,
    "clip.norm": update.norm,
    "first.update": update.first_moment,
    "second.update": update.second_moment,
    "adamw.update": update.adamw,
    "sgd.update": update.sgd,
    "master.update": update.master,
    "regression.residual": regression.residual,
    "regression.gradient": regression.gradient,
    "workers.average": regression.part,
}
"""`Signature.kernel` -> the function that computes the phase."""

IN_PLACE: Mapping[str, int] = {
    "norm.normalize": 0,
    "norm.forward": 0,
    "norm.backward": 0,
    "bias.forward": 0,
    "attention.backward": 0,
    "activation.forward": 0,
    "activation.backward": 1,
    "add.forward": 1,
    "add.backward": 0,
    "embedding.backward": 0,
    "sum.fan-in": 0,
    "loss.shares": 0,
    "loss.backward": 0,
    "cross_entropy.logs": 0,
    "cross_entropy.backward": 0,
    "first.update": 0,
    "second.update": 0,
    "adamw.update": 0,
    "sgd.update": 0,
}
"""Kernel -> the position of the block among those it reads whose memory `into` may have.

Both have one shape and dtype: an activation with a gate is not meant.
"""
RETURNED = frozenset({"layer_norm.normalize", "layer_norm.gradient", "layer_norm.backward"})
"""Kernels that return their block, new and contiguous: `kernel(site, inputs, *blocks)`."""
WITHOUT_SETTINGS = frozenset({"workers.average"})
"""Kernels that read no settings of a training step."""

__all__ = ["IN_PLACE", "KERNELS", "RETURNED", "WITHOUT_SETTINGS", "Kernel", "product"]
