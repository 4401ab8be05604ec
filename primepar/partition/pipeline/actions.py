"""The order of work on every stage of a pipeline, for five published schedules.

A stage runs three kinds of action for each micro-batch and each of its model chunks: `F` the
forward pass, `B` the gradient of the input, `W` the gradient of the weights. Sources: GPipe, Huang
et al., arXiv 1811.06965; 1F1B and its interleaved form, Narayanan et al., SC 2021, section 2.2;
ZB-H1 and ZBV, Qi et al., arXiv 2401.10241, sections 2 and 6. The first three do not separate the
two gradients: there each W follows its B.

Each schedule is an order of actions per stage, nothing more. What is sent and kept follows from it.

GPipe and 1F1B are defined in closed form: the place of an action in the order of its stage, and its
start. `actions` puts every action in its place, and the proof for all sizes calls the same
functions with symbols. Starts are in units of time in which F, B and W take one each. They are the
earliest possible ones, which is proved. With s the stage of p, and k the micro-batch of M:

    GPipe   place of F(k)  k                    start of F(s, k)  s + k
            place of B(k)  M + 2 (M - 1 - k)    start of B(s, k)  M + p - 1 + 2 (M - 1 - k)
            place of W(k)  one more                               + 2 (p - 1 - s)
    1F1B    w = min(p - 1 - s, M) forwards are the warm-up
            place of F(k)  k + 2 max(k - w, 0)  start of F(s, k)  s + k in the warm-up, and k = w
            place of B(k)  min(w + 1 + k, M) + 2 k                else that of B(k - w - 1), + 2
            place of W(k)  one more             start of B(s, k)  p + 2 (p - 1 - s) + 3 k

W starts one unit after B. B of stage s - 1 starts after W of stage s, as both are one action there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

from primepar.errors import MethodError
from primepar.schedule.expression import Value, where

Kind = Literal["F", "B", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "W")
ScheduleName = Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv"]


class Action(NamedTuple):
    """One pass of a micro-batch through a model chunk of a stage."""

    kind: Kind
    micro_batch: int
    chunk: int = 0


Order = tuple[Action, ...]
"""The actions of one stage, first to last."""


def chunks_of(schedule: ScheduleName, chunks: int | None = None) -> int:
    """Model chunks of a stage: by default the fewest that the schedule has.

    Raises `MethodError` for an unknown schedule, or for chunks that it cannot have.
    """
    if schedule not in get_args(ScheduleName):
        known = ", ".join(get_args(ScheduleName))
        raise MethodError(f"expected a pipeline schedule out of {known}, got {schedule!r}")
    fewest = 2 if schedule in ("interleaved-1f1b", "zbv") else 1
    if chunks is None:
        return fewest
    if chunks < fewest or (chunks > fewest and schedule != "interleaved-1f1b"):
        most = "at least " if schedule == "interleaved-1f1b" else ""
        write = "1f1b, or chunks=2" if most else f"chunks={fewest}"
        raise MethodError(
            f"{schedule}: expected {most}{fewest} chunks, got {chunks}: write {write}"
        )
    return chunks


def actions(
    schedule: ScheduleName, stages: int, micro_batches: int, chunks: int | None = None
) -> tuple[Order, ...]:
    """The actions of every stage, in order.

    Every stage has each of F, B and W once per micro-batch and chunk. Raises `MethodError` for
    sizes that the schedule is not defined for.

    Examples:
        >>> [action.kind + str(action.micro_batch) for action in actions("1f1b", 2, 2)[0]]
        ['F0', 'F1', 'B0', 'W0', 'B1', 'W1']
    """
    chunks = chunks_of(schedule, chunks)
    for name, size in (("stages", stages), ("micro_batches", micro_batches)):
        if size < 1:
            raise MethodError(f"{schedule}: expected {name} of at least 1, got {size}")
    if schedule == "interleaved-1f1b" and micro_batches % stages:
        nearest = -(-micro_batches // stages) * stages
        raise MethodError(
            f"interleaved-1f1b: expected micro_batches that are a multiple of stages={stages}, "
            f"got {micro_batches}: write micro_batches={nearest}"
        )
    if schedule == "interleaved-1f1b":
        return tuple(_interleaved(stage, stages, micro_batches, chunks) for stage in range(stages))
    order = _ORDERS[schedule]
    return tuple(tuple(order(stage, stages, micro_batches)) for stage in range(stages))


def stage_of(
    schedule: ScheduleName, stages: int, chunks: int | None, model_chunk: int
) -> tuple[int, int]:
    """The stage of the model's i-th chunk, and which of that stage's chunks it is.

    Interleaved chunks go round the stages. Those of ZBV go down the stages and up again, as a V: so
    the last stage has two neighbours in the model, and the first stage has the loss.
    """
    turn, place = divmod(model_chunk, stages)
    if not 0 <= model_chunk < stages * chunks_of(schedule, chunks):
        raise MethodError(
            f"{schedule}: expected a model chunk below {stages * chunks_of(schedule, chunks)}, "
            f"got {model_chunk}"
        )
    return (stages - 1 - place if schedule == "zbv" and turn else place), turn


def model_chunk_of(schedule: ScheduleName, stages: int, stage: int, chunk: int) -> int:
    """The chunk of the model that a stage's chunk is; the inverse of `stage_of`."""
    if schedule == "zbv" and chunk:
        return 2 * stages - 1 - stage
    return chunk * stages + stage


ActionFormula = Callable[[str, Value, Value, Value, Value], Value]
"""A function of the kind of an action, stage, micro-batch, stages and micro-batches of a step."""


@dataclass(frozen=True)
class ClosedForm:
    """A schedule as formulas of integers or symbols."""

    place: ActionFormula
    """Where an action is in the order of its stage."""
    start: ActionFormula
    """When it starts at the earliest."""
    finished: Callable[[Value, Value, Value, Value], Value]
    """How many W of a stage come before its F(k): a function of stage, k, stages, micro-batches."""


def least(one: Value, other: Value) -> Value:
    """The smaller of two integers or symbols."""
    return where(one < other, one, other)


def _gpipe_place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    return k if kind == "F" else M + 2 * (M - 1 - k) + (kind == "W")


def _gpipe_start(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    if kind == "F":
        return s + k
    return M + p - 1 + 2 * (M - 1 - k) + 2 * (p - 1 - s) + (kind == "W")


def _warm_up(s: Value, p: Value, M: Value) -> Value:
    return least(p - 1 - s, M)


def _alternating_place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    warm_up = _warm_up(s, p, M)
    if kind == "F":
        return k + 2 * where(k > warm_up, k - warm_up, 0)
    return least(warm_up + 1 + k, M) + 2 * k + (kind == "W")


def _alternating_start(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    back = p + 2 * (p - 1 - s)
    if kind == "F":
        later = k - (p - 1 - s) - 1
        return where(later < 0, s + k, back + 3 * later + 2)
    return back + 3 * k + (kind == "W")


def _alternating_finished(s: Value, k: Value, p: Value, M: Value) -> Value:
    warm_up = _warm_up(s, p, M)
    return where(k > warm_up, k - warm_up, 0)


CLOSED_FORMS = {
    "gpipe": ClosedForm(_gpipe_place, _gpipe_start, lambda s, k, p, M: 0),
    "1f1b": ClosedForm(_alternating_place, _alternating_start, _alternating_finished),
}


def _placed(schedule: str, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """The order of a schedule in closed form."""
    form = CLOSED_FORMS[schedule]
    order = [Action(kind, micro_batch) for kind in KINDS for micro_batch in range(micro_batches)]
    places = {
        action: form.place(action.kind, stage, action.micro_batch, stages, micro_batches)
        for action in order
    }
    return sorted(order, key=places.__getitem__)


def _zero_bubble_h1(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """1F1B whose W on stage i is i micro-batches late, so that B leaves earlier for stage i - 1."""
    waiting: list[Action] = []
    for action in _placed("1f1b", stage, stages, micro_batches):
        if action.kind != "W":
            yield action
            continue
        waiting.append(action)
        if len(waiting) > stage:
            yield waiting.pop(0)
    yield from waiting


def _zero_bubble_v(stage: int, stages: int, micro_batches: int) -> Iterable[Action]:
    """ZBV, written for at least 2 p - 1 micro-batches, of which those beyond the last are left out.

    Before its first backward a stage runs forwards of chunk 0 until the first micro-batch is back
    with chunk 1, then both chunks in turn. Steady: F, B, W of one chunk, then of the other. At the
    end B of both chunks go first, and W fill what would be idle.
    """
    later, enough = stages - stage, max(micro_batches, 2 * stages - 1)
    order = [Action("F", micro_batch, 0) for micro_batch in range(2 * later - 1)]
    for micro_batch in range(stage):
        order += [Action("F", micro_batch, 1), Action("F", 2 * later - 1 + micro_batch, 0)]
    for micro_batch in range(later):
        order += [Action("F", stage + micro_batch, 1), *_backward(micro_batch, 1)]
    for micro_batch in range(enough - stages):
        if 2 * stages - 1 - stage + micro_batch < enough:
            order.append(Action("F", 2 * stages - 1 - stage + micro_batch, 0))
        order += _backward(micro_batch, 0)
        order.append(Action("F", stages + micro_batch, 1))
        order += _backward(later + micro_batch, 1)
    last = range(enough - stages, enough)
    for micro_batch in last[:stage]:
        order += [Action("B", micro_batch, 0), Action("B", later + micro_batch, 1)]
    for micro_batch, waiting in zip(last[stage:], last, strict=False):
        order += [Action("B", micro_batch, 0), Action("W", waiting, 0)]
    order += [Action("W", micro_batch, 1) for micro_batch in last[later:]]
    order += [Action("W", micro_batch, 0) for micro_batch in last[later:]]
    return [action for action in order if action.micro_batch < micro_batches]


def _backward(micro_batch: int, chunk: int) -> tuple[Action, Action]:
    return Action("B", micro_batch, chunk), Action("W", micro_batch, chunk)


_ORDERS: dict[str, Callable[[int, int, int], Iterable[Action]]] = {
    "gpipe": partial(_placed, "gpipe"),
    "1f1b": partial(_placed, "1f1b"),
    "zb-h1": _zero_bubble_h1,
    "zbv": _zero_bubble_v,
}


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """1F1B over passes (micro-batch, chunk): `stages` micro-batches through each chunk in turn.

    Warm-up is as long as a pass of the first micro-batches takes to come back from the last chunk:
    (chunks - 1) stages forwards, and two for every later stage.
    """

    def pass_of(kind: Kind, position: int) -> Action:
        turn, place = divmod(position, stages * chunks)
        chunk, micro_batch = divmod(place, stages)
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        return Action(kind, turn * stages + micro_batch, chunk)

    passes = micro_batches * chunks
    warm_up = min(passes, (chunks - 1) * stages + 2 * (stages - 1 - stage))
    order = [pass_of("F", position) for position in range(warm_up)]
    for position in range(passes):
        if warm_up + position < passes:
            order.append(pass_of("F", warm_up + position))
        action = pass_of("B", position)
        order += [action, action._replace(kind="W")]
    return tuple(order)
