"""Are losses in half precision those of float32, and do small steps move the weights?

Three runs of `primepar train` with the same seed, in float32, bfloat16 and float16, on one process
and on four. Then the weights of the run in float32 are trained further at a small rate, which moves
few weights in bfloat16 without copies in float32. Last, a scale of the loss that overflows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.distributed.training.log import EvaluateRow, StepRow, read_log

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "context": 64}
HALF = ("bfloat16", "float16")
RATE, FURTHER = 1e-5, 50
"""Learning rate and steps of the second training."""
OVERFLOW = 2.0**40
LINES = 10


class LossCurve(BenchRow, frozen=True):
    """Losses of a run, step by step; `skipped` are the steps whose gradient was not finite."""

    dtype: str
    ranks: int
    losses: list[float]
    held_out: float
    skipped: int
    scale: float | None = None
    """The first scale of the loss, where one is asked for."""

    @property
    def title(self) -> str:
        return "" if self.scale is None else f"first scale {self.scale:g}"

    @property
    def cells(self) -> Cells:
        name, every = f"{self.dtype} x{self.ranks}", max(1, len(self.losses) // LINES)
        if self.scale is not None:
            first, last = (f"{self.losses[step]:.4f}" for step in (self.skipped, -1))
            return {"run": name, "skipped": self.skipped, "then loss": first, "last loss": last}
        steps = range(every, len(self.losses) + 1, every)
        losses = {f"step {step}": f"{self.losses[step - 1]:.4f}" for step in steps}
        return {"run": name, **losses, "held out": f"{self.held_out:.4f}"}

    @classmethod
    def notes(cls, rows: Sequence[LossCurve]) -> Iterator[str]:
        """How far each run is from the one in float32 on as many ranks."""
        plain = {row.ranks: row for row in rows if row.dtype == "float32"}
        for row in rows:
            known = plain.get(row.ranks)
            if known is not None and row.dtype != "float32":
                pairs = zip(row.losses, known.losses, strict=True)
                far = max(abs(loss / other - 1) for loss, other in pairs)
                yield (
                    f"{row.dtype} x{row.ranks}: at most {far:.2%} from float32 in any step, "
                    f"held-out {abs(row.held_out / known.held_out - 1):.2%}; "
                    f"{row.skipped} steps skipped"
                )


class MovedShare(BenchRow, frozen=True):
    """Of the elements that the second training moves in float32, how many it moves in another way.

    The others are frozen.
    """

    kind: str
    moved: int
    frozen: int

    @property
    def title(self) -> str:
        return f"of what float32 moves in {FURTHER} more steps at a rate of {RATE:g}"

    @property
    def cells(self) -> Cells:
        share = self.moved / (self.moved + self.frozen)
        return {"way": self.kind, "moves": f"{share:.1%}", "freezes": self.frozen}


def train(folder: Path, name: str, ranks: int, steps: int, *changes: str) -> LossCurve:
    """Run `primepar train`, and read its log."""
    log = folder / f"{name}-{ranks}.jsonl"
    settings = [f"model.{key}={value}" for key, value in SIZES.items()]
    settings += ["training.device=cpu", f"output.log={log}", "evaluation.every=0", *changes]
    words = [word for setting in settings for word in ("--set", setting)]
    many = ["--ranks", str(ranks)] if ranks > 1 else []
    command = [sys.executable, "-m", "primepar", "train", "--steps", str(steps), *many, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    rows = read_log(log)
    steps_done = [row for row in rows if isinstance(row, StepRow)]
    (held_out,) = (row.loss for row in rows if isinstance(row, EvaluateRow))
    skipped = sum(row.gradient_norm is None for row in steps_done)
    dtype = next((c.partition("=")[2] for c in changes if c.startswith("training.dtype=")), "")
    return LossCurve(dtype, ranks, [row.loss for row in steps_done], held_out, skipped)


def curve(
    kept: TemporaryDirectory[str], ranks: int, dtype: str, steps: int, scale: float | None
) -> LossCurve:
    """Train in a type on some ranks; with a scale of the loss, only as long as it overflows."""
    folder, changes = Path(kept.name), [f"training.dtype={dtype}"]
    if scale is None:
        return train(folder, dtype, ranks, steps, *changes)
    made = train(folder, "overflow", ranks, 40, *changes, f"optimizer.loss_scale={scale}")
    return replace(made, scale=scale)


def moved(kept: TemporaryDirectory[str], steps: int) -> list[MovedShare]:
    """Train in float32, then further at a small rate in three ways; returns what moved."""
    folder = Path(kept.name)
    saves = f"weights.save={folder / 'base.safetensors'}"
    train(folder, "base", 1, steps, "training.dtype=float32", saves)
    shares, base = [], load_file(folder / "base.safetensors")
    ways = {
        "float32": ["training.dtype=float32"],
        "bfloat16, copies in float32": ["training.dtype=bfloat16"],
        "bfloat16, no copies": ["training.dtype=bfloat16", "optimizer.masters=false"],
    }
    known: dict[str, torch.Tensor] = {}
    for kind, changes in ways.items():
        path = folder / "further.safetensors"
        begins = [f"weights.load={folder / 'base.safetensors'}", f"weights.save={path}"]
        small = [f"optimizer.lr={RATE}", "optimizer.warmup=0"]
        train(folder, "further", 1, FURTHER, *begins, *small, *changes)
        new, rounded = load_file(path), "no copies" in kind
        here = {
            name: new[name] != (old.bfloat16().float() if rounded else old)
            for name, old in base.items()
        }
        known = known or here
        count = sum(int((here[name] & known[name]).sum()) for name in known)
        total = sum(int(there.sum()) for there in known.values())
        shares.append(MovedShare(kind, count, total - count))
    return shares


def mixed_precision(steps: int = 200, ranks: tuple[int, ...] = (1, 4)) -> Iterator[Case]:
    if steps < 1 or min(ranks) < 1:
        raise ValueError("expected --steps and --ranks of 1 or more")
    torch.set_num_threads(1)
    folder = TemporaryDirectory()  # the cases have it, and are measured after this returns
    for count in ranks:
        for dtype in ("float32", *HALF):
            yield f"{dtype} x{count}", partial(curve, folder, count, dtype, steps, None)
    yield "weights that move", partial(moved, folder, steps)
    for count in ranks:
        yield f"overflow x{count}", partial(curve, folder, count, "float16", steps, OVERFLOW)


if __name__ == "__main__":
    bench(mixed_precision)
