"""The programs of a training run: of its steps, synchronous and local, and of its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain

import torch
from torch import distributed as dist

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.step_programs import StepProgram, StepPrograms
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.launch import World
from primepar.distributed.training.progress import Reporter
from primepar.distributed.training.replicas import ReplicaSteps
from primepar.distributed.training.settings import Settings, shown
from primepar.distributed.training.settings_plan import name_of, sizes_of
from primepar.errors import MemoryLimitError
from primepar.operators import Until
from primepar.plan.replicas import replicas_of
from primepar.schedule.one_queue import check_order
from primepar.schedule.program import Program

RankBytes = tuple[float, ...]
"""Bytes that each rank sends, in the order of ranks."""
Prove = Callable[[Program, str], str]
"""Proves a program, given its name, and returns the result as text; raises if it is not proved."""


class RunPrograms:
    """The programs of a run; each is lowered and compiled once.

    Constructed by all ranks together, as are its methods called.
    """

    def __init__(self, settings: Settings, world: World, state: TrainingState) -> None:
        self.settings, self.world, self.state = settings, world, state
        self.sizes = sizes_of(settings, state.plan)
        """Sequences of a batch, and tokens of each sequence."""
        options = settings.step_options(state.mesh.limit)
        self._steps = StepPrograms(state.plan, state.mesh, options, settings.conform)
        self.replicas = (
            None
            if settings.average_every is None
            else ReplicaSteps(settings, replicas_of(state.plan), state)
        )
        """The local steps of local SGD."""
        self._sent: dict[Hashable, tuple[RankBytes, RankBytes]] = {}

    @property
    def meshes(self) -> list[Mesh]:
        """The mesh of all ranks, and that of this rank's replica in local SGD."""
        return [self.state.mesh] + ([] if self.replicas is None else [self.replicas.mesh])

    @property
    def _is_synchronous(self) -> bool:
        """Whether the run has synchronous steps."""
        return self.settings.average_after > 0 or self.replicas is None

    def program(self, until: Until) -> StepProgram:
        """Return the compiled program of a synchronous step, or of the part that ends earlier."""
        return self._steps.program(*self.sizes, until)

    def local(self, step: int) -> ReplicaSteps | None:
        """Return the replicas, if they do this step by themselves."""
        return self.replicas if self.replicas and self.replicas.is_local(step) else None

    def check(self, prove: Prove | None, reporter: Reporter) -> None:
        """Lower all programs, prove them on rank 0, and report how.

        Raises the errors of `prove`, and `ProgramError` for a program that hangs on NCCL.
        """
        name = name_of(self.settings, self.state.plan)
        try:
            programs = list(self._lowered())
        except MemoryLimitError as error:
            raise self._in_bytes(error) from None
        for part, program in programs:
            if self.state.mesh.is_ordered:
                check_order(program)
            if prove is not None and self.world.rank == 0:
                reporter.line(f"{part} {prove(program, name)}")

    def compile(self) -> None:
        """Compile all programs. Raises `ProgramError` for what the backend lacks."""
        if self._is_synchronous:
            self.program("update")
        if self.replicas is not None:
            self.replicas.compile()
        self.program("loss")

    def sent(self, step: int) -> tuple[RankBytes, RankBytes]:
        """Return the bytes that each rank sends in a step: for linear operators, and the rest.

        A collective call at the first step of a kind, where the bytes of all ranks are gathered.
        """
        local, world = self.local(step), self.world
        kind = "synchronous" if local is None else local.averages(step)
        if kind not in self._sent:
            run = [self.program("update").executor] if local is None else local.executors(step)
            counted = {"linear": 0.0, "other": 0.0}
            for part, elements, itemsize in chain(*(executor.sent for executor in run)):
                counted[part] += float(elements * itemsize)
            sent_2 = torch.tensor(list(counted.values()), dtype=torch.float64, device=world.device)
            everyone = [sent_2]
            if world.size > 1:
                everyone = [torch.empty_like(sent_2) for _ in range(world.size)]
                dist.all_gather(everyone, sent_2)
            linear, other = zip(*(rank_2.tolist() for rank_2 in everyone), strict=True)
            self._sent[kind] = linear, other
        return self._sent[kind]

    def _lowered(self) -> Iterator[tuple[str, Program]]:
        """Yield all programs, with names."""
        if self._is_synchronous:
            part = "training step" if self.replicas is None else "synchronous step"
            yield part, self._steps.lowered(*self.sizes, "update")
        if self.replicas is not None:
            yield from self.replicas.proved()
        yield "evaluation", self._steps.lowered(*self.sizes, "loss")

    def _in_bytes(self, error: MemoryLimitError) -> MemoryLimitError:
        """Return the error of a limit that is too small, in the unit of its setting."""
        if error.least is None:
            return error
        least = error.least * self.state.mesh.dtype.itemsize
        return MemoryLimitError(
            f"{shown('device_memory')}: expected at least {least} bytes, which one instruction "
            "needs together with what cannot move, got "
            f"{self.settings.device_memory}: write {least}"
        )
