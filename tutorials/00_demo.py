# %% [markdown]
# # The whole way, in one run
#
# One primitive, PrimePar's `P2x2`, from its proof to a training run. It is proved for every side,
# a careless copy of it is refuted, and it is emulated on four devices. Then four processes train
# with it, and one process trains without it. The run ends with an error if the two losses differ,
# or if a byte more or less is sent than the formula gives. `make demo` runs this file; everything
# it writes is in the folder `demo`.

# %%
import argparse
import subprocess
import sys
import time
from pathlib import Path

from primepar.distributed.training.log import EvaluateRow, StartRow, StepRow, read_log

OUT = Path("demo")
ONE, FOUR = OUT / "one_process.jsonl", OUT / "four_processes.jsonl"
MOST_APART = 1e-3
"""Relative difference of two float32 losses, above which the demo fails."""
SECONDS = {"start": 10, "one process": 0.05, "four processes": 0.3}
"""To start and to evaluate all five processes, and for each step, on two cores.

Measured with this script on an idle virtual machine; on busy cores it takes longer.
"""
CARELESS = """\
from primepar.partition import PrimePar


class Careless(PrimePar):
    # PrimePar without the realignment at the last step of gradient.
    def gradient(self, r, c, t, s):
        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)
"""


def heading(number, text):
    print(f"\n{number}. {text}\n" + "-" * (len(text) + 3), flush=True)


def primepar(*arguments, expected=0):
    """Run a command as a user would; end with its exit code if that is not the expected one."""
    print("$ primepar", *arguments, flush=True)
    code = subprocess.run([sys.executable, "-m", "primepar", *map(str, arguments)]).returncode
    if code != expected:
        sys.exit(code or f"demo: expected exit code {expected}, got 0")
    print()


def estimate(steps):
    """Seconds that both trainings take together on two cores of a virtual machine."""
    return SECONDS["start"] + steps * (SECONDS["one process"] + SECONDS["four processes"])


def rows(path, kind):
    return [row for row in read_log(path) if isinstance(row, kind)]


# %% [markdown]
# ## What four processes may send
#
# Equations 4 to 6 of the paper give, for one linear operator of M x N x K over `p = s * s` devices
# and one training step, `[2 (s - 1) (M N + M K) + 2 s N K] / p` elements per device.


# %%
def bytes_by_formula(start, s=2, itemsize=4):
    """Bytes that each device sends in one training step, over all linear operators."""
    M, p = start.batch * start.model.context, s * s
    shapes = start.model.linear_shapes.values()
    return itemsize * sum((2 * (s - 1) * (M * N + M * K) + 2 * s * N * K) / p for N, K in shapes)


def compare_losses(one, four):
    """Print both curves; exit with 1 if they are too far apart anywhere."""
    if [row.step for row in one] != [row.step for row in four]:
        sys.exit("demo: the two runs did not do the same steps")
    apart = [abs(a.loss - b.loss) / a.loss for a, b in zip(one, four, strict=True)]
    print("  step   1 process   4 processes   relative difference")
    for row, other, difference in zip(one, four, apart, strict=True):
        if row.step == 1 or row.step % max(1, len(one) // 10) == 0:
            print(f"  {row.step:4}   {row.loss:9.6f}   {other.loss:11.6f}   {difference:.1e}")
    print(f"Largest relative difference of the losses: {max(apart):.1e}, allowed {MOST_APART:.0e}.")
    if not all(difference <= MOST_APART for difference in apart):
        sys.exit("demo: the losses of one and of four processes differ")


def compare_bytes(start, four):
    """Print bytes counted and by the formula; exit with 1 unless they are equal at every step."""
    expected = bytes_by_formula(start)
    counted = {sent for row in four for sent in row.sent_bytes}
    print(f"Bytes sent per rank and step for the {len(start.model.linear_shapes)} linear "
          f"operators: {', '.join(f'{sent:.0f}' for sent in sorted(counted))}.")  # fmt: skip
    print(f"By the formula [2(s-1)(MN+MK) + 2sNK]/p:               {expected:.0f}.")
    others = {sent for row in four for sent in row.other_bytes}
    print(f"Besides, for redistribution, norms, embeddings and loss: {min(others):.0f}"
          f"{f' to {max(others):.0f}' if len(others) > 1 else ''}.")  # fmt: skip
    if counted != {expected}:
        sys.exit("demo: the bytes that were sent are not those of the formula")


# %% [markdown]
# ## The run


# %%
def main(steps):
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)

    print(f"Proofs first: a few seconds. Then training, twice {steps} steps: about "
          f"{estimate(steps):.0f} s on two cores.")  # fmt: skip

    heading(1, "Proved: right on every mesh, of any side")
    primepar("verify", "primepar")

    heading(2, "Refuted: the same without its last realignment")
    (OUT / "careless.py").write_text(CARELESS, encoding="utf-8")
    primepar("verify", f"{OUT / 'careless.py'}:Careless", expected=1)

    heading(3, "Emulated: four devices with memories of their own against one device")
    primepar("check", "primepar", "--side", 2)
    primepar("show", "primepar", "--side", 2, "--phase", "forward")
    primepar("show", "primepar", "--side", 2, "--output", OUT / "schedule.svg")
    print(f"So far {time.monotonic() - began:.0f} s. The training that follows takes about "
          f"{estimate(steps):.0f} s on two cores.")  # fmt: skip

    same = ["--steps", steps, "--set", "training.batch=4", "--set", "training.device=cpu"]
    heading(4, f"Trained on one process: {steps} steps")
    primepar("train", *same, "--set", f"output.log={ONE}")

    heading(5, f"Trained on four processes: the same {steps} steps")
    timeline = OUT / "timeline.svg"
    written = ["--set", f"output.log={FOUR}", "--set", f"output.trace={timeline}"]
    primepar("train", *same, "--ranks", 4, *written)

    heading(6, "Compared")
    (start,), four = rows(FOUR, StartRow), rows(FOUR, StepRow)
    compare_losses(rows(ONE, StepRow), four)
    held_out = [rows(path, EvaluateRow)[-1].loss for path in (ONE, FOUR)]
    print(f"Held-out loss after {steps} steps: {held_out[0]:.4f} and {held_out[1]:.4f}.\n")
    compare_bytes(start, four)

    heading(7, "Where to look")
    print(f"  {OUT / 'schedule.svg'}  the schedule")
    print(f"  {timeline}  one training step on four processes, as it was measured")
    print(f"  {ONE}, {FOUR}  the logs")
    print(f"\nAll of it held, in {time.monotonic() - began:.0f} seconds.")
    print(
        "Next: write a primitive of your own, as README shows, and run it with .venv/bin/primepar."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prove, refute, emulate and train P2x2.")
    parser.add_argument("--steps", type=int, default=100, help="training steps of each run")
    main(parser.parse_args().steps)
