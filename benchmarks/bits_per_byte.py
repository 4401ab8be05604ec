"""`python -m benchmarks.bits_per_byte`: a small GPT on bytes and on tokens, for the same time each.

The text is the standard library's sources. The tokenizers are trained on it, without what is held
out. All runs have the same layers, hidden size, context and batch, and the same CPU seconds of
training. A larger vocabulary makes the embedding and the head larger, and a step slower; its tokens
stand for more bytes. Evaluations read all that is held out, and are not counted as training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from primepar.cli import main
from primepar.errors import ConfigError

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


class TextRun(NamedTuple):
    """What one run trained on, and its curve."""

    name: str
    vocabulary: int
    bytes_per_token: float
    curve: list[CurvePoint]


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
    return TextRun(name, text.vocabulary, per_token, curve)


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


def lines(runs: list[TextRun], seconds: float) -> Iterator[str]:
    """The curves as a table, a column for each run."""
    yield (
        f"held-out bits per byte after CPU seconds of training; {LAYERS} layers, hidden {HIDDEN}, "
        f"context {CONTEXT}, batch {BATCH}, rate {RATE}"
    )
    yield "seconds" + "".join(f"{run.name:>14}" for run in runs)
    for number in range(POINTS):
        bits = "".join(f"{run.curve[number].bits_per_byte:14.3f}" for run in runs)
        yield f"{seconds * (number + 1) / POINTS:7.0f}{bits}"
    yield "steps  " + "".join(f"{run.curve[-1].steps:14}" for run in runs)
    yield "bytes/t" + "".join(f"{run.bytes_per_token:14.2f}" for run in runs)


def bits_per_byte(
    seconds: Annotated[float, typer.Option(help="CPU seconds of training of each run.")] = 30.0,
    vocabularies: Annotated[
        str, typer.Option(metavar="N,N,...", help="Vocabularies to train on the text.")
    ] = "512,2048",
) -> None:
    """Train a small GPT on bytes and on tokens for the same time, and print both curves."""
    from primepar.distributed.training.launch import joined
    from primepar.distributed.training.launchers import Launch

    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--seconds: expected a positive number, got {seconds}")
    entries = vocabularies.split(",")
    if not all(map(str.isdecimal, entries)):
        raise ConfigError(f"--vocabularies: expected numbers, got {vocabularies!r}")
    with joined(Launch.of(os.environ), "cpu") as world:
        runs = [trained(tokenizer, seconds, world) for tokenizer in (None, *entries)]
    for line in lines(runs, seconds):
        typer.echo(line)


if __name__ == "__main__":
    command = typer.Typer(add_completion=False)
    command.command()(bits_per_byte)
    main(command, "python -m benchmarks.bits_per_byte")
