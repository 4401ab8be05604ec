"""What `primepar plan --profile` measures, each with what the cost model counts of it.

The work goes the ways of training: the executor's products, the modules of a model. Legend: M rows,
N and K columns of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import AdamW

from primepar.distributed.executor import Executor, linear_shapes
from primepar.distributed.loss import cross_entropy
from primepar.distributed.mesh import Mesh
from primepar.distributed.messages import post
from primepar.distributed.model_elementwise import activate
from primepar.distributed.model_maker import Maker
from primepar.distributed.profile_clock import Stopwatch, Work
from primepar.distributed.profile_transfers import Measured, Transfers
from primepar.distributed.storage import Memory
from primepar.models import ModelConfig, Operator, operators
from primepar.plan import Plan
from primepar.plan.profile.counts import counts
from primepar.plan.profile.fit import Sample
from primepar.schedule import Linear, lower
from primepar.schedule.program import IRecv, ISend

PRODUCTS = ((32, 64, 64), (64, 128, 128), (128, 256, 256), (256, 256, 512), (512, 256, 256),
            (64, 512, 1024), (512, 512, 512))  # fmt: skip
PASSES = (1 << 12, 1 << 16, 1 << 19, 1 << 21)
MODELS = ((32, 64), (128, 128), (256, 256), (512, 512))
"""Rows and columns of the operators that are not linear."""
UPDATES = (1 << 8, 1 << 14, 1 << 17, 1 << 20)
VOCABULARY = 256
OVERLAPPED = 1 << 19
"""Elements of the block that hops while products run."""
OVERLAPS = 5
"""Times that are taken for it."""


class Works:
    """Everything that is measured on a mesh; on a GPU all sizes are `scale` times as large."""

    def __init__(self, mesh: Mesh, scale: int = 1) -> None:
        self.mesh, self.scale = mesh, scale
        self.item, self.transfers = mesh.dtype.itemsize, Transfers(mesh, scale)

    def all(self) -> Iterator[Measured]:
        """All works, in the order of the file; a collective iterator."""
        yield from self.products()
        yield from self.passes()
        yield from self.operators()
        yield from self.updates()
        yield from self.transfers.all()

    @property
    def count(self) -> int:
        """How many there are."""
        kinds = len({each.kind for each in operators(self._model(64, 64))} - {"linear"})
        return (len(PRODUCTS) + len(PASSES) + kinds * len(MODELS) + len(UPDATES)
                + self.transfers.count + OVERLAPS)  # fmt: skip

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
        module = make.module(operator)
        apply = self._forward(make, operator, module, tokens)
        gradient = torch.ones_like(apply(*given))
        leaves = [*given, *(module.parameters() if module else ())]

        def work() -> None:
            for leaf in leaves:
                leaf.grad = None
            apply(*given).backward(gradient)

        return work

    @staticmethod
    def _forward(
        make: Maker, operator: Operator, module: Any, tokens: torch.Tensor
    ) -> Callable[..., Any]:
        model = make.config
        match operator.kind:
            case "activation":
                return lambda x: activate(model, x)
            case "add":
                return lambda x: x + x
            case "loss":
                stream = make.stream(operator.name)
                return lambda x: cross_entropy(stream, model.vocabulary, x, tokens.flatten())
            case "attention":
                return lambda x: module(x, model.context, None)
            case _:
                return lambda x: module(x)

    def updates(self) -> Iterator[Measured]:
        """AdamW of one parameter, and the part of the gradient's norm that it has."""
        for size in UPDATES:
            parameter = torch.nn.Parameter(self._random(self.scale * size))
            parameter.grad = self._random(self.scale * size)
            takes = {"starts": 1.0, "bytes": float(parameter.numel() * self.item)}
            yield "update", f"{parameter.numel()} elements", takes, _updating(parameter)


def _copying(source: torch.Tensor, target: torch.Tensor) -> Work:
    return lambda: target.copy_(source)


def _updating(parameter: torch.nn.Parameter) -> Work:
    optimizer = AdamW([parameter], lr=1e-3)

    def work() -> None:
        assert parameter.grad is not None, "it was given"
        float(parameter.grad.double().square().sum())
        optimizer.step()

    return work


def measure(works: Works, watch: Stopwatch) -> list[Sample]:
    """Every work with its time; a collective call."""
    every = list(works.all())
    took = watch.each([work for *_, work in every])
    return [Sample(what, size, takes, seconds)
            for (what, size, takes, _), seconds in zip(every, took, strict=True)]  # fmt: skip


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

    def hop() -> None:
        start(blocks).wait()

    one, product = watch.each([hop, multiply])
    times = max(1, round(one / product))

    def products() -> None:
        for _ in range(times):
            multiply()

    def both() -> None:
        pending = start(blocks)
        products()
        pending.wait()

    moving, alone, together = watch.each([hop, products, both])
    return (moving + alone - together) / min(moving, alone)
