"""`parallelize`: replaces the linear layers of a module by partitioned ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from primepar.distributed.parallel.assignment import LayerPlan, assigned
from primepar.distributed.parallel.averaged import RowAverage
from primepar.distributed.parallel.batch_check import BatchCheck
from primepar.distributed.parallel.boundaries import Boundaries, boundaries_of
from primepar.distributed.parallel.checks import (
    check_heads,
    check_kinds,
    check_world,
    device_of,
    dtype_of,
    linear_layers,
    tied_layers,
)
from primepar.distributed.parallel.gradient_check import GradientCheck
from primepar.distributed.parallel.linear import LinearSite, ParallelLinear, refuse_old_optimizers
from primepar.distributed.parallel.regions import (
    LinearRole,
    Region,
    known_class,
    partitioned,
    resolved,
    roles_of,
)
from primepar.distributed.parallel.shards import ShardMeshes
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError
from primepar.partition.registry import parse_sequence

_STATE = "_primepar_batches"


def parallelize(
    module: nn.Module,
    plan: LayerPlan,
    mesh: DeviceMesh | int,
    regions: Iterable[Region] = (),
) -> nn.Module:
    """Replace the linear layers of a module by partitioned ones, and return the same module.

    A collective call on all ranks of `mesh`, a device mesh or a number of ranks. `plan` is a preset
    (`"megatron"`), a sequence for all layers, one of both for each pattern of layer names, or a
    `Plan` of the model. A layer with None stays whole. All parameters and buffers become those of
    rank 0. Raises `PrimeParError` for what does not fit; then the module is as it was.
    """
    if hasattr(module, _STATE):
        raise ConfigError(
            "module: expected one that is not parallelized, got one that is: call parallelize once"
        )
    ranks, device, layers = check_world(mesh), device_of(module, mesh), linear_layers(module)
    sites, boundaries = _planned(module, layers, plan, tuple(regions), ranks)
    device_mesh = init_device_mesh(device.type, (ranks,)) if isinstance(mesh, int) else mesh
    processes = Mesh(sites[0].sequence, device, dtype_of([layers[site.name] for site in sites]))
    meshes = ShardMeshes(device_mesh)
    shards = {site.name: site.shards(layers[site.name], meshes) for site in sites}
    # All that may be refused has been: from here on the module changes.
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), 0)
    replaced = {
        site.name: ParallelLinear(site, layers[site.name], processes, shards[site.name])
        for site in sites
    }
    _replace(module, replaced, boundaries)
    _average_others(module, replaced, RowAverage(processes, boundaries.stream), boundaries)
    refuse_old_optimizers()
    checked = BatchCheck(boundaries)
    module.register_forward_pre_hook(checked, with_kwargs=True)
    setattr(module, _STATE, checked)
    return module


def batches_of(module: nn.Module) -> BatchCheck:
    """Return what a parallelized module is fed by. Raises `ConfigError` for another module."""
    checked = getattr(module, _STATE, None)
    if checked is None:
        raise ConfigError(
            f"{type(module).__name__}: expected a parallelized module, got one that is not: call "
            "parallelize first"
        )
    known: BatchCheck = checked
    return known


def _planned(
    module: nn.Module,
    layers: Mapping[str, nn.Module],
    plan: LayerPlan,
    regions: tuple[Region, ...],
    ranks: int,
) -> tuple[list[LinearSite], Boundaries]:
    """Return what the plan states of every layer that is to be partitioned."""
    names = tuple(layers)
    within = resolved(module, names, regions)
    chosen = assigned(plan, roles_of(names, within), tied_layers(module, layers), ranks)
    check_kinds(layers, chosen)
    roles = roles_of(names, partitioned(within, chosen))
    entering = {name: text for name, text in chosen.items() if roles[name].enters}
    boundaries = boundaries_of(ranks, chosen, entering)
    sites = [
        _site(name, layers[name], roles[name], text, boundaries) for name, text in chosen.items()
    ]
    check_heads(module, layers, sites)
    return sites, boundaries


def _site(
    name: str, layer: nn.Module, role: LinearRole, text: str, boundaries: Boundaries
) -> LinearSite:
    stream, split = boundaries.stream, boundaries.split
    return LinearSite(
        name,
        role,
        parse_sequence(text),
        split if role.leaves else stream,
        split if role.enters else stream,
        isinstance(layer, nn.Linear),
    )


def _replace(
    module: nn.Module, replaced: Mapping[str, ParallelLinear], boundaries: Boundaries
) -> None:
    """Put the layers in their places, all of them where a layer is used in several."""
    new = {id(module.get_submodule(name)): layer for name, layer in replaced.items()}
    for name, old in [*module.named_modules(remove_duplicate=False)]:
        if id(old) in new:
            module.set_submodule(name, new[id(old)])
    for part in module.modules():
        enters = isinstance(getattr(part, "c_attn", None), ParallelLinear)
        if known_class(part) == "GPT2Attention" and enters:
            part.__dict__["split_size"] //= boundaries.parts


def _average_others(
    module: nn.Module,
    replaced: Mapping[str, ParallelLinear],
    average: RowAverage,
    boundaries: Boundaries,
) -> None:
    """Average the gradients of the parameters that stay whole: norms, embeddings."""
    partitioned_ones = {id(p) for layer in replaced.values() for p in layer.parameters()}
    for name, parameter in module.named_parameters():
        if id(parameter) not in partitioned_ones:
            average.on(parameter, GradientCheck(name, boundaries))
