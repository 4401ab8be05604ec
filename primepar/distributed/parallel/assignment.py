"""The sequence of every linear layer of a module: from a preset, from patterns, or from a plan."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from primepar.distributed.parallel.regions import LinearRole, matched
from primepar.errors import PlanError, SequenceError
from primepar.models.names import sources
from primepar.operators.single_operator import resident_layout
from primepar.partition.registry import parse_sequence
from primepar.plan.plan import Plan
from primepar.plan.presets import names_preset, preset_pair
from primepar.schedule.movement import Movement

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
