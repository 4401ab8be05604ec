"""A linear layer of a user's module that runs the program of its sequence.

Legend: M rows of this call, N input and K output columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from primepar.distributed.modules.linear import Schedules, partitioned_product
from primepar.distributed.parallel.averaged import RowAverage, averaged
from primepar.distributed.parallel.regions import LinearRole
from primepar.distributed.parallel.shards import Shard, ShardMeshes, shard_of
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError, PrimeParError, ShapeError
from primepar.plan.operator_layouts import part, resident
from primepar.schedule import Layout, Linear, Sequence

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

    def shards(self, layer: nn.Module, meshes: ShardMeshes) -> dict[str, Shard]:
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


class ParallelLinear(nn.Module):
    """Replaces a linear layer; its parameters are DTensors with the names of the layer's.

    The input is in layout `source`, the output in `target`: this rank's rows, and its columns. The
    forward program redistributes between these and the layouts of the sequence, the backward
    program does so for the gradients. The dtype is that of the weight, or of `torch.autocast`.

    An optimizer that was made before has the old parameters, and is refused at its first step.
    """

    bias: nn.Parameter | None

    def __init__(
        self, site: LinearSite, layer: nn.Module, mesh: Mesh, shards: Mapping[str, Shard]
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply this rank's part of the input; any number of dims may precede the columns."""
        return _uncompiled(self, x)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of `forward`, outside of what torch.compile traces."""
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


def _product(layer: ParallelLinear, x: torch.Tensor) -> torch.Tensor:
    return layer.product(x)


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


_disable: Callable[..., Any] = torch.compiler.disable
_uncompiled: Callable[[ParallelLinear, torch.Tensor], torch.Tensor] = _disable(_product)
"""The messages of a program are posted by a list of functions, which is not to be traced."""


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
    for name, shard in layer._shards.items():
        if shard.sections > 1 and prefix + name in entries:
            entries[prefix + name] = shard.full(entries[prefix + name])


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
