"""PatrickStar: parameters, gradients and optimizer states in chunks between host and device.

Source: Fang, Zhu, Li, Su, Yu, Zhou, You: PatrickStar: Parallel Training of Pre-trained Models via
Chunk-based Memory Management, IEEE TPDS 34(1), 2023. The mechanisms are those of its code.

Tensors are packed in order into chunks of one capacity. A chunk moves as a whole between host and
device. An instruction needs its chunks on the device; to make room, the chunk with the furthest
next use goes to the host. The uses are known from the first step on, as all steps are alike. The
program here is a step of linear layers, `X1 = X0 W1` and so on, with AdamW's four states of each
weight: `W` of the products, its `master` copy, and the moments `m` and `v`.

Gradient over parameter: after backward has used `W`, its gradient takes its place in the chunk. The
new `W` is made from the master copy. With 2 bytes for `W` and 4 for each other state, a parameter
takes 2 + 4 + 4 + 4 = 14 bytes. Issue 69 of PatrickStar's repository counts 18 in DeepSpeed.

With several ranks the batch is sharded. Chunk i of each group of p consecutive chunks is on rank i.
The first use of a group gathers all of its chunks. After forward, and again after backward, the
copies from other ranks are released. Gradients are reduced to the owner, which updates its states.

Sent per rank and step: two all-gathers of `W` and one reduce-scatter of its gradient,
3 (p - 1) / p elements per parameter. A group that lacks chunks, or a tensor in one of them, is sent
chunk by chunk instead, by broadcasts and reductions.
Held per rank: at most the device limit; the rest of its 1/p of all states is in host memory.

What is ours: a step starts and ends with all states on hosts, and where chunks differ in size the
eviction of the least recently used chunk is taken if it moves less.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from primepar.passes.free_early import free_early
from primepar.passes.offload import (
    ChunkLayout,
    least_limit,
    moved_elements,
    offload,
    packed,
)
from primepar.schedule.program import (
    AllGather,
    Broadcast,
    Compute,
    Free,
    Instruction,
    Program,
    Reduce,
    ReduceScatter,
)
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.signature import Signature, Tensor

TensorState = Literal["hold", "hold after forward", "hold after backward"]
"""PatrickStar's states of a weight that nothing uses now: where in the step it was used last."""
HOLD: TensorState = "hold"
HOLD_AFTER_FWD: TensorState = "hold after forward"
HOLD_AFTER_BWD: TensorState = "hold after backward"
STATES = ("", ".master", ".m", ".v")
"""The states of a weight: `W1`, `W1.master`, `W1.m` and `W1.v`."""
Size = Annotated[int, Meta(ge=1, le=64)]


class PatrickStar(ProgramMethod, frozen=True, kw_only=True):
    """Chunks of parameters and optimizer states between host and device, under a limit."""

    name: ClassVar[str] = "patrickstar"

    layers: Size = 8
    """Linear layers."""
    hidden: Size = 2
    """Side of each weight."""
    rows: Size = 2
    """Rows of the input on each rank."""
    chunk: Annotated[int, Meta(ge=1)] = 8
    """Elements of a chunk."""
    ranks: Size = 2
    device: Annotated[int, Meta(ge=0)] = 0
    """Elements of device memory; 0 is the least that is enough."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.layout.chunks  # raises for a chunk smaller than a weight

    @cached_property
    def layout(self) -> ChunkLayout:
        """The chunks of the weights; their other states have the same ones."""
        return packed({f"W{l}": self.hidden**2 for l in range(1, self.layers + 1)}, self.chunk)

    @cached_property
    def chunks(self) -> dict[str, str]:
        """Block -> its chunk. A weight, its gradient and the new weight share their place."""
        places: dict[str, str] = {}
        for name, number in self.layout.places.items():
            for state in STATES:
                for block in (f"{name}{state}[0,0]", f"{name}{state}.new[0,0]"):
                    places[block] = f"W{state} {number}"
            places[f"{name}.grad[0,0]"] = f"W {number}"
        return places

    @cached_property
    def resident(self) -> Program:
        """The step with all states on the devices, without fetches and evictions."""
        return free_early(_Step(self).program())

    @cached_property
    def least(self) -> int:
        """The least elements of device memory."""
        return least_limit(self.resident, chunks=(self.chunks,) * self.ranks)

    def program(self) -> Program:
        """Return the program of a step. Raises `MemoryLimitError` for too small a device."""
        return offload(self.resident, self.device or self.least, chunks=(self.chunks,) * self.ranks)

    def facts(self) -> dict[str, str]:
        """Chunks and memory in closed form, and what this program moves."""
        weights, program = self.layers * self.hidden**2, self.program()
        layout, limit = self.layout, 0 if program.memory is None else program.memory.device or 0
        return {
            "chunks of the weights": f"{len(layout.chunks)}, {float(layout.utilisation):.0%} full",
            "bytes of a parameter": "14",
            "elements of all states": f"{len(STATES) * weights}",
            "least device memory": f"{self.least} elements",
            "device memory": f"{limit} elements",
            "moved per step and rank": f"{max(moved_elements(program))} elements",
        }


class _Step:
    """Builds the lists of all ranks together: they differ in their rows and their chunks."""

    def __init__(self, sizes: PatrickStar) -> None:
        self.sizes, self.layout, self.ranks = sizes, sizes.layout, sizes.ranks
        self.lists: list[list[Instruction]] = [[] for _ in range(sizes.ranks)]
        self.states = dict.fromkeys(self.layout.places, HOLD)
        self.gathered: set[int] = set()
        """First chunks of the groups whose chunks are on every rank."""

    def program(self) -> Program:
        everyone = range(1, self.sizes.layers + 1)
        for layer in everyone:
            self._forward(layer)
        self.states = dict.fromkeys(self.states, HOLD)
        self._products("loss", (f"X{everyone[-1]}", "T"), f"dX{everyone[-1]}")
        for layer in reversed(everyone):
            self._backward(layer)
        for layer in everyone:
            self._update(layer)
        return Program(
            "primepar-program", 1, self.ranks, tuple(map(tuple, self.lists)),
            grid=self._grid(), phases=dict(self._phases()), tensors=dict(self._tensors()),
            initial=tuple(
                (f"X0[{rank},0]", f"T[{rank},0]", *self._held(rank, "[0,0]"))
                for rank in range(self.ranks)
            ),
            final=tuple(self._held(rank, ".new[0,0]") for rank in range(self.ranks)),
            traffic=self._traffic(),
        )  # fmt: skip

    # What runs

    def _forward(self, layer: int) -> None:
        self._access(layer)
        self._products(f"forward{layer}", (f"X{layer - 1}", f"W{layer}"), f"X{layer}")
        self._hold(layer, HOLD_AFTER_FWD)

    def _backward(self, layer: int) -> None:
        self._access(layer)
        name = f"W{layer}"
        if layer > 1:
            self._products(f"backward{layer}", (f"dX{layer}", name), f"dX{layer - 1}")
        # The weight goes before its gradient comes: they share one place.
        for nodes in self.lists:
            nodes.append(Free(f"{name}[0,0]"))
        self._products(f"gradient{layer}", (f"X{layer - 1}", f"dX{layer}"), f"{name}.grad")
        self._hold(layer, HOLD_AFTER_BWD)

    def _update(self, layer: int) -> None:
        name, owner = f"W{layer}", self._owner(layer)
        for phase, (reads, writes) in _updates(name).items():
            blocks = tuple(f"{tensor}[0,0]" for tensor in reads)
            cell = {"N": 0, "K": 0}
            self.lists[owner].append(Compute(blocks, f"{writes}[0,0]", phase, cell))

    def _products(self, phase: str, reads: tuple[str, str], writes: str) -> None:
        """Every rank computes a phase with its rows."""
        for rank, nodes in enumerate(self.lists):
            blocks = [f"{name}[{0 if name[0] == 'W' else rank},0]" for name in (*reads, writes)]
            cell = {"M": rank, "K": 0} if phase == "loss" else {"M": rank, "N": 0, "K": 0}
            nodes.append(Compute(tuple(blocks[:-1]), blocks[-1], phase, cell))

    # Chunks over ranks

    def _owner(self, layer: int) -> int:
        return self.layout.places[f"W{layer}"] % self.ranks

    def _group(self, layer: int) -> range:
        return self.layout.group(self.layout.places[f"W{layer}"], self.ranks)

    def _slots(self, group: range) -> Iterator[list[str]]:
        """Yield the first tensor of every chunk of a group that has one, then the second ones."""
        chunks = [self.layout.chunks[number] for number in group]
        for slot in range(max(map(len, chunks))):
            yield [names[slot] for names in chunks if slot < len(names)]

    def _access(self, layer: int) -> None:
        """Gather the chunks of a weight's group where they are released."""
        group = self._group(layer)
        if self.ranks == 1 or group[0] in self.gathered:
            return
        self.gathered.add(group[0])
        # One collective for each tensor of the chunks: the chunks of a group are gathered together,
        # the i-th tensor of each in one call.
        for names in self._slots(group):
            blocks = tuple(f"{name}[0,0]" for name in names)
            if len(blocks) == self.ranks:
                self._collective(
                    lambda rank, b=blocks: AllGather(self._all, block=b[rank], blocks=b)
                )
            else:
                for block, root in zip(blocks, self._all, strict=False):
                    self._collective(
                        lambda _, b=block, r=root: Broadcast(self._all, block=b, root=r)
                    )

    def _hold(self, layer: int, state: TensorState) -> None:
        """Set a weight's state; release the group when all weights of its chunks have this state.

        Example: W1 and W2 share a chunk. After the forward of W1 the chunk is still needed, for W2.
        """
        group = self._group(layer)
        self.states[f"W{layer}"] = state
        # A chunk is released as a whole: one weight that is still needed keeps all of its group
        # gathered.
        weights = (name for number in group for name in self.layout.chunks[number])
        if self.ranks == 1 or any(self.states[name] != state for name in weights):
            return
        self.gathered.discard(group[0])
        if state == HOLD_AFTER_BWD:
            self._reduce(group)
        suffix = ".grad" if state == HOLD_AFTER_BWD else ""
        for number in group:
            for name in self.layout.chunks[number]:
                for rank in set(self._all) - {number % self.ranks}:
                    self.lists[rank].append(Free(f"{name}{suffix}[0,0]"))

    def _reduce(self, group: range) -> None:
        """Sum the gradients of a group's chunks, each on its owner."""
        for names in self._slots(group):
            blocks = tuple(f"{name}.grad[0,0]" for name in names)
            if len(blocks) == self.ranks:
                self._collective(
                    lambda rank, b=blocks: ReduceScatter(self._all, blocks=b, block=b[rank])
                )
            else:
                for block, root in zip(blocks, self._all, strict=False):
                    self._collective(lambda _, b=block, r=root: Reduce(self._all, block=b, root=r))

    @property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.ranks))

    def _collective(self, of: Any) -> None:
        for rank, nodes in enumerate(self.lists):
            nodes.append(of(rank))

    # What it means

    def _traffic(self) -> tuple[str, ...] | None:
        """The elements that leave each rank, where all groups have the same tensors on all ranks.

        Three collectives, each as a ring: (p - 1) / p of what they gather or reduce.
        """
        counts = [len(names) for names in self.layout.chunks]
        groups = [counts[first : first + self.ranks] for first in range(0, len(counts), self.ranks)]
        if any(len(group) < self.ranks or len(set(group)) > 1 for group in groups):
            return None
        elements = 3 * (self.ranks - 1) * sum(self.layout.sizes.values())
        return (f"{elements}/{self.ranks}",) * self.ranks

    def _held(self, rank: int, suffix: str) -> tuple[str, ...]:
        """The blocks of the states of a rank's own chunks."""
        return tuple(
            f"{name}{state}{suffix}"
            for number, names in enumerate(self.layout.chunks)
            if number % self.ranks == rank
            for name in names
            for state in STATES
        )

    def _phases(self) -> Iterator[tuple[str, Signature]]:
        last = self.sizes.layers
        yield "loss", Signature((f"X{last}[M,K]", "T[M,K]"), f"dX{last}[M,K]", kernel="sum.fan-in")
        for layer in range(1, last + 1):
            x, w, dx = f"X{layer - 1}[M,N]", f"W{layer}", f"dX{layer}[M,K]"
            yield (
                f"forward{layer}",
                Signature((x, f"{w}[N,K]"), f"X{layer}[M,K]", kernel="linear.forward"),
            )
            if layer > 1:
                yield (
                    f"backward{layer}",
                    Signature((dx, f"{w}[N,K]"), f"dX{layer - 1}[M,N]", kernel="linear.backward"),
                )
            yield f"gradient{layer}", Signature((x, dx), f"{w}.grad[N,K]", kernel="linear.gradient")
            for phase, (reads, writes) in _updates(w).items():
                kernel = KERNELS[phase.rpartition(".")[2]]
                templates = tuple(f"{tensor}[N,K]" for tensor in reads)
                yield phase, Signature(templates, f"{writes}[N,K]", kernel=kernel)

    def _grid(self) -> dict[str, dict[str, int]]:
        grid = {name: {"N": 1, "K": 1} for name, _ in self._phases()}
        for name, signature in self._phases():
            if "M" in signature.dims:
                grid[name] = {"M": self.ranks, **({} if name == "loss" else {"N": 1}), "K": 1}
        return grid

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        side, rows = (0, self.sizes.hidden), self.sizes.rows
        across = Tensor((tuple(rows * rank for rank in range(self.ranks + 1)), side))
        for layer in range(self.sizes.layers + 1):
            yield f"X{layer}", across
            if layer:
                yield f"dX{layer}", across
                states = [f"{state}{new}" for state in STATES for new in ("", ".new")]
                for state in (*states, ".grad"):
                    yield f"W{layer}{state}", Tensor((side, side))
        yield "T", across


KERNELS = {
    "first": "first.update",
    "second": "second.update",
    "master": "adamw.update",
    "copy": "sum.fan-in",
}


def _updates(name: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Phase -> what it reads and writes: both moments, the master copy, and the new weight."""
    return {
        f"{name}.first": ((f"{name}.m", f"{name}.grad"), f"{name}.m.new"),
        f"{name}.second": ((f"{name}.v", f"{name}.grad"), f"{name}.v.new"),
        f"{name}.master": (
            (f"{name}.master", f"{name}.m.new", f"{name}.v.new"),
            f"{name}.master.new",
        ),
        f"{name}.copy": ((f"{name}.master.new",), f"{name}.new"),
    }
