"""Compares what a rank does with the list of instructions that was proved.

A run is observed at three interfaces: the process groups (every message and collective, with its
peers and elements, and every wait), the kernels (phase and boxes) and scales, and the slots of
blocks (read, made, freed). The closures run one after another; the k-th one must do what the k-th
instruction defines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from primepar.distributed.kernels import Kernel
from primepar.distributed.kernels.linear import Product
from primepar.distributed.runtime.host_memory import DeviceCount
from primepar.distributed.runtime.memory import Slot
from primepar.distributed.runtime.observed_groups import (
    ObservedCall,
    Seen,
    waited,
    watched_groups,
)
from primepar.distributed.runtime.running import CompiledStep, Frame
from primepar.distributed.runtime.scales import Factor, is_scaled
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ConformanceError
from primepar.operators import Site, StepInputs
from primepar.schedule.effects import effects, frees
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Compute,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)
from primepar.schedule.program_file import instruction_text


class _NotedSlot(list[Any]):
    """The slot of a block, or of a view of it, that notes every read."""

    def __init__(self, name: str, seen: Seen) -> None:
        super().__init__([None])
        self._name, self._seen = name, seen

    def __getitem__(self, place: Any) -> Any:
        self._seen.read.add(self._name)
        block = super().__getitem__(place)
        if block is None:
            raise KeyError(self._name)
        return block


class Watch:
    """Runs one rank's closures, and compares each with its instruction in the `proved` program."""

    def __init__(self, proved: Program, shapes: Shapes, count: DeviceCount, first: int = 0) -> None:
        self.rank, self.shapes, self.seen = count.rank, shapes, Seen(first)
        self._proved, self._count = proved.programs[self.rank], count
        self._posted: dict[str, list[ObservedCall]] = {}
        self._here: set[str] = set()
        """The blocks that exist."""
        self.peak = 0
        """Largest number of elements in memory after an instruction; shared memory counts once."""
        self.instructions = 0
        """Number of instructions in the last run."""

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return the kernel with every call noted."""

        def noted(site: Site, inputs: StepInputs, *blocks: torch.Tensor) -> torch.Tensor | None:
            self.seen.calls.append(_kernel_call(site.phase.name, site.reads, site.writes))
            return kernel(site, inputs, *blocks)

        return noted

    def product(self, site: Site, multiply: Product) -> Product:
        """Return a product into a block with every call noted."""

        def noted(*arguments: Any) -> None:
            self.seen.calls.append(_kernel_call(site.phase.name, site.reads, site.writes))
            multiply(*arguments)

        return noted

    def factor(self, factor: Factor) -> Factor:
        """Return a scale's function with every call noted."""

        def noted() -> float:
            scale = factor()
            self.seen.calls.append(ObservedCall("scale", (scale,)))
            return scale

        return noted

    def slot(self, name: str) -> Slot:
        """Return a slot for a block, or for a view of it, that notes every read."""
        return _NotedSlot(name, self.seen)

    def made(self, name: str, block: torch.Tensor) -> None:
        """Note a block that has memory now."""
        self.seen.made.add(name)
        self._here.add(name)
        self._count.made(name, block)

    def gone(self, name: str, block: torch.Tensor) -> None:
        """Note a block that ends."""
        self.seen.gone.add(name)
        self._here.remove(name)
        self._count.gone(name, block)

    def run(self, steps: Iterable[CompiledStep], frame: Frame) -> None:
        """Run all steps.

        Raises `ConformanceError` at the first step that differs from its instruction.
        """
        position, self._here = 0, set(frame.blocks)
        before, self.peak = set(self._here), self._count.elements
        with watched_groups(self.seen):
            for step in steps:
                self.seen.clear()
                due = self._proved[position : position + len(step.instructions)]
                try:
                    step.run(frame)
                except KeyError as error:
                    self._fail(position, f"a use of {error.args[0]}, which does not exist", due)
                if not step.instructions:
                    continue
                self._compare(position, due, before)
                before = set(self._here)
                self.peak = max(self.peak, self._count.elements)
                position += len(step.instructions)
        if position != len(self._proved):
            self._fail(position, "nothing", self._proved[position:])
        self.instructions = position

    def _compare(self, position: int, due: tuple[Instruction, ...], before: set[str]) -> None:
        seen = self.seen
        calls = [call for node in due for call in self._calls(node)]
        if len(due) > 1:  # a batch of posts: the first wait for one of them is for all
            requests = [node.request for node in due if isinstance(node, ISend | IRecv)]
            waits = [call for request in requests for call in self._posted[request]]
            self._posted.update(dict.fromkeys(requests, waits))
        if seen.calls != calls:
            self._fail(position, ", ".join(map(str, seen.calls)) or "no call", due)
        written = {name for node in due for name in effects(node, self.rank).writes}
        named = written | {name for node in due for name in effects(node, self.rank).reads}
        if not {name for node in due for name in _read(node, self.rank)} <= seen.read:
            self._fail(position, f"only {', '.join(sorted(seen.read)) or 'nothing'} read", due)
        made = written - before
        gone = {name for node in due for name in frees(node)}
        if not made <= seen.made or seen.made - named:
            self._fail(position, f"{', '.join(sorted(seen.made)) or 'nothing'} made", due)
        if not gone <= seen.gone or seen.gone - named:
            self._fail(position, f"{', '.join(sorted(seen.gone)) or 'nothing'} freed", due)

    def _calls(self, node: Instruction) -> list[ObservedCall]:
        """Return the communication and the kernel calls of an instruction."""
        match node:
            case Compute(phase=str()):
                phase = self.shapes.meaning.phases[str(node.phase)]
                slices = node.sub_operator or {}
                boxes = [
                    self.shapes.box(template.block(slices))
                    for template in (*phase.reads, phase.writes)
                ]
                return [*self._scale(node), _kernel_call(phase.name, tuple(boxes[:-1]), boxes[-1])]
            case Compute():
                return self._scale(node)
            case Wait(request=request):
                posted = self._posted.pop(request, [])
                calls = posted.copy()
                posted.clear()
                return calls
            case Send() | Recv():
                return [self._message(node), waited(self._message(node))]
            case Group(body=body):
                posts = [self._message(message) for message in body]
                return [*posts, *map(waited, posts)]
            case ISend() | IRecv():
                self._posted[node.request] = [waited(self._message(node))]
                return [self._message(node)]
            case _ if isinstance(node, Collective):
                calls = [self._collective(node)] if len(node.group) > 1 else []
                later = [*map(waited, calls), *self._scale(node)]
                if node.request is None:
                    return [*calls, *later]
                self._posted[node.request] = later
                return calls
            case _:
                return []

    def _scale(self, node: Compute | Collective) -> list[ObservedCall]:
        """Return the multiplication by an instruction's scale, if this rank does one."""
        if not is_scaled(node, self.rank):
            return []
        return [ObservedCall("scale", (float(node.scale_value),))]

    def _message(self, node: Message) -> ObservedCall:
        way = "send" if isinstance(node, Send | ISend) else "recv"
        return ObservedCall(way, (node.peer,), self.shapes.elements(node.block))

    def _collective(self, node: Collective) -> ObservedCall:
        names: tuple[str, ...] = ()
        match node:
            case AllToAll(blocks=blocks):
                names = blocks
            case AllReduce(reduced=blocks):
                names = blocks
            case ReduceScatter(block=block) | AllGather(block=block):
                names = (block,)
            case Reduce() | Broadcast():
                names = (node.block,)
        elements = sum(map(self.shapes.elements, names))
        op = str(node.__struct_config__.tag)
        return ObservedCall(op, tuple(sorted(node.group)), elements)

    def _fail(self, position: int, seen: str, due: tuple[Instruction, ...]) -> None:
        texts = [" ".join(instruction_text(node).split()) for node in due[:3]]
        raise ConformanceError(
            f"rank {self.rank}, instruction {position}: expected {'; '.join(texts) or 'the end'}, "
            f"as proved, got {seen}: the executor does not run the list that was proved"
        )


def _read(node: Instruction, rank: int) -> tuple[str, ...]:
    """Return the blocks that must be read by name.

    Only computes and messages: views of one buffer are cut and gathered through the buffer.
    """
    return effects(node, rank).reads if isinstance(node, Compute | Message) else ()


def _kernel_call(phase: str, reads: tuple[Any, ...], made: Any) -> ObservedCall:
    return ObservedCall(phase, (*reads, made))
