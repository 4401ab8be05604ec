"""Figure 9: an MLP under Megatron's plan and PrimePar's, by the simulator.

The programs of fc1 and fc2 are those that are verified and executed. The activation between them is
not counted, the redistribution between their layouts is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from benchmarks.paper.printed import Collectives
from benchmarks.paper.setting import SETTING, Setting
from primepar.partition import parse_sequence
from primepar.plan.search.search import search
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule import Linear, Movement, lower
from primepar.schedule.layout import Cells, Layout, redistribution
from primepar.schedule.lowering import layout
from primepar.schedule.signature import Tensor


@dataclass(frozen=True)
class Mlp:
    """Seconds of a training step of an MLP; in all-reduces; in redistribution between the two."""

    sequences: tuple[str, str]
    seconds: float
    collectives: float
    moving: float


def mlp_pair(bars: Collectives, setting: Setting = SETTING) -> tuple[Mlp, Mlp]:
    """A group of bars: Megatron within nodes with copies across them, and the searched plan."""
    changed_setting = replace(setting, batch=bars.batch)
    inside = changed_setting.machine.devices_per_node
    nodes = bars.devices // inside
    sequences = search(
        changed_setting.planner(bars.model, bars.devices, batch=bars.batch)
    ).sequences
    pairs = ((f"M{nodes},K{inside}", f"M{nodes},N{inside}"),
             (sequences["blocks.0.fc1"], sequences["blocks.0.fc2"]))  # fmt: skip
    megatron, primepar = (simulated(changed_setting, bars.model, pair) for pair in pairs)
    return megatron, primepar


def simulated(setting: Setting, name: str, sequences: tuple[str, str]) -> Mlp:
    """The MLP of a model under sequences of fc1 and fc2."""
    model, rows = setting.model(name), setting.batch * setting.positions
    shapes = [Linear(M=rows, N=model.hidden, K=model.fc1_columns),
              Linear(M=rows, N=model.ffn, K=model.hidden)]  # fmt: skip
    up, down = (Movement(parse_sequence(text)) for text in sequences)
    runs = [simulate(lower(movement.sequence, shape), setting.machine, setting.dtype)
            for movement, shape in zip((up, down), shapes, strict=True)]  # fmt: skip
    inner = layout(up, "forward", "O", last=True)
    redistributions = [(inner, layout(down, "forward", "I", last=False)),
            (layout(down, "backward", "dI", last=True), inner)]  # fmt: skip
    moving = sum(
        _redistribution_seconds(setting, *layouts, (rows, model.ffn)) for layouts in redistributions
    )
    products = sum(run.seconds for run in runs)
    return Mlp(sequences, products + moving, sum(map(_collectives, runs)), moving)


def _redistribution_seconds(
    setting: Setting, source: Layout, target: Layout, sizes: tuple[int, int]
) -> float:
    """Seconds to redistribute a tensor; `sizes` are its rows and columns."""
    cuts = Cells.of(source, target).bounds(sizes)
    program = changed(redistribution(source, target), tensors={"O": Tensor(cuts=cuts)})
    return float(simulate(program, setting.machine, setting.dtype).seconds)


def _collectives(run: Simulation) -> float:
    """The longest time that a rank spends in all-reduces."""
    spent = [0.0] * len(run.peak)
    for event in run.events:
        if event.op == "all_reduce":
            spent[event.rank] += event.end - event.start
    return max(spent)
