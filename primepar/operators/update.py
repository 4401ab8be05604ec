"""What ends a step: the norm of the gradient, clipping by it, and AdamW for every parameter."""

from __future__ import annotations

from dataclasses import replace

from primepar.operators.builder import IterationSpace, ProgramBuilder, View
from primepar.operators.step_context import StepContext
from primepar.plan.layouts import gradients_alike
from primepar.schedule.layout import Layout
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Alloc

_AXES = ("X", "Y", "Z")
"""Dims of gradients in the phases that sum their squares, whatever their own are called."""


def lower_gradient_norm(step: StepContext) -> View:
    """Lower the norm of the whole gradient, one number on every rank.

    Gradients that lie alike are squared and summed together, each block on the lowest rank that
    holds it; the sums go over all ranks.
    """
    squares = [
        _squares(step.builder, f"gradient.{at}", [step.gradients[name] for name in names])
        for at, names in enumerate(gradients_alike(step.plan))
    ]
    everywhere = IterationSpace(Layout((1,), (((0,),),) * step.plan.ranks), {"S": 1})
    return step.builder.compute(
        "gradient", "clip.norm", everywhere, squares, "gradient.norm[0]", wide=True
    )


def _squares(builder: ProgramBuilder, name: str, views: list[View]) -> View:
    """The sum of the squares of some gradients that lie alike, on every rank."""
    first, dims = views[0], _AXES[: len(views[0].cuts)]
    taken: set[Index] = set()
    held: list[tuple[Index, ...]] = []
    for own in first.held:
        held.append(tuple(index for index in own if index not in taken))
        taken.update(own)
    grid = tuple(len(line) - 1 for line in first.cuts)
    space = IterationSpace(Layout(grid, tuple(held)), dict(zip(dims, grid, strict=True)))
    reads = [replace(view, dims=dims) for view in views]
    made = builder.compute(name, "clip.squares", space, reads, f"{name}.squares[0]", wide=True)
    for program, own in zip(builder.programs, held, strict=True):
        if not own:
            program.append(Alloc(block_name(made.name, (0,))))
    total = replace(made, held=(((0,),),) * builder.ranks)
    builder.all_reduce(total, (tuple(range(builder.ranks)),))
    return total


def lower_update(step: StepContext, name: str, norm: View | None) -> None:
    """Lower AdamW of one parameter, and ask for the new one where the old one was.

    The first and the second moment, `<name>.m` and `<name>.v`, lie with the parameter, and so do
    the new ones. It goes element by element, so the blocks may be any. With a `norm` of the
    gradient, that is clipped.
    """
    builder, view = step.builder, step.parameters[name]
    dims = tuple("T" if dim.isdigit() else dim for dim in view.dims)
    parameter, gradient = replace(view, dims=dims), replace(step.gradients[name], dims=dims)
    grid = tuple(len(line) - 1 for line in view.cuts)
    sizes = [line[-1] for line in view.cuts]
    at = IterationSpace(Layout(grid, view.held), dict(zip(dims, sizes, strict=True)))
    clip = [] if norm is None else [norm]

    def new(own: str, kernel: str, reads: list[View]) -> View:
        writes = replace(parameter, name=f"{own}.new").template
        made = builder.compute(own, kernel, at, reads, writes)
        builder.end_with(made)
        return made

    moments = []
    for own, kernel in (("m", "first.update"), ("v", "second.update")):
        moment = builder.given(f"{name}.{own}", at, *dims)
        moments.append(new(moment.name, kernel, [moment, gradient, *clip]))
    new(name, "adamw.update", [parameter, *moments])
