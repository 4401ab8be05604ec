"""The MLP as one program under a preset: forward and backward of fc1, activation and fc2.

The operators are those of a transformer's block, lowered as in a training step. The output gradient
is an input of the program, so that backward is in the same program as forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from benchmarks.executor.contender import MlpData, Wholes
from primepar.distributed import Executor, Mesh, gather_tensor
from primepar.distributed.runtime.scatter_gather import Parts, scatter_tensor
from primepar.operators import StepSettings
from primepar.operators.builder import ProgramBuilder, View, even
from primepar.operators.redistribution import moved
from primepar.operators.step_context import StepContext
from primepar.operators.sweeps import lowerings
from primepar.passes import apply
from primepar.plan import Plan
from primepar.plan.layouts import Way
from primepar.schedule import Layout, Program

OPERATORS = ("blocks.0.fc1", "blocks.0.act", "blocks.0.fc2")


@dataclass(frozen=True)
class LoweredMlp:
    """The program, and the views of what it is given and of what it makes."""

    program: Program
    given: dict[str, View]
    made: dict[str, View]


def lower_mlp(plan: Plan) -> LoweredMlp:
    """Lower an MLP whose input has the layout of its output, as in a stack of blocks."""
    rows = plan.model.context
    builder = ProgramBuilder(plan.ranks)
    step = StepContext(plan, builder, 1, rows)
    parts = lowerings(step, [plan.operator(name) for name in OPERATORS])
    outside = step.ends(OPERATORS[-1]).output
    given = {name: _outside(builder, name, outside, plan) for name in ("x", "dy")}
    y, layout = given["x"], outside
    for name, part in parts.items():
        ends = step.ends(name)
        way = Way(layout, ends.input)
        y = part.forward(moved(builder, y, way, part.takes, f"{name}/I"))
        layout = ends.output
    dx = given["dy"]
    for name, source in zip(OPERATORS[::-1], (*OPERATORS[-2::-1], ""), strict=True):
        (dx,) = parts[name].backward(dx)
        target = step.ends(source).output if source else outside
        way = Way(step.ends(name).input_gradient, target)
        columns = plan.operator(name).N
        dx = moved(builder, dx, way, step.space(target, columns).cuts, f"{source or 'x'}.grad")
    weights = {name: f"{OPERATORS[place]}.weight" for name, place in (("w1", 0), ("w2", 2))}
    given |= {name: step.parameters[weight] for name, weight in weights.items()}
    made = {"y": y, "dx": dx}
    made |= {f"d{name}": step.gradients[weight] for name, weight in weights.items()}
    for view in (*made.values(), *step.parameters.values()):
        builder.end_with(view)
    return LoweredMlp(apply(builder.program()), given, made)


def _outside(builder: ProgramBuilder, name: str, layout: Layout, plan: Plan) -> View:
    shape = (plan.model.context, plan.model.hidden)
    view = builder.new(name, even(shape, layout.grid), layout.held, ("M", "K"))
    builder.begin_with(view)
    return view


class ProgramMlp:
    """One executor; weights are handed over and taken back, as the trainer does."""

    def __init__(self, data: MlpData, plan_name: str, plan: Plan) -> None:
        self.name = plan_name
        self.mesh = Mesh(plan.sequence(OPERATORS[0]))
        content = None if self.mesh.rank else msgspec.json.encode(lower_mlp(plan))
        lowered = msgspec.json.decode(self.mesh.broadcast(content), type=LoweredMlp)
        settings = StepSettings(plan.model, 1, plan.model.context)
        self.made = lowered.made
        self.execute = Executor(self.mesh, lowered.program, settings)
        self.blocks: dict[str, torch.Tensor] = {}
        for name, view in lowered.given.items():
            whole: torch.Tensor = getattr(data, name)
            part = scatter_tensor(self.mesh, layout_of(view), whole)
            parts = Parts(view.name, layout_of(view), self.mesh.rank, tuple(whole.shape))
            self.blocks |= {name: block.clone() for name, block in parts.cut(part).items()}
        self.results: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        self.results.clear()
        ended = self.execute(dict(self.blocks))
        self.results = {name: ended.pop(name) for name in list(ended) if name not in self.blocks}
        self.blocks |= ended

    def wholes(self) -> Wholes:
        wholes = {}
        for name, view in self.made.items():
            shape = tuple(line[-1] for line in view.cuts)
            parts = Parts(view.name, layout_of(view), self.mesh.rank, shape)
            part = parts.take(dict(self.results))
            whole = gather_tensor(self.mesh, layout_of(view), part)
            wholes[name] = torch.empty(0) if whole is None else whole
        return wholes


def layout_of(view: View) -> Layout:
    """The layout of a tensor that is cut evenly."""
    return Layout(tuple(len(line) - 1 for line in view.cuts), view.held)
