"""Losses of training in half precision next to float32, and the weights that move.

Three runs of `primepar train` with the same seed, in float32, bfloat16 and float16, on one process
and on four. Then the weights of the run in float32 are trained further at a small rate, which moves
few weights in bfloat16 without copies in float32. Last, a scale of the loss that overflows.

    python -m benchmarks.mixed_precision [--steps 200] [--ranks 1 4] [--json]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from msgspec import Struct
from safetensors.torch import load_file

from primepar.distributed.training.log import EvaluateRow, StepRow, read_log

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "context": 64}
HALF = ("bfloat16", "float16")
RATE, FURTHER = 1e-5, 50
"""Learning rate and steps of the second training."""
OVERFLOW = 2.0**40
LINES = 10


class LossCurve(Struct):
    """Losses of a run, step by step; `skipped` are the steps whose gradient was not finite."""

    dtype: str
    ranks: int
    losses: list[float]
    held_out: float
    skipped: int


class MovedShare(Struct):
    """Of the elements that the second training moves in float32, how many it moves in another way.

    The others are frozen.
    """

    kind: str
    moved: int
    frozen: int


class PrecisionRuns(Struct):
    """All that is measured."""

    curves: list[LossCurve]
    moved: list[MovedShare]
    overflow: list[LossCurve]


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


def curves(folder: Path, steps: int, ranks: list[int]) -> list[LossCurve]:
    """Train in every type on every number of ranks; weights are saved of float32 on the first."""
    made = []
    for count in ranks:
        for dtype in ("float32", *HALF):
            saves = [f"weights.save={folder / 'base.safetensors'}"]
            keeps = dtype == "float32" and count == ranks[0]
            changes = [f"training.dtype={dtype}", *(saves if keeps else [])]
            made.append(train(folder, dtype, count, steps, *changes))
    return made


def moved(folder: Path) -> list[MovedShare]:
    """Train the saved weights further at a small rate in three ways; returns what moved."""
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


def measure(steps: int, ranks: list[int]) -> PrecisionRuns:
    """Do all runs."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        known = curves(folder, steps, ranks)
        overflow = [
            train(folder, "overflow", count, 40, "training.dtype=float16",
                  f"optimizer.loss_scale={OVERFLOW}")
            for count in ranks
        ]  # fmt: skip
        return PrecisionRuns(known, moved(folder), overflow)


def difference(curve: LossCurve, known: LossCurve) -> float:
    """The largest relative difference of the losses, over all steps."""
    pairs = zip(curve.losses, known.losses, strict=True)
    return max(abs(loss / other - 1) for loss, other in pairs)


def report(runs: PrecisionRuns) -> str:
    """Return the curves and shares as text."""
    head = [f"{curve.dtype} x{curve.ranks}" for curve in runs.curves]
    lines = ["step " + "".join(f"{name:>14}" for name in head)]
    steps = len(runs.curves[0].losses)
    for step in range(max(1, steps // LINES), steps + 1, max(1, steps // LINES)):
        losses = (f"{curve.losses[step - 1]:14.4f}" for curve in runs.curves)
        lines.append(f"{step:4} " + "".join(losses))
    lines.append("held " + "".join(f"{curve.held_out:14.4f}" for curve in runs.curves))
    for curve in runs.curves:
        known = next(c for c in runs.curves if (c.dtype, c.ranks) == ("float32", curve.ranks))
        if curve is not known:
            far, held = difference(curve, known), abs(curve.held_out / known.held_out - 1)
            lines.append(
                f"{curve.dtype} x{curve.ranks}: at most {far:.2%} from float32 in any step, "
                f"held-out {held:.2%}; {curve.skipped} steps skipped"
            )
    lines.append(f"of what float32 moves in {FURTHER} more steps at a rate of {RATE:g}:")
    lines += [f"  {share.kind:28} moves {share.moved / (share.moved + share.frozen):6.1%}, "
              f"freezes {share.frozen}" for share in runs.moved]  # fmt: skip
    lines += [
        f"first scale {OVERFLOW:g}, float16 x{curve.ranks}: {curve.skipped} steps skipped, then "
        f"loss {curve.losses[curve.skipped]:.4f} to {curve.losses[-1]:.4f}"
        for curve in runs.overflow
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the report, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.steps < 1 or min(options.ranks) < 1:
        parser.error("expected --steps and --ranks of 1 or more")
    torch.set_num_threads(1)
    runs = measure(options.steps, options.ranks)
    print(msgspec.json.encode(runs).decode() if options.json else report(runs))


if __name__ == "__main__":
    main()
