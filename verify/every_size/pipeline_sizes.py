"""The smallest pipeline of a schedule that breaks a property, by running its orders.

Nothing of the proof for all sizes is used here: every action starts as soon as its stage and what
it needs allow, and stashes are counted along each order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, product

from primepar.partition.pipeline.actions import KINDS, Action, ClosedForm, Order, ScheduleName
from primepar.partition.pipeline.dependencies import PipelineOrders, Position
from primepar.partition.pipeline.formulas import bubble, peak_stashes
from primepar.schedule.deadline import in_time

COVERAGE, ORDER, DEADLOCK, STASHES, BUBBLE = (
    "coverage", "message order", "deadlock-freedom", "stashes", "bubble",
)  # fmt: skip
MOST_STAGES, MOST_MICRO_BATCHES = 6, 8


def smallest_fault(property_: str, schedule: ScheduleName, form: ClosedForm) -> str | None:
    """What breaks a property for the fewest actions, up to 6 stages and 8 micro-batches."""
    sizes = product(range(1, MOST_STAGES + 1), range(1, MOST_MICRO_BATCHES + 1))
    for stages, micro_batches in in_time(sorted(sizes, key=lambda size: size[0] * size[1])):
        for fault in _faults(schedule, form, stages, micro_batches):
            if fault[0] == property_:
                return f"p={stages}, M={micro_batches}: {fault[1]}"
    return None


def _faults(
    schedule: ScheduleName, form: ClosedForm, stages: int, micro_batches: int
) -> Iterator[tuple[str, str]]:
    """(property, sentence) of everything that is wrong with one pipeline."""
    orders: list[Order] = []
    for stage in range(stages):
        places = {
            Action(kind, k): form.place(kind, stage, k, stages, micro_batches)
            for kind, k in product(KINDS, range(micro_batches))
        }
        order = tuple(sorted(places, key=places.__getitem__))
        orders.append(order)
        if sorted(places.values()) != list(range(3 * micro_batches)):
            yield COVERAGE, f"stage {stage}: expected each place once, got {_listed(order, places)}"
            return
    pipeline = PipelineOrders(stages, micro_batches, 1, tuple(orders), schedule)
    yield from ((ORDER, sentence) for sentence in _other_order(pipeline))
    starts = _starts(pipeline)
    for stage, order in enumerate(orders):
        most, kept = peak_stashes(schedule, stage, stages, micro_batches), _stashes(order)
        if kept != most:
            yield STASHES, f"stage {stage}: expected {most} stashes at the most, got {kept}"
        done = sum(position.stage == stage for position in starts)
        if done < len(order):
            waiting = order[done]
            yield DEADLOCK, f"stage {stage} waits at {_text(waiting)} for what never comes"
    if len(starts) == sum(map(len, orders)):
        idle, expected = max(_idle(starts, pipeline)), bubble(schedule, stages, micro_batches)
        if idle != expected:
            yield BUBBLE, f"expected a bubble of {expected} units, got {idle}"


def _other_order(pipeline: PipelineOrders) -> Iterator[str]:
    """Messages between two stages that are used in another order than they are sent."""
    last: dict[tuple[int, int], tuple[str, Position]] = {}
    for block, source, destination in pipeline.messages:
        pair = source.stage, destination.stage
        before = last.get(pair)
        if before is not None and before[1] > destination:
            yield f"stage {pair[0]} sends {before[0]} before {block}, stage {pair[1]} uses it after"
        last[pair] = block, destination


def _starts(pipeline: PipelineOrders) -> dict[Position, int]:
    """The earliest start of every action, each taking one unit; those of a deadlock have none."""
    keys = {position: key for key, position in pipeline.positions.items()}
    starts: dict[Position, int] = {}
    waiting, moved = sorted(keys), True
    # Each round starts all actions whose needs have started; a round that starts none leaves a
    # deadlock.
    while moved:
        moved, left = False, []
        for position in waiting:
            stage, place = position
            before = [pipeline.positions[key] for key in pipeline.needed(keys[position])]
            before += [Position(stage, place - 1)] if place else []
            if all(earlier in starts for earlier in before):
                starts[position] = max([0, *(starts[earlier] + 1 for earlier in before)])
                moved = True
            else:
                left.append(position)
        waiting = left
    return starts


def _stashes(order: Order) -> int:
    """The most micro-batches between their F and their W."""
    kept = most = 0
    for action in order:
        # F keeps an activation until W has used it: F0 F1 B0 W0 keeps 2 at the most.
        kept += (action.kind == "F") - (action.kind == "W")
        most = max(most, kept)
    return most


def _idle(starts: dict[Position, int], pipeline: PipelineOrders) -> Iterator[int]:
    for stage, order in enumerate(pipeline.orders):
        own_starts = [starts[Position(stage, place)] for place in (0, len(order) - 1)]
        # F, B and W at 0, 3 and 4 take 5 units for 3 actions: 2 are idle.
        yield own_starts[1] + 1 - own_starts[0] - len(order)


def _text(action: Action) -> str:
    return f"{action.kind}({action.micro_batch})"


def _listed(order: Iterable[Action], places: dict[Action, int]) -> str:
    """The first two actions whose places are not next to each other, with these places."""
    pairs = [(first, second) for first, second in pairwise(order)
             if places[second] != places[first] + 1]  # fmt: skip
    first, second = pairs[0] if pairs else (next(iter(order)),) * 2
    return ", ".join(f"{_text(action)} at {places[action]}" for action in (first, second))
