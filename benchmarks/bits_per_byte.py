"""Does a small GPT learn faster on tokens than on bytes, in the same time?

The text is the standard library's sources. The tokenizers are trained on it, without what is held
out. All runs have the same layers, hidden size, context and batch, and the same CPU seconds of
training. A larger vocabulary makes the embedding and the head larger, and a step slower; its tokens
stand for more bytes. Evaluations read all that is held out, and are not counted as training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.bench import BenchRow, Case, Cells, bench

if TYPE_CHECKING:
    from primepar.distributed.training.launch import World
    from primepar.distributed.training.trainer import Trainer

LAYERS, HIDDEN, HEADS, CONTEXT, BATCH = 2, 96, 4, 64, 8
RATE, WARMUP = 2e-3, 20
POINTS = 6
"""Evaluations of a run, at equal distances in time."""


class CurvePoint(NamedTuple):
    """The held-out bits per byte of a run after some CPU seconds of training."""

    seconds: float
    steps: int
    bits_per_byte: float


class TextRun(BenchRow, frozen=True):
    """What one run trained on, and its curve."""

    name: str
    asked: float
    """CPU seconds of training."""
    vocabulary: int
    bytes_per_token: float
    curve: list[CurvePoint]

    @property
    def title(self) -> str:
        return (
            f"held-out bits per byte after CPU seconds of training; {LAYERS} layers, hidden "
            f"{HIDDEN}, context {CONTEXT}, batch {BATCH}, rate {RATE}"
        )

    @property
    def cells(self) -> Cells:
        curve = {
            f"{self.asked * number / POINTS:.3g} s": f"{point.bits_per_byte:.3f}"
            for number, point in enumerate(self.curve, 1)
        }
        steps, per_token = self.curve[-1].steps, f"{self.bytes_per_token:.2f}"
        return {"text": self.name, **curve, "steps": steps, "bytes per token": per_token}


def trained(tokenizer: str | None, seconds: float, world: World) -> TextRun:
    """Train for some CPU seconds and evaluate at equal distances."""
    from primepar.distributed.training.stopping import Stopping

    trainer = _trainer(tokenizer, world)
    text, curve, spent = trainer.text, list[CurvePoint](), 0.0
    with Stopping() as stopping:
        while len(curve) < POINTS:
            begin = time.process_time()
            trainer.step(stopping)
            spent += time.process_time() - begin
            if spent >= seconds * (len(curve) + 1) / POINTS:
                bits = text.bits_per_byte(trainer.evaluate())
                curve.append(CurvePoint(spent, trainer.done, bits))
    per_token = (text.held_out_bytes or len(text.held_out)) / len(text.held_out)
    name = "bytes" if tokenizer is None else f"{tokenizer} tokens"
    return TextRun(name, seconds, text.vocabulary, per_token, curve)


def _trainer(tokenizer: str | None, world: World) -> Trainer:
    """The trainer of `primepar train` on one process, without output."""
    from primepar.distributed import Mesh
    from primepar.distributed.runtime.training_state import TrainingState
    from primepar.distributed.training.data import load_text, with_vocabulary
    from primepar.distributed.training.launchers import Launch
    from primepar.distributed.training.log import Log
    from primepar.distributed.training.progress import Reporter
    from primepar.distributed.training.settings import Settings
    from primepar.distributed.training.settings_plan import plan_of
    from primepar.distributed.training.trainer import Trainer

    settings = Settings(
        tokenizer=tokenizer,
        layers=LAYERS,
        hidden=HIDDEN,
        heads=HEADS,
        context=CONTEXT,
        batch=BATCH,
        lr=RATE,
        warmup=WARMUP,
        evaluate_batches=0,
    )
    text = load_text(None, BATCH, CONTEXT, tokenizer)
    settings, plan = with_vocabulary(settings, plan_of(settings, 1), text)
    state = TrainingState(plan, Mesh(plan.mesh, world.device), settings.seed)
    silent = Reporter(Launch("mpirun", rank=1, size=1), 0, settings.steps)
    return Trainer(settings, world, state, text, Log(None), silent)


def measure(tokenizer: str | None, seconds: float) -> TextRun:
    """Train on the standard library, in tokens of a vocabulary or in bytes."""
    from primepar.distributed.training.launch import joined
    from primepar.distributed.training.launchers import Launch

    with joined(Launch.of(os.environ), "cpu") as world:
        return trained(tokenizer, seconds, world)


def bits_per_byte(
    seconds: float = 30.0, vocabularies: tuple[int, ...] = (512, 2048)
) -> Iterator[Case]:
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--seconds: expected a positive number, got {seconds}")
    for tokenizer in (None, *map(str, vocabularies)):
        yield f"{tokenizer or 256} tokens", partial(measure, tokenizer, seconds)


if __name__ == "__main__":
    bench(bits_per_byte)
