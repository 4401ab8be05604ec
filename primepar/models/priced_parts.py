"""Parts of today's models that the planner prices and no training step here runs.

A `ModelConfig` has them in `priced`, or None there. Layers that differ count as the mean layer:
windows of attention in some layers, and layers without experts before those with them. So all
layers are equal to a search, and the sums over a model stay exact.

Example: DeepSeek-V3 has 61 layers, of which 3 have no experts. In 58 layers a token meets 8 of 256
experts of width 2,048 and one that all share: `Experts(256, 8, 2048, shared=2048, dense=3)`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]


class Experts(Struct, frozen=True, forbid_unknown_fields=True):
    """Routed experts: a token meets `chosen` of `count`, each of `ffn` columns.

    `shared` are the columns of those that every token meets. The first `dense` layers have none,
    but the feed-forward network of the model's own `ffn`.
    """

    count: Size
    chosen: Size
    ffn: Size
    shared: Count = 0
    dense: Count = 0


class Latent(Struct, frozen=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): queries and keys of low rank.

    Of a token `queries` and `keys` columns are made, and `rotary` columns of a key that all heads
    share. From these come the heads: queries and keys of the model's `head_dim`, of which `rotary`
    have a position, and values of `value` columns. Without `queries` they are made in full.
    """

    queries: Count
    keys: Size
    rotary: Size
    value: Size


class PricedParts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model has beyond `ModelConfig`.

    In `windowed` layers a token attends to the last `window` ones. `small` are parameters that no
    operator here has, all layers together: biases of q, k and v alone, norms of heads, sinks. It is
    below 0 where layers have fewer norms.
    """

    experts: Experts | None = None
    latent: Latent | None = None
    window: Size | None = None
    windowed: Count = 0
    small: int = 0

    @property
    def what(self) -> str | None:
        """Words for what a training step here does not have; None where it computes the same."""
        named = {"experts": self.experts, "latent attention": self.latent, "windows": self.window}
        return " and ".join(name for name, part in named.items() if part is not None) or None
