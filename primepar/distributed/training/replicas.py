"""Local SGD in training: steps of every replica by itself, and averages of their parameters.

Stich, arXiv 1805.09767. The first `averaging.after` steps are synchronous (post-local SGD, Lin et
al., arXiv 1808.07217). Then every replica of the plan, `primepar.plan.replicas`, steps on its share
of the batch. After every `averaging.every`-th of these steps all parameters become their means.
AdamW's moments are not averaged: every replica keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import distributed as dist

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import Blocks
from primepar.distributed.runtime.step_programs import (
    StepPrograms,
    lowered_by_first_rank,
    update_on_device,
)
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import sizes_of
from primepar.models.dropout import Draw
from primepar.operators import MASTER, StepInputs, StepSettings
from primepar.operators.averaging import lower_average, replica_block
from primepar.partition.local_sgd import next_count
from primepar.plan.replicas import Replicas
from primepar.schedule.program import Program


class ReplicaSteps:
    """The local steps of this rank's replica, on the blocks of the whole plan's state.

    A collective call of the whole world, as are its methods.
    """

    def __init__(self, settings: Settings, replicas: Replicas, state: TrainingState) -> None:
        assert settings.average_every is not None
        self.period = settings.average_every
        self.settings, self.replicas, self.state = settings, replicas, state
        whole = state.mesh
        sequence = replicas.plan.sequence("head")
        self.mesh = Mesh(sequence, whole.device, whole.dtype, replicas=replicas.count)
        options = settings.step_options(self.mesh.limit)
        self.programs = StepPrograms(replicas.plan, self.mesh, options, settings.conform)
        batch, self.positions = sizes_of(settings, replicas.whole)
        self.batch = replicas.share(batch)

    def proved(self) -> Iterator[tuple[str, Program]]:
        """Yield the programs of a local step and of an average, with names."""
        yield "local step", self.programs.lowered(self.batch, self.positions, "update")
        yield "average", self.average_program

    def compile(self) -> None:
        """Compile the programs of a local step and of an average; raises what `Executor` raises."""
        self.programs.program(self.batch, self.positions, "update")
        self._average  # noqa: B018  made at its first use

    def is_local(self, step: int) -> bool:
        """Return whether replicas do a step by themselves; the first step is 1."""
        return step > self.settings.average_after

    def averages(self, step: int) -> bool:
        """Return whether the parameters are averaged after a step."""
        before = step - 1 - self.settings.average_after
        return before >= 0 and bool(next_count(before % self.period, self.period) == 0)

    def step(
        self, step: int, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, rate: float
    ) -> torch.Tensor:
        """Do a local step, and average if one is due; returns loss and gradient norm, `[2]`.

        The batch is the whole one. Both numbers are the means over the replicas.
        """
        first = self.mesh.replica * self.batch
        share = slice(first, first + self.batch)
        draw = Draw(self.settings.seed, step, self.mesh.replica)
        run = self.programs.program(self.batch, self.positions, "update")
        inputs = StepInputs(draw, rate, step)
        batch = tokens_BT[share], targets_BT[share]
        numbers_2 = update_on_device(run, self.state, *batch, inputs)
        if self.averages(step):
            self.state.blocks.update(self.means())
        dist.all_reduce(numbers_2)  # the ranks of a replica have the same two numbers
        return numbers_2 / dist.get_world_size()

    def means(self) -> Blocks:
        """Return this rank's blocks of the parameters' means over the replicas, and of copies."""
        state, copy = self.state, f".{MASTER}" if self.settings.has_masters else ""
        parts = [(name, part.index) for name, parts in state.places.items() for part in parts]
        made = self._average(
            {
                replica_block(name, index, self.mesh.replica): state.blocks[name + copy + index][
                    None
                ]
                for name, index in parts
            }
        )
        means = {name + index: made[name + index].to(state.mesh.dtype) for name, index in parts}
        if copy:
            means |= {name + copy + index: made[name + index] for name, index in parts}
        return means

    def executors(self, step: int) -> Iterator[Executor]:
        """Yield what runs in a local step."""
        yield self.programs.program(self.batch, self.positions, "update").executor
        if self.averages(step):
            yield self._average

    @cached_property
    def average_program(self) -> Program:
        """The program of an average; the first process lowers it for all."""
        return lowered_by_first_rank(
            self.state.mesh, lambda: lower_average(self.replicas, self.settings.has_masters)
        )

    @cached_property
    def _average(self) -> Executor:
        settings = StepSettings(self.replicas.whole.model, self.batch, self.positions)
        program = self.average_program
        proved = program if self.settings.conform else None
        return Executor(self.state.mesh, program, settings, proved=proved)
