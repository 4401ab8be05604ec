"""The training loop: every step is one program, on one process as on a mesh.

After each step the ranks exchange their stop requests, so that all stop after the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import distributed as dist

from primepar.distributed.runtime.step_programs import update_on_device
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.text.sample_order import DataPosition
from primepar.distributed.training.data import Batch, Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.log import EvaluateRow, Log, StepRow
from primepar.distributed.training.loss_scale import LossScale
from primepar.distributed.training.progress import Reporter
from primepar.distributed.training.run_programs import RunPrograms
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.speed import peak_memory, peak_of
from primepar.distributed.training.stopping import Stopping
from primepar.errors import CheckpointError, ConfigError
from primepar.models.config import flops_per_token
from primepar.models.dropout import Draw
from primepar.operators import StepInputs
from primepar.schedule.events import Event

if TYPE_CHECKING:
    from primepar.distributed.checkpoints.saving import Checkpoints

SCALE = "loss_scale"
"""Its key in the state of a run."""
DATA = "data"
"""Key of the position in the data in the run state of a checkpoint."""
STATES = {DATA: DataPosition, SCALE: LossScale}
"""Key of the run state of a checkpoint -> what it has."""
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
    _writing: bool = field(init=False, default=False)
    """Whether a rank was writing a checkpoint in the last step."""
    programs: RunPrograms = field(init=False)
    position: DataPosition = field(init=False)
    """Where the run is in its data."""
    flops_per_token: int = field(init=False)
    peak_tflops: float | None = field(init=False)
    """Of each device, in 10^12 operations a second; None where it is not known."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.loss_scale = LossScale.of(settings, self.run_state.get(SCALE))
        self.programs = RunPrograms(settings, self.world, self.state)
        self.position = self._resumed(self.text.begin(settings.seed))
        self.flops_per_token = flops_per_token(self.state.plan.model)
        self.peak_tflops = settings.peak_tflops or peak_of(self.world.device, settings.dtype)
        self.world.activity.meshes = self.programs.meshes

    def run(self, stopping: Stopping) -> tuple[int, list[Event]]:
        """Train up to `settings.steps`, or until a stop request.

        Returns the signal (0 if none), and this rank's events of the traced step.
        """
        settings, events, signal = self.settings, list[Event](), 0
        traced = min(self.done + TRACED_STEP, settings.steps) if settings.trace else None
        while self.done < settings.steps and not signal:
            if self.done + 1 == traced:
                for mesh in self.programs.meshes:
                    mesh.start_trace()
            with self.world.activity.part(f"step {self.done + 1}", "step"):
                signal = self.step(stopping)
            if not self._writing:
                self._finish_saved()
            if self.done == traced:
                events = [event for mesh in self.programs.meshes for event in mesh.stop_trace()]
            last = signal != 0 or self.done == settings.steps
            if _due(self.done, settings.evaluate_every, last) and not signal:
                with self.world.activity.part(f"evaluation of step {self.done}", "step"):
                    self.evaluate()
            if self.checkpoints and _due(self.done, settings.checkpoint_every, last):
                with self.world.activity.part(f"checkpoint of step {self.done}"):
                    self._report_saved(self.checkpoints.begin(self.done, self._run_state()))
        self._finish_saved()
        if self.programs.replicas is not None:
            self.state.blocks.update(self.programs.replicas.means())
        return signal, events

    def step(self, stopping: Stopping) -> int:
        """Do one training step on every rank; returns the signal that any rank received, or 0."""
        begin = time.perf_counter()
        step = self.done + 1
        rate, sizes = self.settings.rate(step), self.programs.sizes
        batch = self._on_device(self.text.batch(self.position, *sizes))
        local = self.programs.local(step)
        if local is not None:
            numbers_2 = local.step(step, *batch, rate)
        else:
            inputs = self._inputs(step, rate)
            numbers_2 = update_on_device(
                self.programs.program("update"), self.state, *batch, inputs
            )
        loss, norm, signal, self._writing = self._read(numbers_2, stopping.signal)
        self._check_finite(loss, norm)
        scale, self.done, self.position = self.loss_scale, step, self._later(self.position, 1)
        if scale is not None:
            self.loss_scale = scale.after(norm, self.settings.loss_scale_every)
        linear, other = self.programs.sent(step)
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
            mfu=self.mfu(tokens_per_second),
            loss_scale=None if scale is None else scale.scale,
        )
        self.log.write(row)
        self.reporter.step(row)
        return signal

    def mfu(self, tokens_per_second: float) -> float | None:
        """Return the share of all devices' peak that a speed is; None where it is not known."""
        if self.peak_tflops is None:
            return None
        peak = self.world.size * self.peak_tflops * 1e12
        return tokens_per_second * self.flops_per_token / peak

    def _inputs(self, step: int, rate: float) -> StepInputs:
        """Return the inputs of a synchronous step; a skipped step is no update."""
        draw, scale = Draw(self.settings.seed, step), self.loss_scale
        if scale is None:
            return StepInputs(draw, rate, step)
        return StepInputs(draw, rate, step - scale.skipped, scale.scale)

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

    def _resumed(self, begin: DataPosition) -> DataPosition:
        """Return the saved position in the data, or that after `done` steps from the beginning.

        The latter holds for a new run, and where another text or seed overrides the saved one.
        """
        if DATA in self.run_state:
            saved = msgspec.convert(self.run_state[DATA], DataPosition)
            if (saved.seed, saved.text) == (begin.seed, begin.text):
                count = self.text.windows(self.programs.sizes[1])
                if saved.sample >= count:
                    raise CheckpointError(
                        f"run_state.{DATA}.sample: expected one of the {count} samples of the "
                        f"text, got {saved.sample}: the checkpoint is not as it was written"
                    )
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
        batch, context = self.programs.sizes
        return position.after(steps * batch, self.text.windows(context))

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

    def evaluate(self) -> float:
        """Return the mean loss over fixed windows of the held-out text.

        Replicas are averaged for it; between averages their own parameters stay as they are.
        """
        run, blocks, host = self.programs.program("loss"), self.state.blocks, self.state.host
        if self.programs.replicas is not None:
            blocks = {**blocks, **self.programs.replicas.means()}
        count = self.settings.evaluate_batches or None
        batches = self.text.held_out_batches(count, *self.programs.sizes)
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
