"""Runs the programs of a step on this rank: a training step, and programs that end earlier."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from primepar.distributed.runtime.executor import NOTHING, Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import Blocks
from primepar.distributed.runtime.training_state import TrainingState
from primepar.errors import PrimeParError, ProgramError
from primepar.files import digest_of_code
from primepar.operators import StepInputs, StepOptions, StepSettings, Until, lower_step
from primepar.operators.step_options import DEFAULT
from primepar.plan import Plan
from primepar.schedule.effects import initial_blocks
from primepar.schedule.meaning import Box
from primepar.schedule.one_queue import in_one_queue
from primepar.schedule.program import Program

DATA = ("tokens", "targets")
NEW = ".new["
"""In the name of the block that an update makes: `head.weight.new[0,1]`."""
REFUSED = b" "
"""What rank 0 broadcasts instead of a program that it cannot lower."""


class StepProgram:
    """The program of a step, compiled for this rank; constructed by all ranks together.

    With `conform` every run is compared with the program.
    """

    def __init__(
        self, program: Program, mesh: Mesh, settings: StepSettings, conform: bool = False
    ) -> None:
        self.program, self.mesh = program, mesh
        first, final = initial_blocks(program)[mesh.rank], (program.final or ())[mesh.rank]
        held = [*final, *(program.host_final or ((),) * program.ranks)[mesh.rank]]
        self.renewed = [(name, name.replace(NEW, "[")) for name in held if NEW in name]
        """New blocks of parameters and moments, each with the name of the one that it replaces."""
        self.executor = Executor(
            mesh,
            program,
            settings,
            proved=program if conform else None,
            donated=[name for _, name in self.renewed],
        )
        self._data = [name for name in first if name.startswith(DATA)]
        self.needs = [name for name in first if name not in self._data]
        """Input blocks: of the parameters, and of the moments if the step updates them."""
        self.makes = [name for name in final if name not in self.needs]
        """New blocks."""

    def __call__(
        self,
        blocks: Blocks,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor | None = None,
        inputs: StepInputs = NOTHING,
        host: Blocks | None = None,
    ) -> Blocks:
        """Run on the blocks that it `needs`; freed ones are removed from the dict. Collective.

        Parameters and moments are updated in place where the program allows it.
        `host` has the blocks in host memory, if the mesh has a limit of device memory.
        Tokens and targets are those of the full batch, the same on every rank.
        """
        whole = dict(zip(DATA, (tokens_BT, targets_BT), strict=True))
        for name in self._data:
            data_BT = whole[name.partition("[")[0]]
            assert data_BT is not None, "the program of a loss needs targets"
            (rows,) = self.box(name)
            blocks[name] = data_BT.reshape(-1)[slice(*rows)].clone().to(self.mesh.device)
        return self.executor(blocks, inputs, host)

    def box(self, block: str) -> Box:
        """Return the place of a block in its tensor."""
        return self.executor.shapes.box(block)


def update(
    run: StepProgram,
    state: TrainingState,
    tokens_BT: torch.Tensor,
    targets_BT: torch.Tensor,
    inputs: StepInputs,
) -> tuple[float, float]:
    """Do one training step on a state; returns the loss and the norm of the gradient."""
    loss, norm = update_on_device(run, state, tokens_BT, targets_BT, inputs).tolist()
    return loss, norm


def update_on_device(
    run: StepProgram,
    state: TrainingState,
    tokens_BT: torch.Tensor,
    targets_BT: torch.Tensor,
    inputs: StepInputs,
) -> torch.Tensor:
    """Do one training step without waiting for a GPU; returns loss and norm, `[2]` in float64."""
    blocks = run(state.blocks, tokens_BT, targets_BT, inputs, state.host)
    numbers = [blocks.pop(name).double().reshape(1) for name in ("loss[0]", "gradient.norm[0]")]
    for held in (blocks, state.host):
        for new, name in run.renewed:
            if new in held:
                held[name] = held.pop(new)
    return torch.cat(numbers)


def lowered_by_first_rank(mesh: Mesh, lower: Callable[[], Program]) -> Program:
    """Return the program that `lower` makes on the first process of the world, on all processes.

    On an ordered mesh (NCCL) its posts are where they end in one queue, so that the program that is
    proved is the one that runs.
    A collective call. What `lower` raises is raised there; the others raise `ProgramError`.
    """
    if mesh.ranks == 1:
        return lower()
    if mesh.first + mesh.rank == 0:
        try:
            program = in_one_queue(lower()) if mesh.is_ordered else lower()
        except PrimeParError:
            mesh.broadcast(REFUSED)
            raise
        mesh.broadcast(msgspec.json.encode(program))
        return program
    content = mesh.broadcast(None)
    if content == REFUSED:
        raise ProgramError("expected a program from rank 0, got none: it has the error")
    return msgspec.json.decode(content, type=Program)


class StepPrograms:
    """The programs of a plan on a mesh; each one is made at its first use. A collective call.

    Raises `MeshError` on all ranks if one has another plan, options or version.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        options: StepOptions = DEFAULT,
        conform: bool = False,
    ) -> None:
        if mesh.wide_dtype != mesh.dtype:
            options = msgspec.structs.replace(options, wide_sums=True)
        same = msgspec.json.encode((plan, options)) + digest_of_code()
        mesh.check_alike(same, "plan, options and version")
        self.plan, self.mesh, self.options, self.conform = plan, mesh, options, conform
        self._lowered: dict[tuple[int, int, Until], Program] = {}
        self._compiled: dict[tuple[int, int, Until], StepProgram] = {}

    def lowered(self, batch: int, positions: int, until: Until) -> Program:
        """Return the program for batches of this size; rank 0 lowers it. A collective call."""
        key = batch, positions, until
        if key not in self._lowered:
            self._lowered[key] = lowered_by_first_rank(
                self.mesh, lambda: lower_step(self.plan, *key, self.options)
            )
        return self._lowered[key]

    def program(self, batch: int, positions: int, until: Until) -> StepProgram:
        """Return the compiled program for batches of this size; a collective call."""
        key = batch, positions, until
        if key not in self._compiled:
            options = self.options
            settings = StepSettings(self.plan.model, batch, positions, options.clip, options.adamw)
            program = self.lowered(*key)
            self._compiled[key] = StepProgram(program, self.mesh, settings, self.conform)
        return self._compiled[key]
