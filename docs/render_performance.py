"""The page of the executor's speed, from a run of its benchmark.

    make bench
    python -m docs.render_performance out/bench.json

writes docs/performance.md. All numbers are those of the run.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from benchmarks.bench import BenchRun, load_run, markdown, page_table
from benchmarks.executor import ContenderRow, LeftOut, targets

PAGE = Path(__file__).resolve().parent / "performance.md"
HEAD = """---
description: >-
  The executor next to DTensor and Megatron by hand: CPU, wall time and memory of a step.
---

# Speed and memory of the executor

`make bench` runs what is compared here, over gloo on the CPUs of one machine. Nothing here was
measured on CUDA or NCCL.

- **Problems**: the MLP h, 4h, h with GELU, a transformer block, and a whole GPT up to its
  gradients. M are the rows: all tokens of the batch.
- **Contenders**: the [presets](plans.md) of the library, DTensor with `parallelize_module`, with
  and without sequence parallelism, and Megatron's partition by hand in plain `torch.distributed`.
  `megatron-sp by hand` follows [Korthikanti et al.](https://arxiv.org/abs/2205.05198): the gathered
  input of a layer is gathered again in backward. `megatron-sp by hand, kept` sends less for
  more memory. Before the first round each one is compared with one device in float64.
- **The floor** is the products of one rank without any communication, in plain torch modules.
  There are two: this rank's columns of the weights, or this rank's rows of the input. The cheaper
  one counts.
- **Rounds**: in each round all contenders run, in an order that changes. CPU seconds are user and
  system time of all ranks, with every thread. The barriers around a round are not in them.
- **The score** is the median over rounds of a contender's CPU above the floor, over that of
  DTensor. The interval has 95% by a bootstrap over rounds.
- **The policy**: all ranks of all contenders run under SCHED_BATCH, as `primepar train` starts
  them ([why](executor.md)). `python -m benchmarks.executor` without `--batch` measures them under
  the default policy. There all contenders need more CPU, and on small problems ours need more of
  DTensor's: what gloo's threads spin away depends on when messages are posted.
- **The best plan** of a target is the one with the lowest upper end in this run. So it is chosen
  after the run, of all presets that fit.
- **New memory** is the peak of torch's allocator during two steps, on the fullest rank. The
  rank's input, output gradient and weights are left out, as they are there before the step.
  Buffers inside gloo are not seen.
- **Sent** are the bytes of all ranks in a step, where a collective counts as a ring. Messages,
  collectives and waits are instructions of the program, of all ranks together.
"""


def page(run: BenchRun[ContenderRow | LeftOut]) -> str:
    """The page of a run."""
    rows = [row for row in run.measured if isinstance(row, ContenderRow)]
    policy = ", all ranks under SCHED_BATCH" if run.options["batch"] else ""
    parts = [HEAD.rstrip(), f"**The run**: {run.load}; gloo, float32, {run.options['rounds']} "
             f"rounds{policy}."]  # fmt: skip
    if run.load is not None and not run.load.idle:
        parts.append("The machine was loaded, so times are no evidence for or against a target.")
    known = list(targets(rows))
    parts += [
        "## Targets",
        "A target is met if the upper end of the interval is within the limit. "
        "[Those that are missed](executor.md#targets-that-are-missed) have a profile.",
        page_table(known[0], (line.values() for line in known), "---"),
    ]
    for problem, some in groupby(run.measured, lambda row: row.problem):
        of_problem = list(some)
        contenders = [row for row in of_problem if isinstance(row, ContenderRow)]
        parts += [f"## {problem.replace(',', ', ')}", f"Floor: `{contenders[0].floor}`."]
        parts.append(markdown(contenders))
        parts += [f"Left out: {row.why}." for row in of_problem if isinstance(row, LeftOut)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m docs.render_performance out/bench.json")
    run = load_run(Path(sys.argv[1]), ContenderRow, LeftOut)
    PAGE.write_text(page(run), encoding="utf-8")


if __name__ == "__main__":
    main()
