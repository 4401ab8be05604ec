"""What ranks do with a parallelized module, and the same on one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from io import StringIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import sent_traffic
import torch
import torch.distributed as dist
from msgspec.structs import replace
from parallel_models import (
    BATCH,
    BLOCK_REGIONS,
    POSITIONS,
    RATE,
    REGIONS,
    VOCABULARY,
    Block,
    OwnNorm,
    TwoTypes,
    llama,
    made,
    own,
)
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy

from primepar import PrimeParError, parallelize
from primepar.distributed import (
    Region,
    clip_grad_norm,
    device_mesh_of,
    full_state_dict,
    layout_of,
    local_rows,
    loss_weight,
    placements_of,
)
from primepar.distributed.parallel import batches
from primepar.distributed.runtime.observed_groups import ObservedCall, Seen, watched_groups
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.models import load_config
from primepar.plan import Plan, preset_plan
from primepar.plan.operator_layouts import resident
from primepar.schedule import Layout


def tokens(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, POSITIONS), generator=generator)


def run(module: Callable[..., Any], batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and loss; transformers' own loss is in float32."""
    out = module(input_ids=batch)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    scores, targets = logits[:, :-1].reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1)
    return logits, cross_entropy(scores, targets)


def compared(
    model: str,
    changes: dict[str, Any],
    plan: Any,
    regions: tuple[Region, ...] = (),
    steps: int = 2,
    kind: str = "AdamW",
) -> dict[str, Any]:
    """The largest differences between a parallelized model and the same on one process."""
    plain = made(model, changes)
    if plan == "plan":
        plan = planned(plain)
    module = parallelize(deepcopy(plain), plan, dist.get_world_size(), regions)
    logits, loss = run(plain, tokens())
    torch.autograd.backward(loss)
    own_logits, own_loss = run(module, local_rows(module, tokens()))
    torch.autograd.backward(own_loss)
    gradients = gradient_distances(module, plain)
    assert max(gradients.values()) < min(
        float(p.grad.abs().max()) for p in plain.parameters() if p.grad is not None
    )
    return {
        "logits": distance(own_logits, local_rows(module, logits)),
        "loss": distance(averaged_loss(own_loss), loss),
        "gradients": max(gradients.values()),
        **trained(module, plain, steps, kind),
    }


def planned(model: Any) -> Plan:
    """A plan for transformers' model: each kind of operator has a sequence of its own."""
    texts = {"qkv": "M2,K2", "proj": "M2,N2", "fc1": "P2x2", "fc2": "S2x2", "head": "K2,M2"}
    with TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        made_plan = preset_plan("primepar", load_config(Path(folder) / "config.json"), 4)
    sequences = {
        name: texts.get(name.rpartition(".")[2], text) for name, text in made_plan.sequences.items()
    }
    return replace(made_plan, sequences=sequences)


def averaged_loss(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.detach() / dist.get_world_size()
    dist.all_reduce(loss)
    return loss


def distance(one: torch.Tensor, another: torch.Tensor) -> float:
    assert one.shape == another.shape, (one.shape, another.shape)
    return float((one.detach() - another.detach()).abs().max())


def gradient_distances(module: nn.Module, plain: nn.Module) -> dict[str, float]:
    parameters = dict(plain.named_parameters())
    distances = {}
    for name, parameter in module.named_parameters():
        gradient, expected = parameter.grad, parameters[name].grad
        assert gradient is not None
        assert expected is not None
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor().reshape(expected.shape)
        distances[name] = distance(gradient, expected)
    assert distances.keys() == parameters.keys()
    return distances


def optimized(kind: str, plan: str) -> dict[str, float]:
    """The same with another optimizer of torch."""
    plain = own()
    module = parallelize(deepcopy(plain), plan, dist.get_world_size(), REGIONS)
    return trained(module, plain, 3, kind)


def checkpointed(plan: str, reentrant: bool) -> dict[str, float]:
    """Gradients where activations are computed again in backward, by both ways of torch."""
    plain = cast("Any", llama(num_hidden_layers=1))
    plain.gradient_checkpointing_enable({"use_reentrant": reentrant})
    plain.enable_input_require_grads()
    plain.train()
    module = parallelize(deepcopy(plain), plan, 4)
    for model, batch in ((plain, tokens()), (module, local_rows(module, tokens()))):
        torch.autograd.backward(run(model, batch)[1])
    return gradient_distances(module, plain)


def in_bfloat16(plan: str, way: str) -> tuple[str, float]:
    """The dtype of logits, and the largest relative difference of a gradient, in half precision."""
    plain = own(1).float()
    module = parallelize(deepcopy(plain), plan, 4, REGIONS)
    if way == "converted":
        plain, module = plain.bfloat16(), module.bfloat16()
    for model, batch in ((plain, tokens()), (module, local_rows(module, tokens()))):
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            logits, loss = run(model, batch)
        torch.autograd.backward(loss)
    largest = max(float(p.grad.abs().max()) for p in plain.parameters() if p.grad is not None)
    return str(logits.dtype), max(gradient_distances(module, plain).values()) / largest


def weighted(plan: str) -> tuple[float, str, str, str]:
    """The difference of gradients where labels are left out unequally, and refusals else.

    The last is of labels by place that no mean of classes counts: numbers, and without gradients.
    """
    plain = cast("Any", llama(num_hidden_layers=1))
    module = cast("Any", parallelize(deepcopy(plain), plan, 4))
    unaware = cast("Any", parallelize(deepcopy(plain), plan, 4))
    positional = cast("Any", parallelize(own(1), plan, 4, REGIONS))
    labels = tokens().clone()
    labels[:2, 3:] = -100
    torch.autograd.backward(plain(input_ids=tokens(), labels=labels).loss)
    given = {"input_ids": local_rows(module, tokens()), "labels": local_rows(module, labels)}
    weight = loss_weight(module, given["labels"][:, 1:])
    torch.autograd.backward(module(**given).loss * weight)
    refusal = message(lambda: [unaware(**given) for _ in range(2)])
    by_place = (given["input_ids"], given["labels"].clamp(-1))
    numbers = (by_place[0], by_place[1].double())
    uncounted = message(lambda: [positional(*numbers) for _ in range(2)])
    with torch.no_grad():
        uncounted += message(lambda: [positional(*by_place) for _ in range(2)])
    second = message(lambda: [positional(*by_place) for _ in range(2)])
    return max(gradient_distances(module, plain).values()), refusal, second, uncounted


def generated() -> bool:
    """Whether tokens are generated as on one process, with caches of this rank's heads."""
    plain = cast("Any", llama(num_key_value_heads=2).eval())
    module = parallelize(deepcopy(plain), "P2x2", 4)
    prompt = {"input_ids": local_rows(module, tokens())}
    prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    models = (plain, cast("Any", module))
    both = [model.generate(**prompt, max_new_tokens=5, pad_token_id=0) for model in models]
    return bool(torch.equal(*both))


def trained(
    module: nn.Module, plain: nn.Module, steps: int, kind: str = "AdamW"
) -> dict[str, float]:
    """The largest differences of losses and parameters over steps with clipping."""
    losses: list[list[torch.Tensor]] = []
    for model in (module, plain):
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=RATE)
        losses.append([])
        for step in range(steps):
            optimizer.zero_grad()
            batch = tokens(step + 1)
            _, loss = run(model, batch if model is plain else local_rows(module, batch))
            torch.autograd.backward(loss)
            clip = nn.utils.clip_grad_norm_
            norm = clip(model.parameters(), 0.5) if model is plain else clip_grad_norm(model, 0.5)
            optimizer.step()
            losses[-1] += [loss.detach() if model is plain else averaged_loss(loss), norm]
    states, expected = full_state_dict(module), plain.state_dict()
    assert dist.get_rank() or states.keys() == expected.keys()
    return {
        "losses": max(distance(got, wanted) for got, wanted in zip(*losses, strict=True)),
        "trained": max((distance(states[name], expected[name]) for name in states), default=0.0),
    }


def compiled(backend: str, plan: str) -> dict[str, float]:
    """The difference that torch.compile makes to a parallelized module."""
    plain = own()
    module = parallelize(deepcopy(plain), plan, dist.get_world_size(), REGIONS)
    logits, loss = run(plain, tokens())
    torch.autograd.backward(loss)
    own_logits, own_loss = run(torch.compile(module, backend=backend), local_rows(module, tokens()))
    torch.autograd.backward(own_loss)
    return {
        "logits": distance(own_logits, local_rows(module, logits)),
        "gradients": max(gradient_distances(module, plain).values()),
    }


def refused(
    model: str, changes: dict[str, Any], plan: Any, ranks: int = 4, regions: tuple[Region, ...] = ()
) -> str:
    """The message of an error; the module is as it was, its numbers too."""
    plain = made(model, changes)
    if dist.get_rank():
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.fill_(dist.get_rank())
    kinds, before = [type(part) for part in plain.modules()], deepcopy(plain.state_dict())
    try:
        parallelize(plain, plan, ranks, regions)
    except PrimeParError as error:
        assert [type(part) for part in plain.modules()] == kinds
        assert all(torch.equal(entry, before[name]) for name, entry in plain.state_dict().items())
        return f"{type(error).__name__}: {error}"
    return "accepted"


def counted(plan: str) -> list[tuple[Fraction, Fraction]]:
    """Elements that each rank sends for a block: counted by process groups, and by the executor.

    It is the second step: in the first one gradients are compared too.
    """
    module = parallelize(Block().double(), plan, 4, BLOCK_REGIONS)
    x = local_rows(module, torch.randn(BATCH, POSITIONS, 32, dtype=torch.float64))
    for _ in range(2):
        sent_traffic.clear()
        seen = Seen(0)
        with watched_groups(seen):
            torch.autograd.backward(module(x.clone().requires_grad_()).square().sum())
    counts = sum(map(sent_elements, seen.calls), Fraction(0)), sum(sent_traffic.ELEMENTS.values())
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, counts)
    return by_rank


def sent_elements(call: ObservedCall) -> Fraction:
    """What a rank sends in a call; collectives as rings."""
    members, size = len(call.with_whom), call.elements
    rings = {
        "send": Fraction(size),
        "recv": Fraction(0),
        "all_reduce": Fraction(2 * (members - 1) * size, members),
        "all_gather": Fraction((members - 1) * size),
        "reduce_scatter": Fraction((members - 1) * size),
    }
    return Fraction(0) if call.what.startswith("wait for") else rings[call.what]


def misused() -> dict[str, str]:
    """Errors of modules that are parallelized already, or are not yet."""
    torch.manual_seed(0)
    module, plain = Block().double(), Block().double()
    parallelize(module, "P2x2", init_device_mesh("cpu", (4,)), BLOCK_REGIONS)
    of_library = cast("Any", parallelize(llama(num_hidden_layers=1), "P2x2", 4))
    aged = Block()
    old = torch.optim.AdamW(aged.parameters())
    parallelize(aged, "P2x2", 4, BLOCK_REGIONS)
    wrong = parallelize(OwnNorm(), "P2x2", 4, BLOCK_REGIONS)
    x = torch.randn(2, 4, 32)
    module(x.double())
    seeds = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(dist.get_rank()))
    masked = nn.Sequential(nn.LayerNorm(32), Block())
    parallelize(masked, "megatron", 4)
    calls: dict[str, Callable[[], Any]] = {
        "twice": lambda: parallelize(module, "P2x2", 4),
        "columns": lambda: module.get_submodule("out")(x.double()),
        "dtype": lambda: module.get_submodule("fc1")(x),
        "rows": lambda: local_rows(module, x[:1]),
        "not parallelized": lambda: full_state_dict(plain),
        "device": lambda: parallelize(Block().to("meta"), "P2x2", init_device_mesh("cpu", (4,))),
        "dtypes": lambda: parallelize(TwoTypes(), "P2x2", 4),
        "other rows": lambda: parallelize(Block(), "megatron", 4)(seeds),
        "an old optimizer": lambda: old.step(),
        "a state of rank 0 alone": lambda: alone(lambda: full_state_dict(module)),
        "a state with sections of rank 0 alone": lambda: alone(module.state_dict),
        "a folder without a state": lambda: of_library.save_pretrained("none"),
        "a copy": lambda: deepcopy(module),
        "an evaluation of rank 0 alone": lambda: alone(torch.no_grad()(lambda: module(x.double()))),
        "a parameter of a region": lambda: torch.autograd.backward(wrong(x).square().sum()),
        "a seed of each rank": lambda: torch.autograd.backward((masked(x) * seeds).sum()),
    }
    return {name: message(call) for name, call in calls.items()}


def alone(call: Callable[[], object]) -> None:
    """Call on rank 0; the others wait until it has given up, which in a script is the end."""
    try:
        with patch.multiple(batches, PATIENCE=0.5, EVALUATION_PATIENCE=0.5):
            if dist.get_rank() == 0:
                call()
    finally:
        meetings = [batches._meetings]
        dist.broadcast_object_list(meetings)
        batches._meetings |= meetings[0]  # ranks go on together, as they do in no script


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except PrimeParError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def states(folder: str) -> dict[str, Any]:
    """Ordinary states into a parallelized module and out of it, and through a checkpoint."""
    expected = own(1).state_dict()
    first, second = (parallelize(own(1), plan, 4, REGIONS) for plan in ("P2x2", "M2,megatron"))
    zero(first)
    first.load_state_dict(expected)
    entries = first.state_dict()
    save({"model": entries}, checkpoint_id=folder, no_dist=False)
    target = {"model": second.state_dict()}
    for entry in target["model"].values():
        entry.zero_()
    load(target, checkpoint_id=folder)
    second.load_state_dict(target["model"])
    loaded = [full_state_dict(first), full_state_dict(second)]
    zero(second)  # what was returned is a copy
    second.load_state_dict(first.state_dict())
    loaded.append(full_state_dict(second))
    return {
        "names": list(entries) == list(expected),
        "shapes": [tuple(e.shape) for e in entries.values()]
        == [tuple(e.shape) for e in expected.values()],
        "sharded": [name for name, entry in entries.items() if isinstance(entry, DTensor)],
        "equal": [
            dist.get_rank() > 0
            or all(torch.equal(state[name], expected[name]) for name in expected)
            for state in loaded
        ],
    }


@torch.no_grad()
def zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.zero_()


def placed() -> dict[str, Any]:
    """Layouts as placements on a 2 x 2 mesh and back; P2x2's weight on a mesh of its own."""
    mesh = init_device_mesh("cpu", (2, 2))
    kinds = (Replicate(), Shard(0), Shard(1))
    pairs = list(product(kinds, repeat=2))
    there = [placements_of(layout_of(pair, mesh, 2), mesh) for pair in pairs]
    skewed = resident("P2x2", "W")
    whole = torch.arange(16.0).view(4, 4)
    own_mesh, placements = device_mesh_of(skewed)

    def cut(layout: Layout) -> torch.Tensor:
        (piece,) = Parts("w", layout, dist.get_rank(), (4, 4)).whole.values()
        return whole[piece].clone()

    tensor = DTensor.from_local(cut(skewed), own_mesh, placements)
    moved = tensor.redistribute(placements=(Replicate(), Shard(0)))
    partial = cast("Any", Partial())
    return {
        "back": [layout_of(pair, mesh, 2) for pair in there]
        == [layout_of(pair, mesh, 2) for pair in pairs],
        "as torch cuts": all(
            torch.equal(
                cut(layout_of(pair, mesh, 2)), distribute_tensor(whole, mesh, pair).to_local()
            )
            for pair in pairs
        ),
        "full": bool(torch.equal(tensor.full_tensor(), whole)),
        "moved": bool(torch.equal(moved.full_tensor(), whole)),
        "norm": float(tensor.norm().full_tensor() - whole.norm()),
        "skewed": message(lambda: placements_of(skewed, mesh)),
        "partial": message(lambda: layout_of((partial, partial), mesh, 2)),
        "size": message(lambda: placements_of(resident("P3x3", "W"), mesh)),
        "several": message(lambda: device_mesh_of(Layout((4,), (((0,), (2,)), ((1,), (3,)))))),
    }


def recipe(code: str, folder: str) -> tuple[str, tuple[int, ...]]:
    """Run the recipe of the page, two of its ten steps, in a world that there is already.

    Returns what it prints, and the shape of a tensor that it saves.
    """
    assert "range(10)" in code
    code = code.replace("range(10)", "range(2)")
    printed = StringIO()
    with (
        patch.object(dist, "init_process_group"),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
    ):
        exec(compile(code, "train_llama.py", "exec"), {"__name__": "__main__"})
    dist.barrier()
    head = load_file(Path(folder) / "llama.safetensors")["lm_head.weight"]
    return printed.getvalue(), tuple(head.shape)


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """What some functions of this module return, by name and arguments."""
    torch.set_num_threads(1)
    return [globals()[name](*given) for name, given in cases]
