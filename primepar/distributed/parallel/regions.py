"""Where columns stay split in a module's own code: between the layers of a region.

Transformers' attention takes the number of heads from the columns of a tensor, so that it works on
the heads of a rank as it is. GPT-2 has queries, keys and values in one layer: three `sections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import nn

from primepar.errors import PlanError, nearest


@dataclass(frozen=True)
class Region:
    """From the outputs of the `enter` layers to the inputs of the `leave` layers columns are split.

    Both are patterns of names of linear layers, as in `fnmatch`. With `sections` the outputs of the
    `enter` layers are that many tensors side by side, such as queries, keys and values. A rank
    has a part of each.
    """

    enter: tuple[str, ...]
    leave: tuple[str, ...]
    sections: int = 1


@dataclass(frozen=True)
class LinearRole:
    """Whether the input and the output of a layer are split, and the sections of the output."""

    leaves: bool = False
    enters: bool = False
    sections: int = 1


_KNOWN = {
    "LlamaAttention": Region(("q_proj", "k_proj", "v_proj"), ("o_proj",)),
    "LlamaMLP": Region(("gate_proj", "up_proj"), ("down_proj",)),
    "GPT2Attention": Region(("c_attn",), ("c_proj",), sections=3),
    "GPT2MLP": Region(("c_fc",), ("c_proj",)),
}
"""Class of the transformers library -> the region inside; patterns name its own layers."""


def resolved(
    module: nn.Module, layers: tuple[str, ...], regions: tuple[Region, ...]
) -> tuple[Region, ...]:
    """Return the regions of a module, known and given ones, with the names of their layers.

    Raises `PlanError` for a pattern that matches no layer.
    """
    return tuple(
        Region(matched(region.enter, layers), matched(region.leave, layers), region.sections)
        for region in (*_known(module), *regions)
    )


def roles_of(layers: tuple[str, ...], regions: tuple[Region, ...]) -> dict[str, LinearRole]:
    """Return the role of each layer, for resolved regions."""
    roles = {name: LinearRole() for name in layers}
    for region in regions:
        for name in region.enter:
            roles[name] = replace(roles[name], enters=True, sections=region.sections)
        for name in region.leave:
            roles[name] = replace(roles[name], leaves=True)
    return roles


def partitioned(regions: tuple[Region, ...], chosen: Collection[str]) -> tuple[Region, ...]:
    """Return the regions whose layers are all `chosen` to be partitioned.

    Raises `PlanError` for a region of which only some are.
    """
    kept = []
    for region in regions:
        names = (*region.enter, *region.leave)
        whole = [name for name in names if name not in chosen]
        if whole and len(whole) < len(names):
            other = next(name for name in names if name in chosen)
            raise PlanError(
                f"{whole[0]}: expected a sequence, as columns are split between it and {other}, "
                f"got None: give both a sequence, or both None"
            )
        if not whole:
            kept.append(region)
    return tuple(kept)


def matched(patterns: tuple[str, ...], layers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layers that a pattern matches. Raises `PlanError` where one matches none."""
    matching: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not names:
            raise PlanError(
                f"pattern {pattern!r}: expected one that matches linear layers of the module, got "
                f"none among {', '.join(layers[:3])}, ...{nearest(pattern, layers)}"
            )
        matching |= dict.fromkeys(names)
    return tuple(matching)


def known_class(module: nn.Module) -> str | None:
    """Return the name of a class of transformers whose region is known."""
    kind = type(module)
    name = kind.__name__
    ours = name in _KNOWN and kind.__module__.startswith("transformers.")
    return name if ours and not getattr(module, "is_cross_attention", False) else None


def _known(module: nn.Module) -> Iterator[Region]:
    for path, part in module.named_modules():
        name = known_class(part)
        if name is not None:
            start = f"{path}." if path else ""
            region = _KNOWN[name]
            enter, leave = (
                tuple(start + layer for layer in names) for names in (region.enter, region.leave)
            )
            yield Region(enter, leave, region.sections)
