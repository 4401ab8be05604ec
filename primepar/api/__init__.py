"""The front door: seven questions about a primitive, a sequence, a program or a plan.

A *target* is what you have at hand: a primitive (its class or an object), a sequence, a method with
sizes, a program, a plan, or text that names one as on the command line, like `"primepar"`,
`"K,P2x2"`, `"mine.py:Mine"`, `"gpipe:stages=4"` or `"plan.json"`. A primitive needs the length
`side` of its mesh wherever a question is about one mesh; `verify` without it is about every side.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from primepar.api.questions import check_target, simulate_target, verify_target
from primepar.api.target import OF_A_METHOD, OF_A_PLAN, AnyTarget, AskedTarget, Shape, Side
from primepar.plan.plan import Plan
from primepar.schedule import Program
from primepar.schedule.deadline import TIMEOUT
from primepar.schedule.operators import Phase
from primepar.schedule.program_method import ProgramMethod

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from primepar.models.config import ModelConfig
    from primepar.pictures.drawing import Drawing
    from primepar.plan.cluster import Cluster
    from primepar.plan.search.explain import Explanation
    from primepar.plan.search.row import PlanRow
    from primepar.plan.search.sequence_space import SpaceName
    from primepar.plan.simulator.run import Simulation
    from primepar.plan.simulator.step import AskedChunks
    from primepar.reference.check import CheckReport
    from primepar.schedule.events import Event
    from primepar.verify.report import Report

__all__ = ["check", "lower", "plan", "price", "show", "simulate", "verify"]


@runtime_checkable
class HasEvents(Protocol):
    """What ran a program: an emulation or a simulation."""

    @property
    def events(self) -> Several[Event]:
        """What every device did, and when."""
        ...


def show(
    target: AnyTarget | HasEvents, *, side: Side | None = None, phase: Phase | None = None
) -> Drawing:
    """Draw a target: what each device multiplies at each step, and what moves meanwhile.

    Of a plan its operators and layouts are drawn, of what `plan` returns its choices and their
    predicted cost. Of a method with sizes, and of a run (what `simulate` or
    `primepar.reference.emulate` returns), the timeline is drawn.
    Print the drawing, `save` it as SVG, or leave it as the last line of a notebook's cell. Raises
    `TargetError` for a target, a side or a phase that does not fit.

    Examples:
        >>> import primepar
        >>> print(primepar.show("P2x2", phase="forward"))
        P2x2: 4 devices, 2 steps in each phase
        <BLANKLINE>
        forward  O[m,k] += I[m,n] * W[n,k]
        device       step 0                       step 1
        -------------------------------------------------------------------
        0  r=0 c=0   O[0,0] += I[0,0] * W[0,0]    O[0,0] += I[0,1] * W[1,0]
                       I[0,0] -> 1  I[0,1] <- 1
                       W[0,0] -> 2  W[1,0] <- 2
        1  r=0 c=1   O[0,1] += I[0,1] * W[1,1]    O[0,1] += I[0,0] * W[0,1]
                       I[0,1] -> 0  I[0,0] <- 0
                       W[1,1] -> 3  W[0,1] <- 3
        2  r=1 c=0   O[1,0] += I[1,1] * W[1,0]    O[1,0] += I[1,0] * W[0,0]
                       I[1,1] -> 3  I[1,0] <- 3
                       W[1,0] -> 0  W[0,0] <- 0
        3  r=1 c=1   O[1,1] += I[1,0] * W[0,1]    O[1,1] += I[1,1] * W[1,1]
                       I[1,0] -> 2  I[1,1] <- 2
                       W[0,1] -> 1  W[1,1] <- 1
        <BLANKLINE>
        sends 1.13 times the lower bound of one product, M = N = K
    """
    from primepar.api import drawings

    if isinstance(target, HasEvents):
        seconds = getattr(target, "seconds", None)
        if seconds is None:  # an emulation has a clock of its own
            return drawings.timeline_drawing(target.events, "units")
        return drawings.timeline_drawing(*drawings.in_readable_unit(target.events, float(seconds)))
    asked = AskedTarget.of(target)
    if isinstance(asked.target, Plan):
        asked.refuse(OF_A_PLAN, side=side, phase=phase)
        return drawings.search_drawing(target) or drawings.plan_drawing(asked.target)
    if isinstance(asked.target, ProgramMethod):
        asked.refuse(OF_A_METHOD, side=side, phase=phase)
        return drawings.method_drawing(asked.target)
    placed = asked.on_mesh(side)
    program = asked.program(side, None, phase, None, None)
    return drawings.grid_drawing(drawings.grid_of(asked.name, placed, program, phase))


def check(
    target: AnyTarget,
    *,
    side: Side | None = None,
    shape: Shape | None = None,
    seed: int = 0,
    batch: int | None = None,
    positions: int | None = None,
) -> CheckReport:
    """Run a target on emulated devices, and compare what they compute with one device, with ==.

    `shape` gives the elements M, N, K of the operator, by default two for each slice. Of a plan a
    whole training step is run, of `batch` sequences of `positions` tokens. Raises `TargetError`
    for a target that does not fit, `ShapeError` for a shape that the mesh does not divide.

    Examples:
        >>> import primepar
        >>> report = primepar.check("primepar", side=3)
        >>> report.equal
        True
        >>> print(report)
        P3x3 on 9 emulated devices, M=6 N=6 K=6
          O    equal
          dI   equal
          dW   equal
          sent per device  56 elements, 56 by the formula
          peak per device  32 elements
          lower bound      23.1733 elements, sent is 2.42 times that
    """
    return check_target(AskedTarget.of(target), side, shape, seed, batch, positions)


def verify(
    target: AnyTarget,
    *,
    side: Side | None = None,
    buffered: bool = False,
    timeout: float = TIMEOUT,
    batch: int | None = None,
    positions: int | None = None,
) -> Report:
    """Prove a target, or refute it with the smallest counterexample.

    A primitive is proved for every side of its mesh, and so is a sequence without lengths, like
    `"K,P"`, and a method without sizes; with `side`, and for every other target, its program is
    proved. With `buffered` every send returns at once, which is a weaker question. `timeout` is in
    seconds. Raises `TargetError` for a target or an option that does not fit.

    Examples:
        >>> import primepar
        >>> class Ring(primepar.Primitive):
        ...     axes = ("r",)
        ...     def forward(self, r, t, s):
        ...         return dict(M=r, N=(r + t) % s)
        ...     def home(self, tensor, r, s):
        ...         return {"I": dict(M=r), "W": dict(N=r), "O": dict(M=r)}[tensor]
        >>> print(primepar.verify(Ring))
        Ring: proved for every s >= 1 (axis r)
          coverage          proved
          placement         proved
          completion        proved
          alignment         proved
          deadlock-freedom  proved
          races             proved
        >>> class Skipping(Ring):
        ...     def forward(self, r, t, s):
        ...         return dict(M=r, N=(r + 2 * t) % s)
        >>> report = primepar.verify(Skipping)
        >>> report.verdict, report["coverage"].details.sides
        ('refuted', {'s': 2})
    """
    asked = AskedTarget.of(target, every_length=side is None)
    report, _ = verify_target(asked, side, buffered, timeout, batch, positions)
    return report


def lower(
    target: AnyTarget,
    *,
    side: Side | None = None,
    shape: Shape | None = None,
    phase: Phase | None = None,
    batch: int | None = None,
    positions: int | None = None,
) -> Program:
    """Lower a target to its program: the list of instructions of every device.

    Of a plan it is the program of a whole training step. `primepar.schedule.save_program` writes
    it. Raises `TargetError` and `ShapeError` as `check` does.

    Examples:
        >>> import primepar
        >>> program = primepar.lower("primepar", side=2, phase="forward")
        >>> program.ranks, len(program.programs[0])
        (4, 12)
        >>> from primepar.schedule.program import ISend
        >>> [node.block for node in program.programs[0] if isinstance(node, ISend)]
        ['I[0,0]', 'W[0,0]']
    """
    return AskedTarget.of(target).program(side, shape, phase, batch, positions)


def simulate(
    target: AnyTarget,
    cluster: str | Path | Cluster,
    *,
    side: Side | None = None,
    shape: Shape | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    positions: int | None = None,
    chunks: AskedChunks = None,
) -> Simulation:
    """Run a target on a cluster, event by event: seconds, bytes sent, bytes held, a timeline.

    `cluster` is a name like `"h200-8"`, a TOML file, or a cluster. A sequence needs the `shape` of
    its operator; of a plan a training step is simulated. `dtype` is by default the first that the
    cluster has. `chunks` cuts the transfers of a plan's step, and the products next to them, into
    this many; with "auto" the cost model chooses. What blocks hold is not looked at. Raises
    `ClusterError` for a cluster that is too small, and what `check` raises.

    Examples:
        >>> import primepar
        >>> run = primepar.simulate("P2x2", "h200-8", shape=(4096, 4096, 4096))
        >>> f"{1e3 * run.seconds:.2f} ms, {run.sent[0] / 2**20:g} MiB sent by a device"
        '0.27 ms, 64 MiB sent by a device'
    """
    from primepar.plan.cluster import load_cluster

    machine = load_cluster(str(cluster)) if isinstance(cluster, str | Path) else cluster
    kind = dtype or next(iter(machine.rates))
    machine.rate(kind)
    asked = AskedTarget.of(target)
    return simulate_target(asked, machine, kind, side, shape, batch, positions, chunks)[0]


def plan(
    model: str | Path | ModelConfig,
    cluster: str | Path | Cluster,
    devices: int,
    batch: int = 8,
    *,
    dtype: str | None = None,
    space: SpaceName = "paper",
    pp: int | None = None,
) -> PlanRow:
    """Search the plan with the shortest training step of a model on a cluster.

    `model` is a name like `"opt-6.7b"`, a `config.json`, or its sizes; `batch` counts sequences of
    the model's context, and `pp` stages; None for any. The result has the `plan`, its `price` by
    the cost model, its simulated `seconds`, and the bytes `held` by each device. Raises
    `ConfigError`, `ClusterError` or `PlanError` for what does not fit.

    Examples:
        >>> import primepar
        >>> from primepar.models import GPTConfig
        >>> model = GPTConfig(layers=2, hidden=128, heads=4, context=32, vocabulary=256)
        >>> result = primepar.plan(model, "v100-8x4", devices=4, batch=4)
        >>> result.plan.sequences["blocks.0.fc1"]
        'M2'
        >>> primepar.verify(result.plan).verdict
        'proved'
    """
    from primepar.models.sizes import find_model
    from primepar.plan.cluster import load_cluster
    from primepar.plan.search.ranked import ranked
    from primepar.plan.search.sequence_space import Axes
    from primepar.plan.search.splits import Splits
    from primepar.plan.search.stage_cost import EVERY_CHOICE

    sizes = find_model(str(model)) if isinstance(model, str | Path) else model
    machine = load_cluster(str(cluster)) if isinstance(cluster, str | Path) else cluster

    kind = dtype or next(iter(machine.rates))
    splits = Splits(sizes, machine, devices, batch, kind, space, choices=EVERY_CHOICE, posted=True,
                    axes=Axes(pp=pp))  # fmt: skip
    return ranked(splits)[0]


def price(
    target: AnyTarget,
    cluster: str | Path | Cluster,
    *,
    model: str | Path | ModelConfig | None = None,
    devices: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    space: SpaceName = "paper",
) -> Explanation:
    """Price a plan by the cost model, operator by operator, next to the best plan of a space.

    `target` is a plan, what `plan` returns, or a `plan.json`. It may be a preset, like
    `"M2,megatron"`, of a `model` on `devices` devices. `batch` counts sequences of a step: by
    default those of the plan, or 8. The result has `seconds`, the `best` plan within the memory of
    a device, and in `choices` what each operator takes `more` than there. Raises `TargetError`,
    `ClusterError` or `PlanError` for what does not fit.

    Examples:
        >>> import primepar
        >>> from primepar.models import GPTConfig
        >>> model = GPTConfig(layers=2, hidden=128, heads=4, context=32, vocabulary=256)
        >>> price = primepar.price("megatron", "v100-8x4", model=model, devices=4, batch=4)
        >>> f"{1e3 * price.seconds:.2f} ms, the best {1e3 * price.best.seconds:.2f} ms"
        '1.59 ms, the best 0.75 ms'
    """
    from primepar.api.target import SEQUENCES, priced_plan
    from primepar.plan.cluster import load_cluster
    from primepar.plan.search.explain import price_of

    plan = priced_plan(target, model, devices)
    machine = load_cluster(str(cluster)) if isinstance(cluster, str | Path) else cluster
    return price_of(plan, machine, batch or plan.batch or SEQUENCES, dtype, space)
