"""The training loop: the same on one process and on a mesh, as the model hides the difference.

After each step the ranks exchange a few numbers each: whether they were asked to stop, their part
of the gradient's norm, and the bytes that they sent. So they all stop after the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import NamedTuple

import msgspec
import torch
from torch import distributed as dist
from torch.optim import AdamW

from primepar.distributed import checkpoint
from primepar.distributed.data import Batch, Text
from primepar.distributed.launch import World
from primepar.distributed.log import EvaluateRow, Log, StepRow
from primepar.distributed.model import PartitionedModel
from primepar.distributed.parameters import places
from primepar.distributed.progress import Reporter
from primepar.distributed.settings import Settings
from primepar.distributed.stopping import Stopping
from primepar.errors import ConfigError
from primepar.trace import Event

EVALUATION_BATCHES = 8
TRACED_STEP = 3
"""Step that `--trace` records, counted from the start of the process; its buffers are there."""


class Shared(NamedTuple):
    """What one rank tells the others after a step."""

    signal: float
    squares: float
    linear_bytes: float
    other_bytes: float


def make_optimizer(model: PartitionedModel, lr: float) -> AdamW:
    """AdamW as GPT-3 was trained: betas 0.9 and 0.95, decay 0.1 on the linear weights alone."""
    linear = {f"{name}.weight" for name in model.config.linear_shapes}
    groups: dict[float, list[torch.nn.Parameter]] = {0.1: [], 0.0: []}
    for name, parameter in model.named_parameters():
        groups[0.1 if name in linear else 0.0].append(parameter)
    return AdamW(
        [{"params": own, "weight_decay": decay} for decay, own in groups.items()],
        lr=lr,
        betas=(0.9, 0.95),
    )


def learning_rate(settings: Settings, step: int) -> float:
    """Rate of a step, the first being 1: a straight rise over `warmup` steps, then constant."""
    return settings.lr * min(1.0, step / max(1, settings.warmup))


@dataclass
class Trainer:
    """One run: `done` steps are behind it."""

    settings: Settings
    world: World
    model: PartitionedModel
    optimizer: AdamW
    text: Text
    log: Log
    reporter: Reporter
    done: int = 0

    def run(self, stopping: Stopping) -> tuple[int, list[Event]]:
        """Train to `settings.steps`, or until asked to stop.

        Returns the signal, 0 if none, and this rank's events of the traced step.
        """
        settings, events, signal = self.settings, list[Event](), 0
        traced = min(self.done + TRACED_STEP, settings.steps) if settings.trace else None
        while self.done < settings.steps and not signal:
            if self.done + 1 == traced:
                self.model.mesh.start_trace()
            signal = self.step(stopping)
            if self.done == traced:
                events = self.model.mesh.stop_trace()
            last = signal != 0 or self.done == settings.steps
            if _due(self.done, settings.evaluate_every, last) and not signal:
                self.evaluate()
            if settings.checkpoint and _due(self.done, settings.checkpoint_every, last):
                self.save()
        return signal, events

    def step(self, stopping: Stopping) -> int:
        """Do one training step on every rank and return the signal that any of them got, or 0."""
        begin = time.perf_counter()
        step = self.done + 1
        rate = learning_rate(self.settings, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.mesh.traffic.clear()
        self.optimizer.zero_grad()
        loss = self._loss(self.text.batch(step, self.settings.seed, *self._sizes), step)
        loss.backward()  # type: ignore[no-untyped-call]
        shared = self.exchange(stopping.signal)
        norm = sum(rank.squares for rank in shared) ** 0.5
        self._check_finite(loss.item(), norm)
        self.optimizer.step()
        self.done = step
        row = StepRow(
            step=step,
            loss=loss.item(),
            gradient_norm=norm,
            lr=rate,
            tokens_per_second=prod(self._sizes) / (time.perf_counter() - begin),
            sent_bytes=tuple(rank.linear_bytes for rank in shared),
            other_bytes=tuple(rank.other_bytes for rank in shared),
        )
        self.log.write(row)
        self.reporter.step(row)
        return int(max(rank.signal for rank in shared))

    def _check_finite(self, loss: float, norm: float) -> None:
        """Raise `ConfigError`, on one rank, where what all ranks have alike is no number."""
        if not (isfinite(loss) and isfinite(norm)):
            with self.world.agreement("loss"):
                raise ConfigError(
                    "--lr: expected a rate at which training stays finite, got loss "
                    f"{loss} and gradient norm {norm} in step {self.done + 1}: take a smaller one "
                    f"than {self.settings.lr}"
                )

    @property
    def _sizes(self) -> tuple[int, int]:
        """Sequences of a batch and tokens of each."""
        return self.settings.sizes(self.model.plan)

    def _loss(self, batch: Batch, step: int | None = None) -> torch.Tensor:
        tokens_BT, targets_BT = (
            torch.from_numpy(letters).to(self.world.device) for letters in batch
        )
        return self.model.loss(tokens_BT, targets_BT, step)

    def exchange(self, signal: int) -> list[Shared]:
        """What every rank tells, in order of rank; a collective call."""
        sent = self.model.mesh.traffic.bytes
        linear = sent.get("linear", 0)
        own = Shared(signal, self._squares(), float(linear), float(sum(sent.values()) - linear))
        if self.world.size == 1:
            return [own]
        told = torch.tensor(own, dtype=torch.float64, device=self.world.device)
        everyone = [torch.empty_like(told) for _ in range(self.world.size)]
        dist.all_gather(everyone, told)
        return [Shared(*numbers.tolist()) for numbers in everyone]

    def _squares(self) -> float:
        """Sum of squares over the gradient blocks that are this rank's to count."""
        return sum(
            float(parameter.grad.double().square().sum())
            for parameter in self._counted
            if parameter.grad is not None
        )

    @cached_property
    def _counted(self) -> list[torch.nn.Parameter]:
        """Parameters whose block no lower rank holds too."""
        place = places(self.model)
        return [own for name, own in self.model.named_parameters() if place[name].writes]

    def evaluate(self) -> float:
        """Mean loss over windows of the held-out text, the same windows every time."""
        batches = self.text.held_out_batches(EVALUATION_BATCHES, *self._sizes)
        with torch.no_grad():
            losses = [self._loss(batch).item() for batch in batches]
        row = EvaluateRow(self.done, sum(losses) / len(losses))
        self.log.write(row)
        self.reporter.evaluation(row)
        return row.loss

    def save(self) -> None:
        """Write a checkpoint of the steps done."""
        assert self.settings.checkpoint is not None
        path = checkpoint.save(
            self.settings.checkpoint, self.done, self.model, self.optimizer, self.world
        )
        self.reporter.say(f"step {self.done}/{self.settings.steps}: wrote {path}")


def _due(step: int, every: int, last: bool) -> bool:
    return last or (every > 0 and step % every == 0)


def gathered(world: World, events: list[Event]) -> list[Event]:
    """The events of all ranks, on every rank; a collective call."""
    world.store.set(f"events/{world.rank}", msgspec.json.encode(events).decode())
    told = [world.store.get(f"events/{rank}") for rank in range(world.size)]
    return [event for part in told for event in msgspec.json.decode(part, type=list[Event])]
