"""Executes this rank's list of a program: it is compiled once and runs in every training step."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from primepar.distributed.runtime.backend_support import check_backend
from primepar.distributed.runtime.collectives import run_once
from primepar.distributed.runtime.compiler import Compiler
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.host_memory import DeviceCount
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.recorder import Recorder
from primepar.distributed.runtime.running import Action, Blocks, Frame, Running
from primepar.distributed.runtime.sent_count import sent_by
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import MeshError, ProgramError
from primepar.operators import StepInputs, StepSettings
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.ledger import peak
from primepar.schedule.one_queue import check_order, in_one_queue
from primepar.schedule.program import Program
from primepar.schedule.transport import communicators, message_peers

NOTHING = StepInputs()
"""The inputs of programs that need none: one linear operator, or a redistribution."""


class Executor:
    """One rank's list of `program`, ready to run on torch blocks.

    Constructed by all ranks together, as it creates process groups. What linear operators send is
    counted as "linear", the rest as `kind`. All phases except those of linear operators need
    `settings`. With a `proved` program every run is observed and compared with it. The memory of
    `donated` blocks that the program frees may be used for new blocks: an update is done in place.
    Raises `MeshError` for a program of another number of ranks, and `ProgramError` for a phase
    without a kernel, a block without a size, a block that is used before it exists, an instruction
    that the mesh's backend does not have, or a call of blocks of two dtypes. If the mesh is
    ordered (NCCL), adjacent posts are one batch, a wait is for all messages of its batch, and
    posts that would hold up others move (`in_one_queue`). A program that would still hang is a
    `ProgramError`.
    """

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        settings: StepSettings | None = None,
        kind: str = "other",
        proved: Program | None = None,
        donated: Collection[str] = (),
    ) -> None:
        if program.ranks != mesh.ranks:
            raise MeshError(
                f"program: expected one of {mesh.ranks} ranks, got {program.ranks}: "
                "lower it for this mesh"
            )
        check_backend(program, mesh.backend, mesh.device.type, (mesh.dtype, mesh.wide_dtype))
        if mesh.is_ordered:
            program = in_one_queue(program)
            check_order(program)
        mesh.ensure_groups(communicators(program), message_peers(program, mesh.rank))
        if mesh.is_ordered:
            run_once(mesh, program)
        self.mesh, self.shapes = mesh, Shapes(program)
        self.initial = initial_blocks(program)[mesh.rank]
        counts = mesh.limit is not None or proved is not None
        self._count = DeviceCount(mesh.limit, mesh.rank) if counts else None
        self.watch = (
            None
            if proved is None or self._count is None
            else Watch(proved, Shapes(proved), self._count, mesh.first)
        )
        observer = self.watch or self._count
        compiler = Compiler(mesh, program, self.shapes, settings, self.watch, observer, donated)
        self.steps = compiler.steps()
        """The compiled list, in order."""
        self._given, self._buffers = compiler.places.given, compiler.places.buffers
        self._running = Running(self.steps, mesh.rank, mesh.first)
        self.host_initial = host_blocks(program)[mesh.rank]
        self._checked = False
        self.sent = sent_by(program.programs[mesh.rank], mesh, self.shapes, kind)
        """Kind of work, elements that this rank sends in a run, and bytes of each."""
        self.peak = peak(program, mesh.rank, self.shapes.elements)
        """Largest number of live elements on this rank, as the program counts them."""

    def precede(self, action: Callable[[int], Action]) -> None:
        """Do `action(place)` before the instructions from `place` on, of each compiled step.

        For measurements, in all runs from now on.
        """
        place = 0
        for step in self.steps:
            step.actions.insert(0, action(place))
            place += len(step.instructions)
        self._running = Running(self.steps, self.mesh.rank, self.mesh.first)

    @property
    def measured(self) -> int:
        """Largest number of elements on the device in the last run, where it is counted."""
        return 0 if self._count is None else self._count.peak

    def __call__(
        self,
        blocks: Blocks,
        inputs: StepInputs = NOTHING,
        host: Blocks | None = None,
    ) -> Blocks:
        """Run on the `initial` blocks, by name and contiguous; returns the same dict.

        Freed blocks are removed from it, new ones are added; they have memory of their own, which
        no later run uses. Given blocks are never written, except donated ones. `host` has the
        blocks of `host_initial`. Blocks move between both dicts as the program fetches and evicts
        them.
        Raises `ProgramError` for a missing block. The first run also raises it for a block of
        another shape. On a mesh with a limit it raises `MemoryLimitError` if the blocks on the
        device exceed it.
        """
        self._check_given(self.initial, blocks, "initial")
        self._check_given(self.host_initial, host or {}, "host_initial")
        frame = Frame(blocks, inputs, host)
        try:
            with torch.no_grad():
                self._run(frame)
        except BaseException:  # else the list itself releases all memory
            for buffer in self._buffers:
                buffer.clear()
            raise
        self._checked = True
        self._running.stop()
        self.mesh.host.finish()
        return blocks

    def bind(self, blocks: Blocks) -> None:
        """Let the steps read these as the blocks that the program is given."""
        for name, buffer in self._given.items():
            buffer.bind(blocks[name])

    def _run(self, frame: Frame) -> None:
        self.bind(frame.blocks)
        self.mesh.running = self._running
        if self._count is not None:
            self._count.start(frame.blocks)
        if self.watch is not None:
            self.watch.run(self._running.steps(), frame)
        elif self.mesh.events is not None:
            Recorder(self.mesh, self.shapes, self.mesh.events).run(self._running.steps(), frame)
        else:
            for action in self._running.actions():
                action(frame)

    def _check_given(self, names: tuple[str, ...], blocks: Blocks, field: str) -> None:
        missing = next((name for name in names if name not in blocks), None)
        if missing is not None:
            raise ProgramError(
                f"rank {self.mesh.rank}: expected {len(names)} blocks before the program, "
                f"got none named {missing}: give the blocks that the program lists in {field}"
            )
        for name in () if self._checked else names:
            expected, got = self.shapes.shape(name), tuple(blocks[name].shape)
            if got != expected:
                raise ProgramError(
                    f"rank {self.mesh.rank}: expected block {name} of shape {list(expected)}, "
                    f"got {list(got)}: give this rank's part"
                )
