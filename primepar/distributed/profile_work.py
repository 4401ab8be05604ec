"""What `primepar plan --profile` measures, each with what the cost model counts of it.

The work goes the ways of training: the executor's products, the modules of a model, the hops of a
redistribution, the all-reduces of the mesh. Legend: M rows, N and K columns of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product
from typing import Any

import torch
from torch.optim import AdamW

from primepar.distributed.executor import Executor, linear_shapes
from primepar.distributed.loss import cross_entropy
from primepar.distributed.mesh import Mesh, Ranks
from primepar.distributed.messages import post
from primepar.distributed.model_elementwise import activate
from primepar.distributed.model_maker import Maker
from primepar.distributed.profile_clock import Stopwatch
from primepar.distributed.redistribute import Redistribution
from primepar.distributed.storage import Memory
from primepar.models import ModelConfig, Operator, operators
from primepar.plan import Plan
from primepar.plan.profile.counts import counts
from primepar.plan.profile.fit import Sample
from primepar.schedule import Layout, Linear, lower
from primepar.schedule.program import IRecv, ISend

Work = Callable[[], object]
Takes = Callable[[int, int], dict[str, float]]
Measured = tuple[str, str, dict[str, float], Work]
"""Sort of work, its size, what it takes, and the work itself."""
PRODUCTS = ((32, 64, 64), (64, 128, 128), (128, 256, 256), (256, 256, 512), (512, 256, 256),
            (64, 512, 1024), (512, 512, 512))  # fmt: skip
PASSES = (1 << 12, 1 << 16, 1 << 19, 1 << 21)
MODELS = ((32, 64), (128, 128), (256, 256), (512, 512))
"""Rows and columns of the operators that are not linear."""
UPDATES = (1 << 8, 1 << 14, 1 << 17, 1 << 20)
TRANSFERS = (1 << 6, 1 << 13, 1 << 17, 1 << 20)
"""Elements that each rank gives."""
VOCABULARY = 256
OVERLAPPED = 1 << 19
"""Elements of the block that hops while products run."""
OVERLAPS = 4
"""Times that are taken for it."""


class Works:
    """Everything that is measured on a mesh; on a GPU all sizes are `scale` times as large."""

    def __init__(self, mesh: Mesh, scale: int = 1) -> None:
        self.mesh, self.scale = mesh, scale
        self.item = mesh.dtype.itemsize

    def all(self) -> Iterator[Measured]:
        """All works, in the order of the file; a collective iterator."""
        yield from self.products()
        yield from self.passes()
        yield from self.operators()
        yield from self.updates()
        yield from self.transfers()

    @property
    def count(self) -> int:
        """How many there are."""
        groups = len(self.groups)
        kinds = len({each.kind for each in operators(self._model(64, 64))} - {"linear"})
        return (len(PRODUCTS) + len(PASSES) + kinds * len(MODELS) + len(UPDATES)
                + 5 * groups * len(TRANSFERS) + OVERLAPS)  # fmt: skip

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.mesh.device, dtype=self.mesh.dtype)

    def products(self) -> Iterator[Measured]:
        """Products of the executor, in which nothing moves."""
        for shape in PRODUCTS:
            M, N, K = (self.scale * size for size in shape)
            touched = (M * N + N * K + M * K) * self.item
            takes = {"starts": 1.0, "operations": 2.0 * M * N * K, "bytes": float(touched)}
            yield "product", f"{M} x {N} x {K}", takes, self.multiplying(M, N, K)

    def multiplying(self, M: int, N: int, K: int) -> Work:
        """One product of this size on each rank."""
        mesh = self.mesh
        program = lower(mesh.sequence, Linear(M=mesh.ranks * M, N=N, K=K), ("forward",))
        assert program.initial is not None, "what is lowered says what is there"
        shape, names = linear_shapes(program), program.initial[mesh.rank]
        run = Executor(mesh, program, Memory(mesh.pool, shape, borrowed=names))
        given = {name: self._random(*shape(name)) for name in names}

        def work() -> None:
            for name, block in run(dict(given)).items():
                if name not in given:
                    mesh.pool.release(block)

        return work

    def passes(self) -> Iterator[Measured]:
        """Copies, which read and write every element once."""
        for size in PASSES:
            source, target = self._random(self.scale * size), self._random(self.scale * size)
            takes = {"starts": 1.0, "bytes": 2.0 * source.numel() * self.item}
            yield "pass", f"{source.numel()} elements", takes, _copying(source, target)

    def _model(self, rows: int, hidden: int) -> ModelConfig:
        return ModelConfig.of("gpt", layers=1, hidden=hidden, heads=4, context=min(rows, 128),
                              vocabulary=VOCABULARY)  # fmt: skip

    def operators(self) -> Iterator[Measured]:
        """Operators that are not linear, forward and backward, all of each on every rank."""
        every: dict[str, list[Measured]] = {}
        for rows, hidden in MODELS:
            model = self._model(self.scale * rows, self.scale * hidden)
            batch = self.scale * rows // model.context
            whole = {each.name: f"{'M' if each.kind == 'linear' else 'R'}{self.mesh.ranks}"
                     for each in operators(model)}  # fmt: skip
            make = Maker(Plan(model=model, ranks=self.mesh.ranks, sequences=whole), self.mesh, 0)
            first = {each.kind: each for each in reversed(operators(model))}
            for kind, operator in first.items():
                if kind != "linear":
                    found = counts(model, operator, batch, str(self.mesh.dtype).split(".")[1])
                    takes = {"starts": found.starts, "operations": found.operations,
                             "bytes": found.bytes}  # fmt: skip
                    size = f"{batch * model.context} x {operator.K}"
                    work = self._stepping(make, operator, batch)
                    every.setdefault(kind, []).append((kind, size, takes, work))
        for own in every.values():
            yield from own

    def _stepping(self, make: Maker, operator: Operator, batch: int) -> Work:
        """Forward and backward of one operator."""
        model = make.config
        rows = batch * model.context
        tokens = torch.randint(VOCABULARY, (batch, model.context), device=self.mesh.device)
        if operator.kind == "embedding":
            given: tuple[Any, ...] = (tokens,)
        else:
            given = (self._random(rows, operator.N).requires_grad_(),)
        apply = self._forward(make, operator, tokens)
        gradient = torch.ones_like(apply(*given))

        def work() -> None:
            apply(*given).backward(gradient)

        return work

    @staticmethod
    def _forward(make: Maker, operator: Operator, tokens: torch.Tensor) -> Callable[..., Any]:
        model, module = make.config, make.module(operator)
        match operator.kind:
            case "activation":
                return lambda x: activate(model, x)
            case "add":
                return lambda x: x + x
            case "loss":
                stream = make.stream(operator.name)
                return lambda x: cross_entropy(stream, model.vocabulary, x, tokens.flatten())
            case "attention":
                return lambda x: module(x, model.context, None)  # type: ignore[misc]
            case _:
                return lambda x: module(x)  # type: ignore[misc]

    def updates(self) -> Iterator[Measured]:
        """AdamW of one parameter, and the part of the gradient's norm that it has."""
        for size in UPDATES:
            parameter = torch.nn.Parameter(self._random(self.scale * size))
            parameter.grad = self._random(self.scale * size)
            takes = {"starts": 1.0, "bytes": float(parameter.numel() * self.item)}
            yield "update", f"{parameter.numel()} elements", takes, _updating(parameter)

    @property
    def groups(self) -> list[tuple[tuple[int, ...], list[Ranks]]]:
        """Device bits, the outermost 0, and the groups of ranks that differ in these alone."""
        bits = self.mesh.ranks.bit_length() - 1
        found = []
        for count in range(1, bits + 1):
            for chosen in combinations(range(bits), count):
                weights = [1 << bits - 1 - bit for bit in chosen]
                inside = [sum(each) for each in product(*((0, weight) for weight in weights))]
                firsts = [rank for rank in range(self.mesh.ranks) if not rank & sum(weights)]
                groups = [tuple(sorted(first + each for each in inside)) for first in firsts]
                found.append((chosen, groups))
        return found

    def transfers(self) -> Iterator[Measured]:
        """Hops round a ring, redistribution and collectives, over every group of device bits."""
        sorts: tuple[tuple[str, Takes, Callable[[list[Ranks], int], Work]], ...] = (
            ("hop", _hop, self.hopping),
            ("hop to all", _spread, self.spreading),
            ("all-reduce", _all_reduce, self.summing),
            ("all-gather", _all_gather, self.gathering),
            ("reduce-scatter", _all_gather, self.scattering),
        )
        for what, takes, make in sorts:
            for bits, groups in self.groups:
                self.mesh.ensure_groups(("world", group) for group in groups)
                for size in TRANSFERS:
                    given = self.scale * size * self.item
                    name = f"bits {' '.join(map(str, bits))}, {given} bytes"
                    yield what, name, takes(len(groups[0]), given), make(groups, self.scale * size)

    def hopping(self, groups: list[Ranks], size: int) -> Work:
        """Every rank's block goes to the next one of its group."""
        before = {each: group[at - 1] for group in groups for at, each in enumerate(group)}
        return self._moving({rank: (before[rank],) for rank in before}, size)

    def spreading(self, groups: list[Ranks], size: int) -> Work:
        """Every rank's block goes to all of its group, as in a redistribution."""
        return self._moving({rank: group for group in groups for rank in group}, size)

    def _moving(self, gets: Mapping[int, Ranks], size: int) -> Work:
        """Blocks of `size` elements, one on each rank, go to where they are gotten."""
        mesh = self.mesh
        held = [tuple((each, 0) for each in gets[rank]) for rank in range(mesh.ranks)]
        own = tuple(((rank, 0),) for rank in range(mesh.ranks))
        source, target = (Layout((mesh.ranks, 1), each) for each in (own, tuple(held)))
        way = Redistribution(mesh, source, target, "O", (mesh.ranks, size))
        block = self._random(1, size)
        return lambda: mesh.pool.release(way(block))

    def _own(self, groups: list[Ranks]) -> Ranks:
        return next(group for group in groups if self.mesh.rank in group)

    def _zeros(self, size: int) -> torch.Tensor:
        """What may be summed again and again."""
        return torch.zeros(size, device=self.mesh.device, dtype=self.mesh.dtype)

    def summing(self, groups: list[Ranks], size: int) -> Work:
        """An all-reduce over every group."""
        own, tensor = self._own(groups), self._zeros(size)
        return lambda: self.mesh.all_reduce(tensor, own, "profile")

    def gathering(self, groups: list[Ranks], size: int) -> Work:
        """An all-gather over every group."""
        own, tensor = self._own(groups), self._zeros(size)
        return lambda: self.mesh.all_gather(tensor, own, "profile")

    def scattering(self, groups: list[Ranks], size: int) -> Work:
        """A reduce-scatter over every group."""
        own = self._own(groups)
        parts = [self._zeros(size) for _ in own]
        return lambda: self.mesh.reduce_scatter(parts, own, "profile")


def _hop(_: int, given: int) -> dict[str, float]:
    return {"messages": 1.0, "bytes": float(given)}


def _spread(members: int, given: int) -> dict[str, float]:
    return {"messages": 1.0, "bytes": float((members - 1) * given)}


def _all_reduce(members: int, given: int) -> dict[str, float]:
    return {"messages": 2.0 * (members - 1), "bytes": 2 * (members - 1) / members * given}


def _all_gather(members: int, given: int) -> dict[str, float]:
    return {"messages": members - 1.0, "bytes": float((members - 1) * given)}


def _copying(source: torch.Tensor, target: torch.Tensor) -> Work:
    return lambda: target.copy_(source)


def _updating(parameter: torch.nn.Parameter) -> Work:
    optimizer = AdamW([parameter], lr=1e-3)

    def work() -> None:
        assert parameter.grad is not None, "it was given"
        float(parameter.grad.double().square().sum())
        optimizer.step()

    return work


def measure(works: Works, watch: Stopwatch) -> Iterator[Sample]:
    """Every work with its time; a collective iterator."""
    for what, size, takes, work in works.all():
        yield Sample(what, size, takes, watch(work))


def hidden(works: Works, watch: Stopwatch) -> float:
    """Which part of the shorter time is saved where products run while a block hops."""
    mesh = works.mesh
    size = works.scale * OVERLAPPED
    after, before = (mesh.rank + 1) % mesh.ranks, (mesh.rank - 1) % mesh.ranks
    messages = (
        ISend(peer=after, block="given", request="given"),
        IRecv(peer=before, block="gotten", request="gotten"),
    )
    mesh.ensure_groups([("world", tuple(range(mesh.ranks)))])
    start, multiply = post(mesh, messages), works.multiplying(*(works.scale * 128,) * 3)
    blocks = {name: works._random(size) for name in ("given", "gotten")}
    hop = watch(lambda: start(blocks).wait())
    times = max(1, round(hop / watch(multiply)))

    def products() -> None:
        for _ in range(times):
            multiply()

    def both() -> None:
        pending = start(blocks)
        products()
        pending.wait()

    alone, together = watch(products), watch(both)
    return (hop + alone - together) / min(hop, alone)
