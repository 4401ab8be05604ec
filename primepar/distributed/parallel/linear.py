"""A linear layer of a user's module that runs the program of its sequence.

Every rank of a loss has its own rows, and its own mean over them. The gradient of the mean over all
rows is the average of the gradients, over the groups of ranks that have different rows.

Legend: M rows of this call, N input and K output columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from primepar.distributed.modules.linear import Schedules, partitioned_product
from primepar.distributed.parallel.batches import PartOfWorld, meet, untraced
from primepar.distributed.parallel.layer_plan import LinearRole
from primepar.distributed.parallel.placements import ShardedParameter, ShardMeshes, shard_of
from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError, PrimeParError, ShapeError
from primepar.operators.averaging import lower_row_average
from primepar.plan.operator_layouts import part, resident
from primepar.schedule import Layout, Linear, Sequence


class CompiledAverage(NamedTuple):
    """A compiled average, and the names of this rank's block before and after it."""

    executor: Executor
    before: str
    after: str


class RowAverage:
    """The average of a vector over the ranks that have the same columns of `layout`."""

    def __init__(self, mesh: Mesh, layout: Layout) -> None:
        self.mesh, self.layout, self.count = mesh, layout, layout.grid[0]

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the average of a gradient of any shape; a collective call."""
        if self.count == 1:
            return gradient
        executor, before, after = self._average(gradient.numel(), gradient.dtype)
        average = executor({before: gradient.reshape(1, -1).contiguous()})[after]
        return average.view(gradient.shape).to(gradient.dtype)

    def _average(self, size: int, dtype: torch.dtype) -> CompiledAverage:
        """Return the program for gradients of a size; averages of one mesh share it."""
        key, mesh = ("average", self.layout, size), self.mesh.in_dtype(dtype)
        if key not in mesh.compiled:
            program, before, after = lower_row_average(self.layout, size)
            executor = Executor(mesh, program, kind="parameters")
            mesh.compiled[key] = CompiledAverage(executor, before[mesh.rank], after[mesh.rank])
        compiled: CompiledAverage = mesh.compiled[key]
        return compiled

    def on(self, parameter: nn.Parameter, check: Callable[[torch.Tensor], None]) -> None:
        """Check, and then average, the gradient of a parameter in every backward."""

        def checked(gradient: torch.Tensor) -> torch.Tensor:
            check(gradient)
            return self(gradient)

        if parameter.requires_grad:
            register: Callable[..., object] = parameter.register_hook
            register(checked)


def averaged(local: torch.Tensor, average: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return `local`; backward passes its gradient through `average`."""
    apply: Callable[..., torch.Tensor] = _Averaged.apply
    return apply(local, average)


class _Averaged(torch.autograd.Function):
    """The identity in forward."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, average: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return a view, as autograd does not let a function return its input."""
        ctx.average = average
        return local.view_as(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the average."""
        return ctx.average(gradient), None


REPLACED = "_primepar_replaced"
"""Marks a parameter that is in a module no more."""
_are_refused = False


@dataclass(frozen=True)
class LinearSite:
    """What a plan states of a linear layer in a module.

    The weight of `nn.Linear` is (K, N), `turned`; that of transformers' `Conv1D` is (N, K).
    """

    name: str
    role: LinearRole
    sequence: Sequence
    source: Layout
    target: Layout
    turned: bool

    @property
    def sections(self) -> int:
        """Sections of the output; one where a rank has all of them."""
        return self.role.sections if self.target.grid[1] > 1 else 1

    def sizes(self, layer: nn.Module) -> tuple[int, int]:
        """The columns N and K of the layer."""
        first, second = layer.get_parameter("weight").shape
        return (second, first) if self.turned else (first, second)

    def shards(self, layer: nn.Module, meshes: ShardMeshes) -> dict[str, ShardedParameter]:
        """Return how the parameters of the layer are held: its weight, and its bias if it has one.

        Raises `ShapeError` if a sequence or a region does not divide the columns, and `PlanError`
        if no DTensor is in a layout.
        """
        home = resident(str(self.sequence), "W")
        _sections_per_rank(self, home)
        N, K = self.sizes(layer)
        self._check_columns("input", N, self.source.grid[1])
        self._check_columns("output", K // self.sections, self.target.grid[1])
        layouts = {
            "weight": home.turned() if self.turned else home,
            "bias": part(self.target, (1,)),
        }
        shards = {}
        for name, whole in layer.named_parameters():
            dim = whole.dim() - 1 if name == "bias" or not self.turned else 0
            label, shape = f"{self.name}.{name}", tuple(whole.shape)
            shards[name] = shard_of(label, shape, dim, self.sections, layouts[name], meshes)
        return shards

    def _check_columns(self, which: str, columns: int, parts: int) -> None:
        if columns % parts:
            raise ShapeError(
                f"{self.name}: expected {which} columns that the {parts} parts of its region "
                f"divide, got {columns}: pad them to {-(-columns // parts) * parts}, or choose a "
                "sequence with fewer slices of K for the layers that enter it"
            )


class ParallelLinear(PartOfWorld, nn.Module):
    """Replaces a linear layer; its parameters are DTensors with the names of the layer's.

    The input is in layout `source`, the output in `target`: this rank's rows, and its columns. The
    forward program redistributes between these and the layouts of the sequence, the backward
    program does so for the gradients. The dtype is that of the weight, or of `torch.autocast`.

    An optimizer that was made before has the old parameters, and is refused at its first step.
    """

    bias: nn.Parameter | None

    def __init__(
        self, site: LinearSite, layer: nn.Module, mesh: Mesh, shards: Mapping[str, ShardedParameter]
    ) -> None:  # fmt: skip
        super().__init__()
        self.site, self.mesh, self._shards = site, mesh, shards
        self.in_features, self.out_features = site.sizes(layer)
        self._blocks = _sections_per_rank(site, resident(str(site.sequence), "W"))
        parameters = dict(layer.named_parameters())
        for name in ("weight", "bias"):
            whole = parameters.get(name)
            cut = None
            if whole is not None:
                cut = shards[name].parameter(whole, whole.requires_grad)
                setattr(whole, REPLACED, True)
            self.register_parameter(name, cut)
        self._average = RowAverage(mesh, site.target)
        on_save: Callable[..., object] = self.register_state_dict_post_hook
        on_load: Callable[..., object] = self.register_load_state_dict_pre_hook
        on_save(_save_ordinary)
        on_load(_load_ordinary)

    def extra_repr(self) -> str:
        """Describe the layer as `nn.Linear` does, with its sequence."""
        bias = self.bias is not None
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={bias}, sequence={str(self.site.sequence)!r}"

    @untraced
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply this rank's part of the input; any number of dims may precede the columns."""
        weight = averaged(_local(self.get_parameter("weight")), self._share)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        x_MN = self._checked(x, weight.dtype)
        schedules = self._schedules(len(x_MN), self.mesh.in_dtype(weight.dtype))
        y_MK = partitioned_product(x_MN, self._program_block(weight), schedules)
        if self.bias is not None:
            y_MK = y_MK + averaged(_local(self.bias), self._average).reshape(-1).to(y_MK.dtype)
        y: torch.Tensor = y_MK.view(*x.shape[:-1], -1)
        return y

    def _share(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the average over groups of rows: the program has summed them."""
        rows = self._average.count
        return gradient if rows == 1 else gradient / rows

    def _checked(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        columns = self.in_features // self.site.source.grid[1]
        if x.shape[-1] != columns:
            split = f"1 of {self.site.source.grid[1]} parts" if self.site.role.leaves else "all"
            raise ShapeError(
                f"{self.site.name}: expected an input of {columns} columns ({split} of "
                f"{self.in_features}), got {tuple(x.shape)}: see Region for where columns are split"
            )
        if x.dtype != dtype:
            raise ConfigError(
                f"{self.site.name}: expected an input of the weight's {dtype}, got "
                f"{x.dtype}: convert the module to one dtype"
            )
        return x.reshape(-1, columns)

    def _program_block(self, local: torch.Tensor) -> torch.Tensor:
        """Return the local weight as the program has it: the sections of each rank adjacent."""
        sections, blocks, turned = self.site.sections, self._blocks, self.site.turned
        if sections == 1:
            return local
        dim = 1 if turned else 2
        shape = (*local.shape[:dim], blocks, -1, *local.shape[dim + 1 :])
        return local.view(shape).transpose(dim - 1, dim).flatten(dim - 1, dim + 1)

    def _schedules(self, local_rows: int, mesh: Mesh) -> Schedules:
        site = self.site
        rows, _ = site.source.whole_shape(mesh.rank, (local_rows, 1))
        sizes = rows, self.in_features, self.out_features
        key = ("linear", sizes, str(site.sequence), site.source, site.target, site.turned)
        if key not in mesh.compiled:
            operator = Linear(*sizes)
            try:
                mesh.compiled[key] = Schedules(
                    mesh, operator, site.source, site.sequence, site.target, site.turned
                )
            except PrimeParError as error:
                raise type(error)(f"{site.name}: {error}") from None
        schedules: Schedules = mesh.compiled[key]
        return schedules


def refuse_old_optimizers() -> None:
    """Let every optimizer be asked, before its steps, whether it has parameters of old layers."""
    global _are_refused
    if not _are_refused:
        _are_refused = True
        register_optimizer_step_pre_hook(_check_age)


def _check_age(optimizer: torch.optim.Optimizer, *_others: object) -> None:
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    old = sum(hasattr(parameter, REPLACED) for parameter in given)
    if old:
        raise ConfigError(
            f"{type(optimizer).__name__}: expected the parameters of the parallelized module, got "
            f"{old} of {len(given)} of before parallelize, which train nothing: make the optimizer "
            "after parallelize"
        )


def _sections_per_rank(site: LinearSite, home: Layout) -> int:
    """Return how many ranks' columns a block of the weight has, where there are sections."""
    parts, slices = site.target.grid[1], home.grid[1]
    if site.sections > 1 and parts % slices:
        raise ShapeError(
            f"{site.name}: expected a sequence that cuts its {site.sections} sections as the "
            f"output, in {parts}, or not at all, got {slices} slices of K: choose another sequence"
        )
    return parts // slices if site.sections > 1 else 1


def _local(parameter: nn.Parameter) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    local: torch.Tensor = parameter.to_local()
    return local


def _save_ordinary(
    layer: nn.Module, entries: dict[str, Any], prefix: str, _metadata: dict[str, Any]
) -> None:
    """Replace what no DTensor expresses, several sections, by the full tensor."""
    assert isinstance(layer, ParallelLinear)
    named = {prefix + name: shard for name, shard in layer._shards.items()}
    sectioned = [name for name, shard in named.items() if shard.sections > 1 and name in entries]
    if sectioned:
        meet("state_dict")
    for name in sectioned:
        entries[name] = named[name].full(entries[name])


def _load_ordinary(
    layer: nn.Module, entries: dict[str, Any], prefix: str, *_others: object
) -> None:
    """Cut full tensors; DTensors of other placements are gathered first."""
    assert isinstance(layer, ParallelLinear)
    for name, shard in layer._shards.items():
        value = entries.get(prefix + name)
        if isinstance(value, DTensor) and tuple(value.shape) == shard.shape:
            if (value.device_mesh, value.placements) == (shard.mesh, shard.placements):
                continue
            value = value.full_tensor()
        if value is not None and tuple(value.shape) == shard.ordinary:
            entries[prefix + name] = shard.cut(value)
