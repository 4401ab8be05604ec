"""`parallelize`: replaces the linear layers of a module by partitioned ones.

What is asked of a module, a mesh and a plan is checked before anything changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MethodType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from primepar.distributed.parallel.batches import (
    SAVE,
    STATE,
    BatchCheck,
    GradientCheck,
    save_with_state,
)
from primepar.distributed.parallel.layer_plan import (
    Boundaries,
    LayerPlan,
    Region,
    assigned,
    boundaries_of,
    known_class,
    partitioned,
    resolved,
    roles_of,
)
from primepar.distributed.parallel.linear import (
    LinearSite,
    ParallelLinear,
    RowAverage,
    refuse_old_optimizers,
)
from primepar.distributed.parallel.placements import ShardMeshes
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError, MeshError, PlanError, ShapeError
from primepar.partition.registry import parse_sequence


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
    if hasattr(module, STATE):
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
    # Gradients of the parameters that stay whole, as of norms and embeddings, are averaged.
    average = RowAverage(processes, boundaries.stream)
    partitioned_ones = {id(p) for layer in replaced.values() for p in layer.parameters()}
    for name, parameter in module.named_parameters():
        if id(parameter) not in partitioned_ones:
            average.on(parameter, GradientCheck(name, boundaries))
    refuse_old_optimizers()
    checked = BatchCheck(boundaries)
    module.register_forward_pre_hook(checked, with_kwargs=True)
    setattr(module, STATE, checked)
    if hasattr(module, SAVE):
        setattr(module, SAVE, MethodType(save_with_state, module))
    return module


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
    stream, split = boundaries.stream, boundaries.split
    sites = [
        LinearSite(
            name,
            roles[name],
            parse_sequence(text),
            split if roles[name].leaves else stream,
            split if roles[name].enters else stream,
            isinstance(layers[name], nn.Linear),
        )
        for name, text in chosen.items()
    ]
    check_heads(module, layers, sites)
    return sites, boundaries


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


def check_world(mesh: DeviceMesh | int) -> int:
    """Return the number of ranks. Raises `MeshError` unless they are all ranks, in their order."""
    if not dist.is_initialized():
        raise MeshError(
            "parallelize: expected an initialised torch.distributed, got none: call "
            "torch.distributed.init_process_group first, and start with torchrun or mpirun"
        )
    world = dist.get_world_size()
    ranks = list(range(mesh)) if isinstance(mesh, int) else mesh.mesh.flatten().tolist()
    if ranks != list(range(world)):
        raise MeshError(
            f"mesh: expected all {world} ranks of torch.distributed in their order, got "
            f"{len(ranks)}{'' if isinstance(mesh, int) else f': {ranks}'}: take {world}, or "
            f"init_device_mesh(device, ({world},))"
        )
    return world


def device_of(module: nn.Module, mesh: DeviceMesh | int) -> torch.device:
    """Return the one device of the parameters. Raises `MeshError` if the mesh has another."""
    devices = {parameter.device: name for name, parameter in module.named_parameters()}
    device, *others = devices or {torch.device("cpu"): ""}
    kind = device.type if isinstance(mesh, int) else mesh.device_type
    for given in (*others, device):
        if given != device or given.type != kind:
            raise MeshError(
                f"{devices[given]}: expected all parameters on one device of the mesh's kind "
                f"{kind!r}, got {str(given)!r}: call module.to(device) first"
            )
    return device


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers by name. Raises `PlanError` if there are none."""
    layers = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) or _is_convolution(part)
    }
    layers.pop("", None)
    if not layers:
        raise PlanError(
            f"{type(module).__name__}: expected a module with nn.Linear or Conv1D layers inside, "
            "got none: there is nothing to parallelize"
        )
    return layers


def _is_convolution(part: nn.Module) -> bool:
    """Return whether a layer is the `Conv1D` of transformers, a linear layer with (N, K)."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def tied_layers(module: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the layers whose weight has another name too, with that name."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    tied = {}
    for name, layer in layers.items():
        others = [
            other for other in names[id(layer.get_parameter("weight"))] if other != f"{name}.weight"
        ]
        if others:
            tied[name] = others[0]
    return tied


def check_kinds(layers: Mapping[str, nn.Module], chosen: Iterable[str]) -> None:
    """Raise `PlanError` for a subclass of `nn.Linear`, which may compute something else."""
    for name in chosen:
        kind = type(layers[name])
        if kind is not nn.Linear and not _is_convolution(layers[name]):
            raise PlanError(
                f"{name}: expected an nn.Linear, got its subclass {kind.__name__}, which may "
                f'compute something else: write "{name}": None first, and it stays whole on every '
                "rank"
            )


def check_heads(
    module: nn.Module, layers: Mapping[str, nn.Module], sites: Iterable[LinearSite]
) -> None:
    """Raise `ShapeError` if a rank would have a part of a head, where the head's size is known."""
    for site in (site for site in sites if site.role.enters):
        size = getattr(module.get_submodule(site.name.rpartition(".")[0]), "head_dim", None)
        weight, parts = layers[site.name].get_parameter("weight"), site.target.grid[1]
        columns = weight.shape[0 if site.turned else 1] // site.role.sections
        if isinstance(size, int) and columns % (size * parts):
            raise ShapeError(
                f"{site.name}: expected a number of heads that its {parts} parts divide, got "
                f"{columns // size} heads of {size} columns: choose a sequence with fewer slices "
                "of K, or None for all layers of this region"
            )


def dtype_of(layers: Collection[nn.Module]) -> torch.dtype:
    """Return the one dtype of the weights. Raises `ConfigError` for several."""
    dtypes = {parameter.dtype for layer in layers for parameter in layer.parameters()}
    if len(dtypes) > 1:
        raise ConfigError(
            "module: expected linear layers of one dtype, got "
            f"{', '.join(sorted(map(str, dtypes)))}: call module.to(dtype) first"
        )
    return dtypes.pop()
