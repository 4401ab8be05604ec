"""The questions that Python and the command line share: to check, verify or simulate a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from primepar.api.target import (
    OF_A_PLAN,
    OF_A_STEP,
    AskedTarget,
    Shape,
    Side,
    TrainingStep,
    operator_of,
)
from primepar.errors import ShapeError
from primepar.plan.plan import Plan
from primepar.schedule import Linear, Primitive, Program, Sequence
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting

if TYPE_CHECKING:
    from primepar.plan.cluster import Cluster
    from primepar.plan.simulator.run import Simulation
    from primepar.plan.simulator.step import AskedChunks
    from primepar.reference.check import CheckReport
    from primepar.verify.report import Report


def check_target(
    asked: AskedTarget,
    side: Side | None,
    shape: Shape | None,
    seed: int,
    batch: int | None,
    positions: int | None,
) -> CheckReport:
    """Run a target on emulated devices, and compare it with one device."""
    from primepar.reference.check import check, check_plan, check_program

    if isinstance(asked.target, Plan):
        asked.refuse(OF_A_PLAN, side=side, shape=shape)
        step = TrainingStep.of(asked.target, batch, positions)
        return check_plan(asked.target, step.batch, step.positions, asked.name, seed)
    asked.refuse(OF_A_STEP, batch=batch, positions=positions)
    placed = asked.on_mesh(side)
    if isinstance(placed, Sequence):
        operator = None if shape is None else operator_of(shape, asked.spelling)
        return check(placed, operator, seed)
    return check_program(asked.program(side, shape, None, None, None), asked.name, seed)


def verify_target(
    asked: AskedTarget,
    side: Side | None,
    buffered: bool,
    timeout: float,
    batch: int | None,
    positions: int | None,
    solver: Literal["search", "z3"] = "search",
) -> tuple[Report, Primitive | Nesting | type[ProgramMethod] | Program]:
    """Prove a target; returns the report, and what it is about."""
    target = asked.target
    if isinstance(target, Nesting | type) or (isinstance(target, Primitive) and side is None):
        asked.refuse(OF_A_STEP, batch=batch, positions=positions)
        asked.refuse("as Z3 proves every side anyway", solver="z3" if solver == "z3" else None)
    if isinstance(target, type):
        from primepar.verify.every_size.proof import verify_method

        asked.refuse("as a method without sizes is meant for each of them", side=side)
        asked.refuse("which a program has: give sizes", buffered=buffered or None)
        return verify_method(target, timeout), target
    reason = "as what a map moves is posted at once and needs no buffer"
    if isinstance(target, Nesting):
        from primepar.verify.nesting.proof import verify_nesting

        like = target.of((2,) * len(target.side_names))
        asked.refuse(f"as a sequence has a length for each member, like {like}", side=side)
        asked.refuse(reason, buffered=buffered or None)
        return verify_nesting(target, asked.name, timeout), target
    if isinstance(target, Primitive) and side is None:
        from primepar.verify.primitive.proof import verify_primitive

        asked.refuse(reason, buffered=buffered or None)
        return with_cause(verify_primitive(target, asked.name, timeout), target, side), target
    from primepar.verify.program import verify_program

    smallest = None
    if isinstance(target, Primitive | Sequence):
        placed = asked.on_mesh(side)
        smallest = Linear.smallest(placed.grid) if isinstance(placed, Sequence) else None
    program = asked.program(side, smallest, None, batch, positions)
    report = verify_program(program, asked.name, buffered, timeout, solver=solver)
    return with_cause(report, target, side), program


def with_cause(report: Report, target: object, side: Side | None) -> Report:
    """The report of a primitive that is refuted with the likeliest mistake in its maps."""
    if report.verdict != "refuted":
        return report
    from primepar.verify.primitive.likely_cause import cause_at

    return replace(report, cause=cause_at(target, side))


def simulate_target(
    asked: AskedTarget,
    machine: Cluster,
    dtype: str,
    side: Side | None,
    shape: Shape | None,
    batch: int | None,
    positions: int | None,
    chunks: AskedChunks,
    whole: bool = False,
    tick: Callable[[str], object] = str,
) -> tuple[Simulation, TrainingStep | None]:
    """Run a target on a cluster; returns the run, and of a plan the training step.

    Of a large plan few of many equal layers are simulated, unless the `whole` is asked for, and
    `tick` is called with each part of the work.
    """
    from primepar.plan.simulator.run import simulate
    from primepar.plan.simulator.step import is_large, simulate_equal_layers, simulate_step

    if isinstance(asked.target, Plan):
        asked.refuse(OF_A_PLAN, side=side, shape=shape)
        step = TrainingStep.of(asked.target, batch, positions)
        sizes = step.batch, step.positions
        if not whole and chunks is None and is_large(asked.target):
            return simulate_equal_layers(asked.target, *sizes, machine, dtype, tick), step
        return simulate_step(asked.target, *sizes, machine, dtype, chunks=chunks), step
    asked.refuse(OF_A_STEP, chunks=chunks)
    if shape is None and not isinstance(asked.target, Program | ProgramMethod):
        example = asked.spelling.given("shape", (4096, 4096, 4096))
        raise ShapeError(
            f"{asked.name}: expected the operator's shape, of which its time is, got none: write "
            f"{example}"
        )
    program = asked.program(side, shape, None, batch, positions)
    return simulate(program, machine, dtype), None
