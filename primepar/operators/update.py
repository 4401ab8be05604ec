"""The end of a step: the norm of the gradient, clipping, and the update of every parameter."""

from __future__ import annotations

from dataclasses import replace

from primepar.operators.builder import Held, IterationSpace, ProgramBuilder, View
from primepar.operators.optimizers import MASTER, MOMENTS
from primepar.operators.shards import own_view, whole_again
from primepar.operators.step_context import StepContext
from primepar.plan.layouts import gradient_groups
from primepar.schedule.layout import Layout
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Alloc

_AXES = ("X", "Y", "Z")
"""Names of the dims of gradients in the phases that sum their squares."""


def lower_gradient_norm(step: StepContext) -> View:
    """Lower the norm of the whole gradient, one number on every rank.

    Gradients with the same layout are squared and summed together, each block on the lowest rank
    that holds it. The sums are all-reduced over all ranks.
    """
    groups: dict[tuple[int, Index, Held], list[View]] = {}
    for number, names in enumerate(gradient_groups(step.plan)):
        for view in (step.gradients[name] for name in names):
            groups.setdefault((number, view.grid, view.held), []).append(view)
    squares = [
        _squares(step.builder, f"gradient.{number}", views)
        for number, views in enumerate(groups.values())
    ]
    everywhere = IterationSpace(Layout((1,), (((0,),),) * step.plan.ranks), {"S": 1})
    return step.builder.compute(
        "gradient", "clip.norm", everywhere, squares, "gradient.norm[0]", wide=True
    )


def _squares(builder: ProgramBuilder, name: str, views: list[View]) -> View:
    """Lower the sum of the squares of gradients with the same layout, on every rank."""
    first, dims = views[0], _AXES[: len(views[0].cuts)]
    taken: set[Index] = set()
    held: list[tuple[Index, ...]] = []
    for indices in first.held:
        held.append(tuple(index for index in indices if index not in taken))
        taken.update(indices)
    space = IterationSpace(
        Layout(first.grid, tuple(held)), dict(zip(dims, first.grid, strict=True))
    )
    reads = [replace(view, dims=dims) for view in views]
    made = builder.compute(name, "clip.squares", space, reads, f"{name}.squares[0]", wide=True)
    for program, indices in zip(builder.programs, held, strict=True):
        if not indices:
            program.append(Alloc(block_name(made.name, (0,))))
    total = replace(made, held=(((0,),),) * builder.ranks)
    builder.all_reduce(total, (tuple(range(builder.ranks)),))
    return total


def shard_gradients(step: StepContext) -> None:
    """Cut the gradients, of which every rank keeps its shard, if the plan shards the optimizer."""
    for name, gradient in step.gradients.items():
        step.gradients[name] = step.own_parts(name, gradient)


def lower_update(step: StepContext, name: str, norm: View | None) -> None:
    """Lower the update of one parameter; the new one is an output in the layout of the old one.

    AdamW's moments, `<name>.m` and `<name>.v`, old and new, have that layout too; SGD has none.
    With masters the copy `<name>.master` is updated, and the new parameter is made of the new copy.
    The update is element-wise, so any blocks work: those of the gradient. If they are shards, so
    are the moments, and the new parameter is gathered. A `norm` clips the gradient; in a step that
    skips nothing changes where it is not finite.
    """
    builder, whole = step.builder, step.parameters[name]
    view = own_view(whole) if step.shards else whole
    dims = tuple("T" if dim.isdigit() else dim for dim in view.dims)
    gradient = replace(step.gradients[name], dims=dims)
    sizes = [line[-1] for line in view.cuts]
    space = IterationSpace(Layout(view.grid, view.held), dict(zip(dims, sizes, strict=True)))
    clip = [] if norm is None else [norm]

    def new(state: str, kernel: str, reads: list[View], wide: bool = True) -> View:
        in_shards = state == name and view.cuts != whole.cuts
        writes = replace(view, name=f"{state}.new" + ".own" * in_shards, dims=dims).template
        made = builder.compute(state, kernel, space, reads, writes, wide=wide)
        if in_shards:
            made = whole_again(builder, whole, made, f"{state}.new")
        builder.end_with(made)
        return made

    moments = []
    for suffix, kernel in MOMENTS[step.optimizer].items():
        moment = builder.given(f"{name}.{suffix}", space, *dims, wide=True)
        moments.append(new(moment.name, kernel, [moment, gradient, *clip]))
    kernel, skip = f"{step.optimizer}.update", clip if step.skips else []
    reads = [*moments, *skip] if moments else [gradient, *clip]
    if step.masters:
        master = builder.given(f"{name}.{MASTER}", space, *dims, wide=True)
        made = new(master.name, kernel, [master, *reads])
        new(name, "master.update", [made], wide=False)
    else:
        parameter = replace(step.own_parts(name, whole), dims=dims)
        new(name, kernel, [parameter, *reads], wide=False)
