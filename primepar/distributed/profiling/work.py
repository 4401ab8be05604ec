"""Work that `primepar profile` measures, each with what its kernels take.

It runs the same code as training: programs of one operator, and kernels. Legend: M rows, N and K
columns of the blocks of one process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec
import torch

from primepar.distributed.kernels import KERNELS
from primepar.distributed.profiling.clock import Stopwatch, Work
from primepar.distributed.profiling.transfers import Measured, Transfers, freed, running
from primepar.distributed.runtime.executor import NOTHING, Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.messages import post
from primepar.models import ModelConfig, Operator, operators
from primepar.models.config import Family
from primepar.operators import Site, StepSettings, lower_step
from primepar.plan import preset_plan
from primepar.plan.kernels import attention_of, counts, kernels
from primepar.plan.profile import Sample
from primepar.schedule import Linear, Program, lower
from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute, Free, Instruction, IRecv, ISend, Join
from primepar.schedule.signature import Template, Tensor

PRODUCTS = ((32, 64, 64), (64, 128, 128), (128, 256, 256), (32, 512, 512), (256, 256, 512),
            (512, 256, 256), (64, 512, 1024), (512, 512, 512), (256, 1024, 512),
            (1024, 1024, 1024))  # fmt: skip
"""Square and thin ones; several shapes have the same operations."""
PASSES = (1 << 12, 1 << 16, 1 << 19, 1 << 21)
MODELS = ((32, 64), (128, 128), (256, 256), (512, 512))
"""Rows and columns of the operators other than linear ones."""
UPDATES = (1 << 8, 1 << 14, 1 << 17, 1 << 20)
JOINS = (32, 128, 512)
"""Rows and columns of a tensor that is joined of two halves of its columns."""
VOCABULARY = 256
KINDS = ("embedding", "norm", "attention", "activation", "add", "loss")
"""Kinds of operators that are measured."""
ATTENTIONS: tuple[Family, ...] = ("llama", "bloom")
"""Families whose attention is measured too, with more heads."""
HEAD = 32
"""Elements of one of their heads."""
OVERLAPPED = 1 << 19
"""Elements of the block that is sent while products run."""
OVERLAPS = 5
"""Number of measurements for the overlap."""


class Works:
    """All work that is measured on a mesh; every size is multiplied by `scale`."""

    def __init__(self, mesh: Mesh, scale: int = 1) -> None:
        self.mesh, self.scale = mesh, scale
        self.item, self.transfers = mesh.dtype.itemsize, Transfers(mesh, scale)

    def local(self) -> Iterator[Measured]:
        """Yield all work without messages."""
        yield from self.products()
        yield from self.passes()
        yield from self.operators()
        yield from self.updates()
        yield from self.joins()

    @property
    def count(self) -> int:
        """Number of measurements."""
        kinds = len(KINDS) + len(ATTENTIONS)
        return (len(PRODUCTS) + len(PASSES) + kinds * len(MODELS) + len(UPDATES) + len(JOINS)
                + self.transfers.count + OVERLAPS)  # fmt: skip

    @property
    def _dtype(self) -> str:
        return str(self.mesh.dtype).split(".")[1]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.mesh.device, dtype=self.mesh.dtype)

    def products(self) -> Iterator[Measured]:
        """Yield products of the executor, without communication."""
        for shape in PRODUCTS:
            M, N, K = (self.scale * size for size in shape)
            touched = (M * N + N * K + M * K) * self.item
            takes = {"starts": 1.0, "operations": 2.0 * M * N * K, "bytes": float(touched)}
            yield "product", f"{M} x {N} x {K}", takes, self.multiplying(M, N, K)

    def multiplying(self, M: int, N: int, K: int) -> Work:
        """Return one product of this size on each rank."""
        mesh = self.mesh
        program = lower(mesh.sequence, Linear(M=mesh.ranks * M, N=N, K=K), ("forward",))
        return running(Executor(mesh, freed(program)))

    def passes(self) -> Iterator[Measured]:
        """Yield copies, which read and write every element once."""
        for size in PASSES:
            source, target = self._random(self.scale * size), self._random(self.scale * size)
            takes = {"starts": 1.0, "bytes": 2.0 * source.numel() * self.item}
            yield "pass", f"{source.numel()} elements", takes, _copying(source, target)

    def _model(self, rows: int, hidden: int, family: Family = "gpt", heads: int = 4) -> ModelConfig:
        return ModelConfig.of(family, layers=1, hidden=hidden, heads=heads, context=min(rows, 128),
                              vocabulary=VOCABULARY)  # fmt: skip

    def operators(self) -> Iterator[Measured]:
        """Yield operators other than linear ones, forward and backward, replicated on all ranks.

        Those of one size follow one another, as in a step.
        """
        for rows, hidden in MODELS:
            sizes = self.scale * rows, self.scale * hidden
            yield from self._operators(self._model(*sizes), sizes[0], KINDS)
            for family in ATTENTIONS:
                model = self._model(*sizes, family, max(4, sizes[1] // HEAD))
                yield from self._operators(model, sizes[0], ("attention",))

    def _operators(
        self, model: ModelConfig, rows: int, kinds: Collection[str]
    ) -> Iterator[Measured]:
        """Yield the first operator of each of some kinds."""
        batch, ranks = rows // model.context, self.mesh.ranks
        settings = StepSettings(model, batch, model.context)
        plan = preset_plan("data", model, 1)
        attention = attention_of(plan, batch, model.context, causal=False)
        program = lower_step(plan, batch, model.context, "gradients")
        first = {operator.kind: operator for operator in reversed(operators(model))}
        for kind, operator in first.items():
            if kind in kinds:
                part = part_of(program, operator, ranks)
                takes = counts(part, attention, self._dtype)
                work = running(Executor(self.mesh, freed(part), settings), VOCABULARY)
                yield kind, f"{rows} x {operator.K}", takes, work

    def updates(self) -> Iterator[Measured]:
        """Yield AdamW of one parameter, with its term in the norm of the gradient."""
        passes = kernels(self._model(64, 64), 32, self._dtype).update
        for size in UPDATES:
            w, m, gradient = (self._random(self.scale * size) for _ in range(3))
            takes = {"starts": float(passes.starts), "bytes": w.numel() * passes.bytes}
            work = self._updating(w, m, m.square(), gradient)
            yield "update", f"{w.numel()} elements", takes, work

    def joins(self) -> Iterator[Measured]:
        """Yield joins of blocks that are side by side, whose rows are apart in the whole."""
        for size in JOINS:
            side = self.scale * size
            halves = ("x.half[0,0]", "x.half[0,1]")
            nodes: tuple[Instruction, ...] = Join(halves, "x[0,0]"), *map(Free, (*halves, "x[0,0]"))
            program = Program(
                format="primepar-program", version=1, ranks=self.mesh.ranks,
                programs=(nodes,) * self.mesh.ranks, initial=(halves,) * self.mesh.ranks,
                final=((),) * self.mesh.ranks,
                tensors={"x.half": Tensor(cuts=((0, side), (0, side // 2, side))),
                         "x": Tensor(cuts=((0, side), (0, side)))},
            )  # fmt: skip
            takes = {"starts": 1.0, "bytes": 2.0 * side * side * self.item}
            yield "join", f"{side} x {side}", takes, running(Executor(self.mesh, program))

    def _updating(self, *blocks: torch.Tensor) -> Work:
        """Return an update of a parameter and its moments by a gradient."""
        phase = Phase("update", (), Template("w", ()), "sum", None)
        site = Site(phase, "w", (), (), StepSettings(self._model(64, 64), 1, 1))
        squares, first, second, adamw = (
            KERNELS[name]
            for name in ("clip.squares", "first.update", "second.update", "adamw.update")
        )
        w, m, v, gradient = blocks
        total = gradient.new_empty(1, dtype=self.mesh.wide_dtype)

        def work() -> None:
            squares(site, NOTHING, total, gradient)
            first(site, NOTHING, m, m, gradient)
            second(site, NOTHING, v, v, gradient)
            adamw(site, NOTHING, w, w, m, v)

        return work


def part_of(program: Program, operator: Operator, ranks: int) -> Program:
    """Return the program in which every rank computes one operator of a one-device step.

    The sum of the gradients that two operators send back belongs to the addition, as in the cost
    model.
    """
    phases = {
        name
        for name, signature in (program.phases or {}).items()
        if name.startswith(f"{operator.name}.")
        and (operator.kind == "add" or signature.kernel != "sum.fan-in")
    }
    (instructions,) = program.programs
    computes = [node for node in instructions if isinstance(node, Compute) and node.phase in phases]
    made = dict.fromkeys(node.accumulates for node in computes)
    given = dict.fromkeys(name for node in computes for name in node.reads if name not in made)
    return msgspec.structs.replace(
        program,
        ranks=ranks,
        programs=(tuple(computes),) * ranks,
        initial=(tuple(given),) * ranks,
        final=(tuple(made),) * ranks,
    )


def _copying(source: torch.Tensor, target: torch.Tensor) -> Work:
    return lambda: target.copy_(source)


def measure(works: Works, watch: Stopwatch) -> list[Sample]:
    """Measure all work: each with its terms and its seconds; a collective call."""
    local, transfers = list(works.local()), list(works.transfers.all())
    times = watch.in_turn([work for *_, work in local])
    times += watch.seconds([work for *_, work in transfers])
    return [
        Sample(what, size, takes, seconds)
        for (what, size, takes, _), seconds in zip((*local, *transfers), times, strict=True)
    ]


def hidden(works: Works, watch: Stopwatch) -> float:
    """Return the overlap: the part of the shorter time that is saved.

    Products run while a block is sent. 1 means that the shorter of the two is hidden completely,
    0 that nothing is hidden.
    """
    mesh = works.mesh
    size = works.scale * OVERLAPPED
    after, before = (mesh.rank + 1) % mesh.ranks, (mesh.rank - 1) % mesh.ranks
    messages = (
        ISend(peer=after, block="given", request="given"),
        IRecv(peer=before, block="gotten", request="gotten"),
    )
    members = {"world": tuple(range(mesh.ranks))}
    mesh.ensure_groups(members.items())
    start = post(mesh, messages, [[works._random(size)] for _ in messages], members)
    multiply = works.multiplying(*(works.scale * 128,) * 3)

    def hop() -> None:
        start().wait()

    hop_seconds, product_seconds = watch.seconds([hop, multiply])
    repetitions = max(1, round(hop_seconds / product_seconds))

    def products() -> None:
        for _ in range(repetitions):
            multiply()

    def both() -> None:
        pending = start()
        products()
        pending.wait()

    moving, alone, together = watch.seconds([hop, products, both])
    return (moving + alone - together) / min(moving, alone)
