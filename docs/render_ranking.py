"""The page of predicted and measured plans, from a run of its benchmark.

    python -m benchmarks.predicted_and_measured --out out/ranking.json
    python -m docs.render_ranking out/ranking.json

writes docs/planner-ranking.md. All numbers are those of the run.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from benchmarks.bench import BenchRun, load_run, markdown
from benchmarks.predicted_and_measured import (
    LARGEST_REGRET,
    LEAST_TAU,
    SHARES,
    ProfileRow,
    RankedPlan,
    RankingScores,
)
from docs.render_reproduction import words

RankingRow = ProfileRow | RankedPlan | RankingScores
PAGE = Path(__file__).resolve().parent / "planner-ranking.md"
HEAD = f"""---
description: >-
  Plans drawn at random, predicted by the planner and measured: Kendall's tau, regret, errors.
---

# Predicted plans next to measured ones

Does the planner rank plans as a machine does, and is its own choice among the fastest? `python -m
benchmarks.predicted_and_measured` measures it on four processes of one machine, over gloo. Nothing
here was measured on CUDA or NCCL.

- **The draw** looks at no time, and no plan is left out afterwards. A plan starts as a
  [preset](plans.md) on all devices, or as two copies of one, each as likely. Then one of the shares
  {", ".join(f"{share:.0%}" for share in SHARES)} is drawn. Every operator is changed with this
  probability: it takes one of its sequences in `--space all`, each as likely.
- **In addition** the planner's own choice and Megatron's plans are measured. They are in no score
  of the drawn plans.
- **The machine** is profiled at the start of the same run, unless the run states a given file.
- **Measured** is the median step of `primepar train`, on the slowest rank. In each round every plan
  makes one step, in an order that changes. CPU is of all ranks together.
- **Tau** is Kendall's: +1 where predicted and measured order agree. Its interval has 95%, by a
  bootstrap over plans. The tau of CPU has the CPU seconds of all ranks in the place of the time: on
  cores that ranks share, both have the same order unless other work is in between.
- **Regret** is how much longer than the fastest measured plan the chosen one takes. First that is
  the drawn plan which the cost model prefers, among the drawn ones. Then it is the plan which the
  search chooses, among all that were measured.
- **Repeated** is what noise leaves of a perfect prediction: the odd rounds predict the even ones.
- **Blind** is the mean regret of a drawn plan, which a constant prediction gives. The tau of a
  constant is 0.
- **Error** is the median distance of predicted from measured, over measured. The constant next to
  it is the best one, chosen after the measurement.

The targets are a tau of at least {LEAST_TAU} and both regrets of at most {LARGEST_REGRET:.0%}.
"""


def page(run: BenchRun[RankingRow]) -> str:
    """The page of a run."""
    parts = [HEAD.rstrip(), words(f"**The run**: {run.load}; {run.options}.")]
    if run.load is not None and not run.load.idle:
        parts.append("The machine was loaded, so times are no evidence for or against a target.")
    scores = [row for row in run.measured if isinstance(row, RankingScores)]
    parts += ["## Scores", markdown(scores), *map(words, RankingScores.notes(scores))]
    plans = [row for row in run.measured if isinstance(row, RankedPlan)]
    for of_model, (_, rows) in zip(scores, groupby(plans, lambda row: row.model), strict=True):
        parts.append(f"## {of_model.model}")
        parts.append(words(
            f"{of_model.parameters:,} parameters, {of_model.tokens:,} tokens a step; the rank of "
            "each plan is behind its time."
        ))  # fmt: skip
        parts.append(markdown(list(rows)))
    for row in run.measured:
        if isinstance(row, ProfileRow):
            parts += ["## The profile", "The cluster file of this run:"]
            parts.append(f"```toml\n{row.text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page of the run in a file."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m docs.render_ranking out/ranking.json")
    run = load_run(Path(sys.argv[1]), ProfileRow, RankedPlan, RankingScores)
    PAGE.write_text(page(run), encoding="utf-8")


if __name__ == "__main__":
    main()
