"""Programs of a step, run on this rank: a training step, and programs that end earlier."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import torch

from primepar.distributed.collectives import elements_sent
from primepar.distributed.executor import Executor
from primepar.distributed.mesh import Mesh
from primepar.distributed.shapes import Shapes, wide_dtype
from primepar.distributed.state import TrainingState
from primepar.operators import StepInputs, StepSettings, Until, lower_step
from primepar.plan import Plan
from primepar.plan.cost.amounts import moved, total
from primepar.plan.cost.traffic import SWEEPS
from primepar.plan.layouts import movement_of, padded_vocabulary
from primepar.schedule.meaning import Box
from primepar.schedule.operators import Linear
from primepar.schedule.program import Collective, Group, Instruction, ISend, Send

Blocks = dict[str, torch.Tensor]
DATA = ("tokens", "targets")


class StepProgram:
    """The program of a step under a plan, compiled for this rank; made by all ranks together.

    Raises `PlanError` for a batch that the plan does not divide or positions that the model lacks.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        batch: int,
        positions: int,
        until: Until = "update",
        clip: float | None = None,
    ) -> None:
        self.mesh = mesh
        self.program = lower_step(plan, batch, positions, until, clip is not None)
        self._shapes = Shapes(self.program)
        self._run = Executor(
            mesh, self.program, StepSettings(plan.model, batch, positions, clip), "step"
        )
        initial, final = self.program.initial or (), self.program.final or ()
        self._data = [name for name in initial[mesh.rank] if name.startswith(DATA)]
        self.needs = [name for name in initial[mesh.rank] if name not in self._data]
        """Blocks to give: of the parameters, and of the moments where these are updated."""
        self.makes = [name for name in final[mesh.rank] if name not in initial[mesh.rank]]
        """Blocks that are new."""

    def __call__(
        self,
        blocks: Blocks,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor | None = None,
        inputs: StepInputs = StepInputs(),
    ) -> Blocks:
        """Run on the blocks that it `needs`, which leave the dict as they are freed; collective.

        Tokens and targets are those of the whole batch, the same on every rank.
        """
        whole = dict(zip(DATA, (tokens_BT, targets_BT), strict=True))
        for name in self._data:
            every = whole[name.partition("[")[0]]
            assert every is not None, "a loss is of targets"
            (rows,) = self.box(name)
            blocks[name] = every.reshape(-1)[slice(*rows)].to(self.mesh.device)
        return self._run(blocks, inputs)

    @cached_property
    def sent_bytes(self) -> tuple[Fraction, ...]:
        """Bytes that every rank sends, a collective counted as a ring."""
        return tuple(
            sum((self._sent(node, rank) for node in instructions), Fraction(0))
            for rank, instructions in enumerate(self.program.programs)
        )

    def _sent(self, node: Instruction, rank: int) -> Fraction:
        match node:
            case Send() | ISend():
                return Fraction(self._bytes(node.block))
            case Group(body=body):
                return sum((self._sent(each, rank) for each in body), Fraction(0))
            case _:
                collective = isinstance(node, Collective)
                return elements_sent(node, rank, self._bytes) if collective else Fraction(0)

    def _bytes(self, block: str) -> int:
        dtype = self.mesh.dtype
        wide = self._shapes.wide(block)
        return self._shapes.elements(block) * (wide_dtype(dtype) if wide else dtype).itemsize

    def box(self, block: str) -> Box:
        """Where a block lies in its tensor."""
        return self._shapes.box(block)


def update(
    run: StepProgram,
    state: TrainingState,
    tokens_BT: torch.Tensor,
    targets_BT: torch.Tensor,
    inputs: StepInputs,
) -> tuple[float, float]:
    """Do a training step of a state; returns the loss and the norm of the gradient."""
    blocks = run(state.blocks, tokens_BT, targets_BT, inputs)
    loss, norm = (blocks.pop(name).item() for name in ("loss[0]", "gradient.norm[0]"))
    state.blocks = {name.replace(".new[", "["): block for name, block in blocks.items()}
    return loss, norm


def linear_bytes(plan: Plan, rows: int, dtype: torch.dtype) -> tuple[Fraction, ...]:
    """Bytes that every rank sends in a training step for its linear operators' own programs."""
    sent = []
    for each in plan.operators:
        if each.kind == "linear":
            columns = padded_vocabulary(plan) if each.name == "head" else each.K
            movement = movement_of(str(plan.sequence(each.name)), True)
            operator = Linear(M=rows, N=each.N, K=columns)
            sent += [moved(movement, operator, phases) for phases in SWEEPS]
    return tuple(elements * dtype.itemsize for elements in total(sent))


class StepPrograms:
    """The programs of a plan on a mesh, each made when it is first asked for."""

    def __init__(self, plan: Plan, mesh: Mesh, clip: float | None = None) -> None:
        self.plan, self.mesh, self.clip = plan, mesh, clip
        self._known: dict[tuple[int, int, Until], StepProgram] = {}

    def program(self, batch: int, positions: int, until: Until) -> StepProgram:
        """The program for batches of that size; a collective call."""
        key = batch, positions, until
        if key not in self._known:
            clip = self.clip if until == "update" else None
            self._known[key] = StepProgram(self.plan, self.mesh, *key, clip)
        return self._known[key]
