"""What a rank really does, seen from outside its closures, beside the list that was proved.

A run is watched at three borders: the process groups (every message and collective, with its peers
and elements, and every wait), the kernels (phase and boxes), and the blocks (read, made, gone). The
closures run one after another; what the k-th is seen to do must be what the k-th instruction says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from primepar.distributed.kernels import Kernel
from primepar.distributed.kernels.linear import Product
from primepar.distributed.runtime.messages import CompiledStep, Frame
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ConformanceError
from primepar.operators import Site, StepInputs
from primepar.schedule.program import (
    AllGather,
    AllToAll,
    Barrier,
    Collective,
    Compute,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    ReduceScatter,
    Send,
    Wait,
)
from primepar.schedule.program_file import instruction_text
from primepar.schedule.program_uses import frees, uses, writes

Message = Send | Recv | ISend | IRecv


class ObservedCall(NamedTuple):
    """A message, a collective, a wait for one of these, or a kernel."""

    what: str
    with_whom: tuple[object, ...] = ()
    elements: int = 0

    def __str__(self) -> str:
        """How errors name it, `send (3,) of 64 elements`."""
        of = f" of {self.elements} elements" if self.elements else ""
        return f"{self.what} {', '.join(map(str, self.with_whom))}{of}"


METHODS: dict[str, tuple[str, int]] = {
    "send": ("send", 0),
    "recv": ("recv", 0),
    "allreduce": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter", 0),
    "reduce_scatter_single": ("reduce_scatter", 0),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "barrier": ("barrier", -1),
}
"""Method of a process group, in older and newer torch -> instruction, and which argument has the
elements that it names. What calls another method is seen to do nothing, and so is refused."""


class _Watched(dict[str, torch.Tensor]):
    """Blocks that note what is read, made and taken out."""

    def __init__(self, blocks: dict[str, torch.Tensor], seen: Seen) -> None:
        super().__init__(blocks)
        self._seen = seen

    def __getitem__(self, name: str) -> torch.Tensor:
        self._seen.read.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, block: torch.Tensor) -> None:
        if name not in self:
            self._seen.made.add(name)
        super().__setitem__(name, block)

    def pop(self, name: str, *default: Any) -> Any:
        """Take a block out."""
        self._seen.gone.add(name)
        return super().pop(name, *default)


class Seen:
    """What was seen since the last instruction."""

    def __init__(self) -> None:
        self.calls: list[ObservedCall] = []
        self.read: set[str] = set()
        self.made: set[str] = set()
        self.gone: set[str] = set()

    def clear(self) -> None:
        """Begin with the next instruction."""
        self.calls.clear()
        self.read.clear()
        self.made.clear()
        self.gone.clear()


class Watch:
    """Runs one rank's closures and compares each with its instruction in a `proved` program."""

    def __init__(self, proved: Program, rank: int, shapes: Shapes) -> None:
        self.rank, self.shapes, self.seen = rank, shapes, Seen()
        self._proved = proved.programs[rank]
        self._posted: dict[str, list[ObservedCall]] = {}
        self.peak = 0
        """Most elements of the memory of blocks, each piece counted once, after an instruction."""
        self.instructions = 0
        """How many were done in the last run."""

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel, noted when it is called."""

        def noted(site: Site, inputs: StepInputs, *blocks: torch.Tensor) -> torch.Tensor:
            self.seen.calls.append(_kernel_call(site.phase.name, site.reads, site.writes))
            return kernel(site, inputs, *blocks)

        return noted

    def product(self, site: Site, multiply: Product) -> Product:
        """A product into a block, noted when it is called."""

        def noted(*arguments: Any) -> None:
            self.seen.calls.append(_kernel_call(site.phase.name, site.reads, site.writes))
            multiply(*arguments)

        return noted

    def run(self, steps: list[CompiledStep], frame: Frame, *, first: bool) -> None:
        """Run all steps, with their results checked where it is the `first` run.

        Raises `ConformanceError` at the first step that does something else.
        """
        given, at = frame.blocks, 0
        frame.blocks = _Watched(given, self.seen)
        before = set(given)
        self.peak = _memory(given)
        with watched_groups(self.seen):
            for step in steps:
                self.seen.clear()
                due = self._proved[at : at + len(step.instructions)]
                try:
                    (step.first if first else step.run)(frame)
                except KeyError as error:
                    self._fail(at, f"a use of {error.args[0]}, which is not there", due)
                if not step.instructions:
                    continue
                self._compare(at, due, before)
                before = set(frame.blocks)
                self.peak = max(self.peak, _memory(frame.blocks))
                at += len(step.instructions)
        if at != len(self._proved):
            self._fail(at, "nothing", self._proved[at:])
        self.instructions = at
        given.clear()
        given.update(frame.blocks)

    def _compare(self, at: int, due: tuple[Instruction, ...], before: set[str]) -> None:
        seen = self.seen
        calls = [call for node in due for call in self._calls(node)]
        if seen.calls != calls:
            self._fail(at, ", ".join(map(str, seen.calls)) or "no call", due)
        written = {name for node in due for name in writes(node, self.rank)}
        named = written | {name for node in due for name in uses(node, self.rank)}
        if not {name for node in due for name in _read(node, self.rank)} <= seen.read:
            self._fail(at, f"only {', '.join(sorted(seen.read)) or 'nothing'} read", due)
        made = written - before
        gone = {name for node in due for name in frees(node)}
        inner = {name for name in seen.made | seen.gone if "#" in name}
        if not made <= seen.made or seen.made - inner - named:
            self._fail(at, f"{', '.join(sorted(seen.made - inner)) or 'nothing'} made", due)
        if not gone <= seen.gone or seen.gone - inner - named:
            self._fail(at, f"{', '.join(sorted(seen.gone - inner)) or 'nothing'} freed", due)

    def _calls(self, node: Instruction) -> list[ObservedCall]:
        """What an instruction does with others, and which kernel it calls."""
        match node:
            case Compute(phase=str()):
                phase = self.shapes.meaning.phases[str(node.phase)]
                slices = node.sub_operator or {}
                boxes = [
                    self.shapes.box(each.block(slices)) for each in (*phase.reads, phase.writes)
                ]
                return [_kernel_call(phase.name, tuple(boxes[:-1]), boxes[-1])]
            case Wait(request=request):
                return [_waited(call) for call in self._posted.pop(request, [])]
            case Send() | Recv():
                return [self._message(node), _waited(self._message(node))]
            case Group(body=body):
                posts = [self._message(each) for each in body]
                return [*posts, *map(_waited, posts)]
            case ISend() | IRecv():
                self._posted[node.request] = [self._message(node)]
                return [self._message(node)]
            case _ if isinstance(node, Collective) and len(node.group) > 1:
                call = self._collective(node)
                if node.request is None:
                    return [call, _waited(call)]
                self._posted[node.request] = [call]
                return [call]
            case _:
                return []

    def _message(self, node: Message) -> ObservedCall:
        way = "send" if isinstance(node, Send | ISend) else "recv"
        return ObservedCall(way, (node.peer,), self.shapes.elements(node.block))

    def _collective(self, node: Collective) -> ObservedCall:
        names: tuple[str, ...] = ()
        match node:
            case Barrier():
                pass
            case AllToAll(blocks=blocks):
                names = blocks
            case ReduceScatter(block=block) | AllGather(block=block):
                names = (block,)
            case _:
                names = (node.block,)
        elements = sum(map(self.shapes.elements, names))
        op = str(node.__struct_config__.tag)
        return ObservedCall(op, tuple(sorted(node.group)), elements)

    def _fail(self, at: int, seen: str, due: tuple[Instruction, ...]) -> None:
        texts = [" ".join(instruction_text(node).split()) for node in due[:3]]
        raise ConformanceError(
            f"rank {self.rank}, instruction {at}: expected {'; '.join(texts) or 'the end'}, "
            f"as proved, got {seen}: the executor does not run the list that was proved"
        )


def _read(node: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be read by name; views of one buffer are cut and gathered as one."""
    return uses(node, rank) if isinstance(node, Compute | Message) else ()


def _kernel_call(phase: str, reads: tuple[Any, ...], made: Any) -> ObservedCall:
    return ObservedCall(phase, (*reads, made))


def _waited(call: ObservedCall) -> ObservedCall:
    return call._replace(what=f"wait for {call.what}")


def _memory(blocks: dict[str, torch.Tensor]) -> int:
    """Elements of the memory of some blocks, each piece of memory once."""
    pieces = {}
    for block in blocks.values():
        storage = block.untyped_storage()
        pieces[storage.data_ptr()] = storage.nbytes() // block.element_size()
    return sum(pieces.values())


class _Work:
    """A work of torch, noted when it is waited for."""

    def __init__(self, work: Any, call: ObservedCall, seen: Seen) -> None:
        self._work, self._call, self._seen = work, call, seen

    def wait(self, *arguments: Any) -> Any:
        """Wait."""
        self._seen.calls.append(_waited(self._call))
        return self._work.wait(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextmanager
def watched_groups(seen: Seen) -> Iterator[None]:
    """Note every call of a process group while inside."""
    # As they stand in the class: an attribute of it would not be bound to a group again.
    kept = {name: own for name, own in vars(dist.ProcessGroup).items() if name in METHODS}
    for name in kept:
        noting = _noting(getattr(dist.ProcessGroup, name), *METHODS[name], seen)
        setattr(dist.ProcessGroup, name, noting)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(dist.ProcessGroup, name, method)


def _noting(method: Callable[..., Any], op: str, place: int, seen: Seen) -> Callable[..., Any]:
    def noted(group: dist.ProcessGroup, *arguments: Any, **named: Any) -> _Work:
        tensors = arguments[place] if place >= 0 else []
        one = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if tensors else None
        peers = (
            (arguments[1],)
            if op in ("send", "recv")
            else tuple(sorted(dist.get_process_group_ranks(group)))
        )
        call = ObservedCall(op, peers, 0 if one is None else one.numel())
        seen.calls.append(call)
        return _Work(method(group, *arguments, **named), call, seen)

    return noted
