"""What is drawn of each kind of target: a space-time grid, a plan, or the timeline of a run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable
from collections.abc import Sequence as Several
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

from msgspec.structs import replace

from primepar.pictures.drawing import Drawing
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.methods import READINGS, method_svg
from primepar.pictures.space_time import SpaceTime, grid_text, space_time
from primepar.pictures.timeline import timeline_svg, timeline_text
from primepar.plan import Plan
from primepar.plan.description import describe, plan_svg, words
from primepar.schedule import Movement, Program, Sequence
from primepar.schedule.events import Event
from primepar.schedule.ledger import sent_blocks
from primepar.schedule.lower_bound import CUBE, one_product, starts_replicated, training_step
from primepar.schedule.operators import Phase, tensor_dims
from primepar.schedule.program_method import ProgramMethod

if TYPE_CHECKING:
    from primepar.reference.emulator.executor import Emulation

_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))


def grid_of(
    name: str, placed: Sequence | Program, program: Program, phase: Phase | None
) -> SpaceTime:
    """The space-time grid of a program; of a sequence with its steps, coordinates and bound."""
    devices = _count(placed.ranks, "device")
    if isinstance(placed, Program):
        return space_time(program, f"{name}: {devices}")
    places = [dict(zip(placed.axes, place, strict=True)) for place in placed.coordinates]
    steps = _count(placed.steps, "step")
    title = f"{placed}: {devices}, {steps} in each phase" if str(placed) else f"{devices}, {steps}"
    grid = space_time(program, title, places, placed.steps)
    return replace(grid, sends=_times_the_bound(placed, program, phase))


def _times_the_bound(sequence: Sequence, program: Program, phase: Phase | None) -> str | None:
    """What leaves a device over the lower bound, for a cube of `CUBE` elements along each dim."""
    if names := starts_replicated(Movement(sequence)):
        return f"no lower bound: {', '.join(names)} start{'s' * (len(names) == 1)} replicated"
    words = Fraction(0)
    for name, times in sent_blocks(program).items():
        dims = tensor_dims(name.partition("[")[0])
        parts = prod(sequence.grid.get(dim, 1) for dim in dims)
        words += times * Fraction(CUBE**2, parts * program.ranks)
    bound = (one_product if phase else training_step)(CUBE, CUBE, CUBE, program.ranks)
    what = f"the lower bound of {'one product' if phase else 'a training step'}, M = N = K"
    # What sends less is wrong, which `show` does not decide.
    return f"sends {float(words) / bound:.2f} times {what}" if 0 < bound <= words else None


def grid_drawing(grid: SpaceTime) -> Drawing:
    """A grid as text for this terminal, and as SVG."""
    return Drawing(grid_text(grid, _columns()), lambda: grid_svg(grid))


def plan_drawing(plan: Plan) -> Drawing:
    """The operators of a plan, their layouts, and what moves between them."""
    description = describe(plan)
    return Drawing(words(description, _columns()), lambda: plan_svg(description))


def search_drawing(result: object) -> Drawing | None:
    """What a search chose and its predicted cost; None for anything else."""
    from primepar.plan.search.explain import explain
    from primepar.plan.search.explain import words as explanation_text
    from primepar.plan.search.row import PlanRow

    if not isinstance(result, PlanRow):
        return None
    text = explanation_text(explain([dataclasses.replace(result, run=None)]))
    return Drawing(text, lambda: plan_svg(describe(result.plan)))


def timeline_drawing(events: Several[Event], unit: str) -> Drawing:
    """What every device of a run did over time."""
    text = timeline_text(events, _columns(), unit)
    return Drawing(text, lambda: timeline_svg(events, unit=unit))


def method_drawing(method: ProgramMethod) -> Drawing:
    """What is known of a method's sizes, and the timeline of its emulated program.

    A method that has a picture of its own is drawn by that.
    """
    events = method_events(method)
    facts = [f"  {quantity}  {value}" for quantity, value in method.facts().items()]
    text = "\n".join([method.text, *facts, "", timeline_text(events, _columns(), "units")])
    if method.name in READINGS:
        return Drawing(text, lambda: method_svg(method.name, {method.text: events}))
    return Drawing(text, lambda: timeline_svg(events, unit="units"))


def method_events(method: ProgramMethod) -> list[Event]:
    """The events of a method's emulated program."""
    return emulated_events(method.program(), untimed=method.untimed)


def emulated_events(
    program: Program, sequence: Sequence | None = None, untimed: Iterable[str] = ()
) -> list[Event]:
    """The events of `emulated`."""
    return emulated(program, sequence, untimed).events


def emulated(
    program: Program, sequence: Sequence | None = None, untimed: Iterable[str] = ()
) -> Emulation:
    """A run as `check` makes it; what is `untimed` takes no time."""
    from primepar.reference.check import memories
    from primepar.reference.emulator.executor import LogicalClock, emulate

    units = dict.fromkeys(untimed, 0.0)
    clock = LogicalClock(units.get("transfer", 1.0), units)
    return emulate(program, memories(program), sequence, clock=clock)


def in_readable_unit(events: Several[Event], seconds: float) -> tuple[list[Event], str]:
    """Events in a unit in which the whole run is 1 or more, where there is one, and its name."""
    unit, factor = next((pair for pair in _UNITS if seconds * pair[1] >= 1), _UNITS[-1])
    return [
        replace(event, start=event.start * factor, end=event.end * factor) for event in events
    ], unit


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns
