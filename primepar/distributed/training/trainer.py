"""The training loop: every step is one program, on one process as on a mesh.

After each step the ranks exchange their stop requests, so that all stop after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import distributed as dist

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.step_programs import StepProgram, StepPrograms, update_on_device
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.text.sample_order import DataPosition
from primepar.distributed.training.data import Batch, Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.log import EvaluateRow, Log, StepRow
from primepar.distributed.training.loss_scale import LossScale
from primepar.distributed.training.progress import Reporter
from primepar.distributed.training.replicas import ReplicaSteps
from primepar.distributed.training.settings import Settings, shown
from primepar.distributed.training.settings_layout import sequence_of, sizes_of
from primepar.distributed.training.speed import Speed, peak_memory, speed_of
from primepar.distributed.training.stopping import Stopping
from primepar.errors import ConfigError, MemoryLimitError
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, Until
from primepar.plan.replicas import replicas_of
from primepar.schedule.events import Event
from primepar.schedule.one_order import check_order
from primepar.schedule.program import Program

if TYPE_CHECKING:
    from primepar.distributed.checkpoints.saving import Checkpoints

Bytes = tuple[tuple[float, ...], tuple[float, ...]]
"""Of every rank, for linear operators and for the rest."""
Prove = Callable[[Program, str], str]
"""Proves a program, given its name, and returns the result as text; raises if it is not proved."""
SCALE = "loss_scale"
"""Its key in the state of a run."""
DATA = "data"
"""Key of the position in the data in the run state of a checkpoint."""
TRACED_STEP = 3
"""Step that `output.trace` records, counted from the start of the process; buffers exist."""


@dataclass
class Trainer:
    """One run, which has finished `done` steps."""

    settings: Settings
    world: World
    state: TrainingState
    text: Text
    log: Log
    reporter: Reporter
    checkpoints: Checkpoints | None = None
    done: int = 0
    run_state: dict[str, Any] = field(default_factory=dict)
    """What a checkpoint has besides tensors and the step, as JSON."""
    loss_scale: LossScale | None = field(init=False)
    """The scale of the next step's loss, in float16."""
    _bytes: dict[tuple[bool, bool], Bytes] = field(init=False, default_factory=dict)
    """What the ranks send in a step: (local, averaging) -> bytes."""
    _writing: bool = field(init=False, default=False)
    """Whether a rank was writing a checkpoint in the last step."""
    programs: StepPrograms = field(init=False)
    replicas: ReplicaSteps | None = field(init=False, default=None)
    """The local steps of local SGD."""
    position: DataPosition = field(init=False)
    """Where the run is in its data."""
    speed: Speed = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.loss_scale = LossScale.of(settings, self.run_state.get(SCALE))
        mesh = self.state.mesh
        self.position = self._resumed(self.text.begin(settings.seed))
        model, device = self.state.plan.model, self.world.device
        self.speed = speed_of(model, self.world.size, device, settings.dtype, settings.peak_tflops)
        options = settings.step_options(mesh.limit)
        self.programs = StepPrograms(self.state.plan, mesh, options, settings.conform)
        if settings.average_every is not None:
            self.replicas = ReplicaSteps(settings, replicas_of(self.state.plan), self.state)
        self.world.activity.meshes = self._meshes

    def check(self, prove: Prove | None) -> None:
        """Lower the programs of the run and prove them on rank 0.

        Raises the errors of `prove`, and `ProgramError` for a program that hangs on NCCL.
        """
        name = str(self.settings.plan_file or sequence_of(self.settings, self.world.size))
        try:
            programs = list(self._lowered())
        except MemoryLimitError as error:
            raise self._in_bytes(error) from None
        for part, program in programs:
            if self.state.mesh.is_ordered:
                check_order(program)
            if prove is not None and self.world.rank == 0:
                self.reporter.line(f"{part} {prove(program, name)}")

    def compile(self) -> None:
        """Compile the programs of the run. Raises `ProgramError` for what the backend lacks.

        A collective call.
        """
        if self.settings.average_after or self.replicas is None:
            self._program("update")
        if self.replicas is not None:
            self.replicas.compile()
        self._program("loss")

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

    def _lowered(self) -> Iterator[tuple[str, Program]]:
        """Yield the programs of the run, with names; a collective call."""
        local = self.replicas is not None
        if self.settings.average_after or not local:
            part = "synchronous step" if local else "training step"
            yield part, self.programs.lowered(*self._sizes, "update")
        if self.replicas is not None:
            yield from self.replicas.proved()
        yield "evaluation", self.programs.lowered(*self._sizes, "loss")

    def run(self, stopping: Stopping) -> tuple[int, list[Event]]:
        """Train up to `settings.steps`, or until a stop request.

        Returns the signal (0 if none), and this rank's events of the traced step.
        """
        settings, events, signal = self.settings, list[Event](), 0
        traced = min(self.done + TRACED_STEP, settings.steps) if settings.trace else None
        while self.done < settings.steps and not signal:
            if self.done + 1 == traced:
                for mesh in self._meshes:
                    mesh.start_trace()
            with self.world.activity.part(f"step {self.done + 1}", "step"):
                signal = self.step(stopping)
            if not self._writing:
                self._finish_saved()
            if self.done == traced:
                events = [event for mesh in self._meshes for event in mesh.stop_trace()]
            last = signal != 0 or self.done == settings.steps
            if _due(self.done, settings.evaluate_every, last) and not signal:
                with self.world.activity.part(f"evaluation of step {self.done}", "step"):
                    self.evaluate()
            if self.checkpoints and _due(self.done, settings.checkpoint_every, last):
                with self.world.activity.part(f"checkpoint of step {self.done}"):
                    self._report_saved(self.checkpoints.begin(self.done, self._run_state()))
        self._finish_saved()
        if self.replicas is not None:
            self.state.blocks.update(self.replicas.means())
        return signal, events

    @property
    def _meshes(self) -> list[Mesh]:
        return [self.state.mesh] + ([] if self.replicas is None else [self.replicas.mesh])

    def step(self, stopping: Stopping) -> int:
        """Do one training step on every rank; returns the signal that any rank received, or 0."""
        begin = time.perf_counter()
        step = self.done + 1
        rate, sizes = self.settings.rate(step, self.settings.steps), self._sizes
        batch = self._on_device(self.text.batch(self.position, *sizes))
        local = self._local(step)
        if local is not None:
            numbers_2 = local.step(step, *batch, rate)
        else:
            inputs = self._inputs(step, rate)
            numbers_2 = update_on_device(self._program("update"), self.state, *batch, inputs)
        loss, norm, signal, self._writing = self._read(numbers_2, stopping.signal)
        self._check_finite(loss, norm)
        scale, self.done, self.position = self.loss_scale, step, self._later(self.position, 1)
        if scale is not None:
            self.loss_scale = scale.after(norm, self.settings.loss_scale_every)
        linear, other = self._sent(step)
        tokens_per_second = prod(sizes) / (time.perf_counter() - begin)
        row = StepRow(
            step=step,
            loss=loss,
            gradient_norm=norm if isfinite(norm) else None,
            lr=rate,
            tokens_per_second=tokens_per_second,
            sent_bytes=linear,
            other_bytes=other,
            samples=self.position.samples(self.text.windows(sizes[1])),
            epoch=self.position.epoch,
            memory_bytes=peak_memory(self.world.device),
            mfu=self.speed.mfu(tokens_per_second),
            loss_scale=None if scale is None else scale.scale,
        )
        self.log.write(row)
        self.reporter.step(row)
        return signal

    def _inputs(self, step: int, rate: float) -> StepInputs:
        """Return the inputs of a synchronous step; a skipped step is no update."""
        draw, scale = Draw(self.settings.seed, step), self.loss_scale
        if scale is None:
            return StepInputs(draw, rate, step)
        return StepInputs(draw, rate, step - scale.skipped, scale.scale)

    def _local(self, step: int) -> ReplicaSteps | None:
        """The replicas, if they do this step by themselves."""
        return self.replicas if self.replicas and self.replicas.is_local(step) else None

    def _check_finite(self, loss: float, norm: float) -> None:
        """Raise `ConfigError`, on one rank, if the loss or the norm is not finite.

        Both are the same on all ranks. With a loss scale that may be too large the norm may be so.
        """
        skips = self.loss_scale is not None and self.loss_scale.can_skip()
        if not (isfinite(loss) and (isfinite(norm) or skips)):
            with self.world.agreement("loss"):
                raise ConfigError(
                    "optimizer.lr: expected a rate at which training stays finite, got loss "
                    f"{loss} and gradient norm {norm} in step {self.done + 1}: take a smaller one "
                    f"than {self.settings.lr}"
                )

    @property
    def _sizes(self) -> tuple[int, int]:
        """Sequences of a batch, and tokens of each sequence."""
        return sizes_of(self.settings, self.state.plan)

    def _resumed(self, begin: DataPosition) -> DataPosition:
        """Return the saved position in the data, or that after `done` steps from the beginning.

        The latter holds for a new run, and where another text or seed overrides the saved one.
        """
        if DATA in self.run_state:
            saved = msgspec.convert(self.run_state[DATA], DataPosition)
            if (saved.seed, saved.text) == (begin.seed, begin.text):
                return saved
        return self._later(begin, self.done)

    def _run_state(self) -> dict[str, Any]:
        """Return what a checkpoint has besides tensors and the step."""
        state = {DATA: msgspec.to_builtins(self.position)}
        if self.loss_scale is not None:
            state[SCALE] = msgspec.to_builtins(self.loss_scale)
        return state

    def _later(self, position: DataPosition, steps: int) -> DataPosition:
        """Return the position in the data after some steps."""
        batch, context = self._sizes
        return position.after(steps * batch, self.text.windows(context))

    def _program(self, until: Until) -> StepProgram:
        return self.programs.program(*self._sizes, until)

    def _on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tokens_BT, targets_BT = (torch.from_numpy(array).to(self.world.device) for array in batch)
        return tokens_BT, targets_BT

    def _read(self, numbers_2: torch.Tensor, signal: int) -> tuple[float, float, int, bool]:
        """Return loss, norm, the largest signal of a rank, and whether one writes a checkpoint.

        A collective call. All four are read at once: it is the only time in a step that the CPU
        waits for a GPU.
        """
        largest_2 = numbers_2.new_full((2,), signal)  # filled there: a copy would wait
        largest_2[1].fill_(self.checkpoints is not None and self.checkpoints.busy)
        with self.world.activity.together("the sum of stop requests"):
            if self.world.size > 1:
                dist.all_reduce(largest_2, dist.ReduceOp.MAX)
            loss, norm, largest, writing = torch.cat([numbers_2, largest_2]).tolist()
        return loss, norm, int(largest), bool(writing)

    def _sent(self, step: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Bytes that each rank sends in a step, for linear operators and for the rest.

        A collective call.
        """
        local = self._local(step)
        kind = local is not None, local is not None and local.averages(step)
        if kind not in self._bytes:
            executors = (
                [self._program("update").executor] if local is None else local.executors(step)
            )
            self._bytes[kind] = self._everyone(executors)
        return self._bytes[kind]

    def _everyone(self, executors: Iterable[Executor]) -> Bytes:
        """Gather what every rank sends by some programs, for linear operators and for the rest."""
        counted = {"linear": 0.0, "other": 0.0}
        for kind, elements, itemsize in chain(*(executor.sent for executor in executors)):
            counted[kind] += float(elements * itemsize)
        sent = torch.tensor(list(counted.values()), dtype=torch.float64, device=self.world.device)
        everyone = [sent] * self.world.size
        if self.world.size > 1:
            everyone = [torch.empty_like(sent) for _ in everyone]
            dist.all_gather(everyone, sent)
        linear, other = zip(*(rank_sent.tolist() for rank_sent in everyone), strict=True)
        return linear, other

    def evaluate(self) -> float:
        """Return the mean loss over fixed windows of the held-out text.

        Replicas are averaged for it; between averages their own parameters stay as they are.
        """
        run, blocks, host = self._program("loss"), self.state.blocks, self.state.host
        if self.replicas is not None:
            blocks = {**blocks, **self.replicas.means()}
        count = self.settings.evaluate_batches or None
        batches = self.text.held_out_batches(count, *self._sizes)
        losses = [
            run({name: blocks[name] for name in run.needs}, *self._on_device(batch), host=host)[
                "loss[0]"
            ]
            for batch in batches
        ]
        loss = sum(loss.item() for loss in losses) / len(losses)
        row = EvaluateRow(self.done, loss, self.text.bits_per_byte(loss))
        self.log.write(row)
        self.reporter.evaluation(row)
        return row.loss

    def _finish_saved(self) -> None:
        """Wait for the checkpoint that is being written, if there is one."""
        if self.checkpoints is not None:
            with self.world.activity.part(f"checkpoint of step {self.done}"):
                self._report_saved(self.checkpoints.finish())

    def _report_saved(self, path: Path | None) -> None:
        """Print which checkpoint is complete, if one is."""
        if path is not None:
            self.reporter.line(f"step {self.done}/{self.settings.steps}: wrote {path}")


def _due(step: int, every: int, last: bool) -> bool:
    return last or (every > 0 and step % every == 0)


def gathered(world: World, events: list[Event]) -> list[Event]:
    """Return the events of all ranks, on every rank; a collective call."""
    world.store.set(f"events/{world.rank}", msgspec.json.encode(events).decode())
    sent = [world.store.get(f"events/{rank}") for rank in range(world.size)]
    return [event for part in sent for event in msgspec.json.decode(part, type=list[Event])]
