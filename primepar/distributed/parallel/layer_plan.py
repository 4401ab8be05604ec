"""What a plan states of the linear layers of a user's module: sequences, regions and layouts.

Each layer has a sequence, from a preset, from patterns of names, or from the plan of a model. In a
`Region`, from the layers that enter it to those that leave it, columns stay split: transformers'
attention takes the number of heads from the columns of a tensor, so that it works on the heads of a
rank as it is. GPT-2 has queries, keys and values in one layer: three `sections`.

Two layouts of activations are enough. In the *stream* layout a rank has all columns of its rows;
norms, residuals and losses work there. In the *split* layout it has its columns of the same rows;
attention works on its heads there, and an activation function on its hidden units.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import nn

from primepar.errors import PlanError, SequenceError, nearest
from primepar.models.names import sources
from primepar.operators.single_operator import resident_layout
from primepar.partition.registry import parse_sequence
from primepar.plan.operator_layouts import part, resident
from primepar.plan.plan import Plan
from primepar.plan.presets import names_preset, preset_pair
from primepar.schedule.layout import Layout
from primepar.schedule.movement import Movement


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
    inside = []
    for path, layer in module.named_modules():
        name, start = known_class(layer), f"{path}." if path else ""
        if name is not None:
            known = _KNOWN[name]
            enter, leave = (
                tuple(start + end for end in names) for names in (known.enter, known.leave)
            )
            inside.append(Region(enter, leave, known.sections))
    return tuple(
        Region(matched(region.enter, layers), matched(region.leave, layers), region.sections)
        for region in (*inside, *regions)
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
            inner = any(fnmatchcase(name, f"*.{pattern}") for name in layers)
            advice = f": write *.{pattern}" if inner else nearest(pattern, layers)
            raise PlanError(
                f"pattern {pattern!r}: expected one that matches linear layers of the module, got "
                f"none among {', '.join(layers[:3])}, ...{advice}"
            )
        matching |= dict.fromkeys(names)
    return tuple(matching)


def known_class(module: nn.Module) -> str | None:
    """Return the name of a class of transformers whose region is known."""
    kind = type(module)
    name = kind.__name__
    ours = name in _KNOWN and kind.__module__.startswith("transformers.")
    return name if ours and not getattr(module, "is_cross_attention", False) else None


LayerPlan = str | Mapping[str, str | None] | Plan
"""A preset or a sequence, a sequence for each pattern of names, or the plan of a model."""


def assigned(
    plan: LayerPlan, roles: Mapping[str, LinearRole], tied: Mapping[str, str], ranks: int
) -> dict[str, str]:
    """Return the sequence of every layer that is to be partitioned.

    `tied` are layers whose weight is also another parameter. They stay whole, unless a pattern has
    a sequence for them. Raises `PlanError` for a layer without a sequence, and for a sequence that
    is not one of `ranks` ranks.
    """
    given = _by_layer(plan, roles, tied, ranks)
    missing = [name for name in roles if name not in given]
    if missing:
        others = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise PlanError(
            f"{missing[0]}{others}: expected a sequence for every linear layer, the plan has none: "
            f'write "{missing[0]}": "K{ranks}", or None to leave it whole on every rank'
        )
    chosen = {name: text for name, text in given.items() if text is not None}
    if not chosen:
        raise PlanError(
            f"{next(iter(roles))}: expected a sequence for at least one linear layer, got None for "
            f'all: write "{next(iter(roles))}": "K{ranks}"'
        )
    for name, text in chosen.items():
        _check(name, text, tied, ranks)
    return chosen


def _by_layer(
    plan: LayerPlan, roles: Mapping[str, LinearRole], tied: Mapping[str, str], ranks: int
) -> dict[str, str | None]:
    if isinstance(plan, Plan):
        return _of_plan(plan, roles) | dict.fromkeys(tied)
    if isinstance(plan, str):
        texts: dict[str, str | None] = dict.fromkeys(roles, plan) | dict.fromkeys(tied)
    else:
        texts = _of_patterns(plan, tuple(roles))
    return {name: _sequence(text, roles[name], ranks) for name, text in texts.items()}


def _sequence(text: str | None, role: LinearRole, ranks: int) -> str | None:
    """Return a sequence as it is; of a preset that for the column or the row operators."""
    if text is None or not names_preset(text):
        return text
    column, row = preset_pair(text, ranks)
    return row if role.leaves else column


def _of_patterns(plan: Mapping[str, str | None], layers: tuple[str, ...]) -> dict[str, str | None]:
    """Return the text of the first pattern that matches a layer."""
    matched(tuple(plan), layers)
    return {
        name: next(text for pattern, text in plan.items() if fnmatchcase(name, pattern))
        for name in layers
        if any(fnmatchcase(name, pattern) for pattern in plan)
    }


def _of_plan(plan: Plan, roles: Mapping[str, LinearRole]) -> dict[str, str | None]:
    """The names of a plan's operators in the module are those of the weights in its files."""
    chosen: dict[str, str | None] = {}
    for operator in (operator for operator in plan.operators if operator.kind == "linear"):
        text = plan.sequences[operator.name]
        for prefix in (True, False):
            weight = f"{operator.name}.weight"
            if weight in plan.model.parameter_shapes:
                names = (source.tensor for source in sources(plan.model, weight, prefix))
                chosen |= {name.removesuffix(".weight"): text for name in names}
    return {name: chosen[name] for name in roles if name in chosen}


def _check(name: str, text: str, tied: Mapping[str, str], ranks: int) -> None:
    sequence = parse_sequence(text)
    devices = sequence.ranks
    try:
        resident_layout(Movement(sequence), "forward", "O", last=True)
    except SequenceError as error:
        raise SequenceError(f"{name}: {error}") from None
    if devices != ranks:
        raise PlanError(
            f"{name}: expected a sequence of the mesh's {ranks} ranks, got {text!r} of {devices}: "
            "write another, or take another mesh"
        )
    if name in tied:
        raise PlanError(
            f"{name}: expected a layer with a weight of its own, its weight is also {tied[name]}: "
            f'write "{name}": None first, and it stays whole on every rank'
        )


@dataclass(frozen=True)
class Boundaries:
    """Both layouts over (rows, columns). A rank has the same rows in both."""

    stream: Layout
    split: Layout

    @property
    def row_groups(self) -> int:
        """Number of groups of ranks with different rows."""
        return self.stream.grid[0]

    def row_group(self, rank: int) -> int:
        """Which of the groups a rank is in."""
        return self.stream.held[rank][0][0]

    @property
    def parts(self) -> int:
        """Number of ranks that share the columns of a row."""
        return self.split.grid[1]


def boundaries_of(
    ranks: int, sequences: Mapping[str, str], entering: Mapping[str, str]
) -> Boundaries:
    """Return the layouts for some layers, each with its sequence.

    The rows are those of the outputs, where all layers agree on them. Otherwise a rank has all
    rows. The columns are those of the outputs of the layers that are `entering` a region. Raises
    `PlanError` if these disagree.
    """
    whole = Layout((1,), (((0,),),) * ranks)
    rows = {part(resident(text, "O"), (0,)) for text in sequences.values()}
    row = _only(rows, whole)
    names: dict[Layout, str] = {}
    for name, text in entering.items():
        names.setdefault(part(resident(text, "O"), (1,)), name)
    if len(names) > 1:
        first, second = list(names.values())[:2]
        raise PlanError(
            f"{first} and {second}: expected outputs that are cut into the same columns on every "
            f"rank, got those of {entering[first]!r} and {entering[second]!r}: give both one "
            "sequence"
        )
    column = _only(set(names), whole)
    return Boundaries(_joint(row, whole), _joint(row, column))


def _only(layouts: set[Layout], whole: Layout) -> Layout:
    """Return the only layout of one dim; `whole` if there are others, or several slices a rank."""
    layout = layouts.pop() if len(layouts) == 1 else whole
    return layout if all(len(held) == 1 for held in layout.held) else whole


def _joint(rows: Layout, columns: Layout) -> Layout:
    held = (
        ((row, column),) for ((row,),), ((column,),) in zip(rows.held, columns.held, strict=True)
    )
    return Layout((rows.grid[0], columns.grid[0]), tuple(held))
