"""Presets by name: one method for a whole model, on any model and mesh that it fits.

Or one sequence for all of its linear operators, with one layout for activations: `uniform_plan`.

The layouts of consecutive operators match where the method allows it, so that nothing moves between
them. The column operators (qkv, fc1, head) leave their output in the layout in which attention,
activation and loss work and in which the row operators (proj, fc2) take it. The residual stream
(embedding, norms, additions) has the layout between a row and a column operator. The 3D method
exchanges its axes from one linear operator to the next. The stationary method keeps O in the column
operators and I in the row operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, lcm

from primepar.errors import ConfigError, PlanError, SequenceError, nearest
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.partition.by_dimension import ByInput, Replicated
from primepar.plan.operator_layouts import ends_of
from primepar.plan.pipeline_layout import take_pipeline
from primepar.plan.plan import MOST_RANKS, Plan
from primepar.schedule.sequence import Element, Sequence


@dataclass(frozen=True)
class RoleSequences:
    """Sequences of one method by the role of an operator."""

    column: str
    row: str
    stream: str
    inner: str
    embedding: str
    loss: str

    def of(self, operator: Operator) -> str:
        """The sequence of an operator."""
        match operator.kind:
            case "linear":
                return self.row if operator.name.endswith(("proj", "fc2")) else self.column
            case "attention" | "activation":
                return self.inner
            case "embedding":
                return self.embedding
            case "loss":
                return self.loss
            case _:
                return self.stream


@dataclass(frozen=True)
class Method:
    """A way to plan a whole model: its meshes, and its sequences on one of them.

    `mesh` gives the lengths of the axes for a number of devices, None where the method has none.
    """

    meshes: str
    mesh: Callable[[int], tuple[int, ...] | None]
    roles: Callable[..., RoleSequences]


def _line(ranks: int) -> tuple[int, ...]:
    return (ranks,)


def _square(ranks: int) -> tuple[int, ...] | None:
    side = isqrt(ranks)
    return (side, side) if side * side == ranks else None


def _square_both_ways(ranks: int) -> tuple[int, ...] | None:
    square = _square(ranks)
    return square and (*square, 2)  # two parts on each device, one for each direction


def _cube(ranks: int) -> tuple[int, ...] | None:
    side = round(ranks ** (1 / 3))
    return (side, side, side) if side**3 == ranks else None


def _deep(ranks: int) -> tuple[int, ...] | None:
    """q x q x d: the deepest mesh with d <= q, as published, or else the shallowest."""
    fits = [
        (q, q, ranks // (q * q)) for q in range(1, isqrt(ranks) + 1) if ranks % (q * q) == 0
    ]  # fmt: skip
    meshes = [mesh for mesh in fits if mesh[0] > 1 or ranks == 1]
    published = [mesh for mesh in meshes if mesh[2] <= mesh[0]]
    return min(published or meshes[-1:], default=None)


def _everywhere(label: str) -> Callable[..., RoleSequences]:
    """One sequence for every operator; one that is not linear has the layout of O."""

    def roles(*lengths: int) -> RoleSequences:
        return RoleSequences(*[_text(label, lengths)] * 6)

    return roles


def _text(label: str, lengths: tuple[int, ...]) -> str:
    return label + "x".join(map(str, lengths))


def _chained(first: str, second: str) -> Callable[..., RoleSequences]:
    """Two primitives alternating: the O of one has the layout of the I of the other."""

    def roles(*lengths: int) -> RoleSequences:
        column, row = _text(first, lengths), _text(second, lengths)
        return RoleSequences(column, row, stream=row, inner=column, embedding=row, loss=column)

    return roles


def _megatron(d: int) -> RoleSequences:
    return RoleSequences(
        f"K{d}", f"N{d}", stream=f"R{d}", inner=f"K{d}", embedding=f"N{d}", loss=f"K{d}"
    )


def _megatron_sp(d: int) -> RoleSequences:
    return RoleSequences(
        f"Ks{d}", f"Ns{d}", stream=f"M{d}", inner=f"K{d}", embedding=f"Ns{d}", loss=f"K{d}"
    )


PRESETS = {
    "megatron": Method("d devices", _line, _megatron),
    "megatron-sp": Method("d devices", _line, _megatron_sp),
    "summa": Method("q x q devices", _square, _everywhere("S")),
    "tesseract": Method("q x q x d devices, q > 1", _deep, _everywhere("T")),
    "3d": Method("q x q x q devices", _cube, _chained("C", "D")),
    "primepar": Method("s x s devices", _square, _everywhere("P")),
    "stationary": Method("s x s devices", _square, _chained("Os", "Is")),
    "stationary-both-ways": Method("s x s devices", _square_both_ways, _chained("Ob", "Ib")),
    "data": Method("d devices", _line, _everywhere("M")),
}
"""Name -> method, in the order of the tutorials."""

_NAME = re.compile(r"(?:M(\d+),)?([^,:]*)(?::(\d+))?")


def preset_plan(
    name: str,
    model: ModelConfig,
    ranks: int,
    batch: int | None = None,
) -> Plan:
    """The plan of a method for a model on `ranks` devices.

    `M2,megatron` runs two copies of the method, each on its half of the devices and of the batch.
    `tesseract:2` has depth 2; by default the depth is the largest up to q. `1f1b:2x4,M2,megatron`
    has that on each of 2 stages of a pipeline, with 4 micro-batches. Raises `PlanError` for a
    method, a mesh or a model that do not fit.
    """
    pipeline, within = take_pipeline(name)
    if not 1 <= ranks <= MOST_RANKS:
        raise PlanError(f"{name}: expected 1 to {MOST_RANKS} devices, got {ranks}")
    try:
        stage_ranks = ranks if pipeline is None else pipeline.stage_ranks(ranks)
    except PlanError as error:
        raise PlanError(f"{name} on {ranks} devices: {error}") from None
    try:
        sequences = preset_sequences(within, model, stage_ranks)
    except PlanError as error:
        raise PlanError(str(error) if pipeline is None else f"a stage of {name}: {error}") from None
    try:
        return Plan(model=model, ranks=ranks, batch=batch, pipeline=pipeline, sequences=sequences)
    except PlanError as error:
        raise PlanError(f"{name} on {ranks} devices: {error}") from None


def preset_sequences(name: str, model: ModelConfig, ranks: int) -> dict[str, str]:
    """The sequences of a method without a pipeline, by operator; the model may not fit them.

    Raises `PlanError` for a method or a mesh that do not fit.
    """
    data, roles = _roles(name, ranks)
    return {operator.name: data + roles.of(operator) for operator in operators(model)}


def preset_pair(name: str, ranks: int) -> tuple[str, str]:
    """The sequences of a method for a column and for a row linear operator, without a model.

    Raises `PlanError` for a method or a mesh that do not fit, and for a pipeline.
    """
    pipeline, within = take_pipeline(name)
    if pipeline is not None:
        raise PlanError(f"{name}: expected a method without a pipeline: write {within}")
    data, roles = _roles(within, ranks)
    return data + roles.column, data + roles.row


def _roles(name: str, ranks: int) -> tuple[str, RoleSequences]:
    """The text before every sequence of a method, and its sequences."""
    copies, method, depth = _parse(name, ranks)
    lengths = _lengths(method, name, copies, ranks, depth)
    return f"M{copies}," if copies > 1 else "", PRESETS[method].roles(*lengths)


def names_preset(text: str) -> bool:
    """Whether a text is a preset, or one for copies or in a pipeline."""
    return text.rpartition(",")[2].partition(":")[0] in PRESETS


def _parse(name: str, ranks: int) -> tuple[int, str, int | None]:
    """Number of copies, the method, and its depth where one is given."""
    match = _NAME.fullmatch(name)
    if not match or match[2] not in PRESETS:
        raise PlanError(
            f"expected a preset plan ({', '.join(PRESETS)}), or M<d>, before one as in "
            f"M2,megatron, got {name!r}{nearest(name, PRESETS)}"
        )
    copies = int(match[1] or 1)
    if copies < 1 or ranks % copies:
        raise PlanError(
            f"{name}: expected a number of devices that M{copies} divides, got {ranks}: "
            f"take {max(1, copies)} or a multiple of it, or another M"
        )
    return copies, match[2], int(match[3]) if match[3] else None


def _lengths(method: str, name: str, copies: int, ranks: int, depth: int | None) -> tuple[int, ...]:
    """Axis lengths of one copy. Raises `PlanError` with numbers of devices that fit."""
    if depth is not None:
        return _lengths_of_depth(method, name, copies, ranks, depth)
    lengths = PRESETS[method].mesh(ranks // copies)
    if lengths is None:
        fits = [n for n in range(2, 4 * ranks + 9) if PRESETS[method].mesh(n)]
        near = sorted(sorted(fits, key=lambda n: (abs(n - ranks // copies), n))[:2])
        data = [d for d in range(2, ranks) if ranks % d == 0 and ranks // d in fits]
        also = f", or write M{data[0]},{method}" if data else ""
        raise PlanError(
            f"{name}: expected {PRESETS[method].meshes}, got {ranks // copies}: "
            f"take {' or '.join(map(str, near))}{also}"
        )
    return lengths


def _lengths_of_depth(
    method: str, name: str, copies: int, ranks: int, depth: int
) -> tuple[int, ...]:
    if method != "tesseract":
        raise PlanError(
            f"{name}: expected no depth, which only tesseract has, got :{depth}: write "
            f"{name.partition(':')[0]}"
        )
    layer, rest = divmod(ranks // copies, max(1, depth))
    side = _square(layer)
    if depth < 1 or rest or side is None:
        raise PlanError(
            f"{name}: expected q x q x {depth} devices, got {ranks // copies}: take another depth"
        )
    return (*side, depth)


def uniform_plan(config: ModelConfig, sequence: Sequence) -> Plan:
    """Return the plan with one sequence for all linear operators.

    The other operators have the layout of O, and the vocabulary is padded. Raises `ConfigError`
    unless heads and hidden are multiples of their numbers of slices. Raises `SequenceError` if a
    device holds several blocks of O, `PlanError` for any other sequence that cannot run the model.
    """
    output = Sequence(
        tuple(
            Element(Replicated(), element.sides)
            if isinstance(element.primitive, ByInput)
            else element
            for element in sequence.elements
        )
    )
    if "B" not in sequence.grid:
        _check_uniform(config, sequence)
    sequences = {
        operator.name: str(sequence if operator.kind == "linear" else output)
        for operator in operators(config)
    }
    return Plan(model=config, ranks=sequence.ranks, sequences=sequences)


def _check_uniform(config: ModelConfig, sequence: Sequence) -> None:
    output = ends_of("linear", str(sequence)).output
    most = max(map(len, output.held))
    if most > 1:
        raise SequenceError(
            f"sequence {str(sequence)!r}: expected one block of O on every device, the layout of "
            f"all other operators, got {most}: put Ks, Ns, C, Cr or D last, or write a plan, "
            "in which a linear operator may leave several"
        )
    columns, inputs = output.grid[1], sequence.grid["N"]
    needed = {
        "hidden": (config.hidden, lcm(columns, inputs)),
        "heads": (config.heads, columns),
    }
    for name, (size, slices) in needed.items():
        if size % slices:
            raise ConfigError(
                f"{name}: expected a multiple of {slices} for sequence {str(sequence)!r}, "
                f"got {size}: take {-(-size // slices) * slices}, or another sequence"
            )
