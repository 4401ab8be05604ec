"""Does the planner answer five questions within their CPU seconds, and near enough to the best?

Every question is put to a process of its own with one thread. Counted is the processor time from
the question to the answer, without the start of Python and the imports. Ends with 1 where a target
is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from time import process_time

from msgspec import Struct

from benchmarks.bench import BenchRow, Case, Cells, bench
from benchmarks.plan import BATCH, CLUSTER
from primepar.errors import PlanError
from primepar.models.sizes import MODELS
from primepar.plan.cluster import load_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import EXECUTED
from primepar.plan.search.within import WithinLimits, refuse_what_cannot_fit

GAP = 0.005
"""The largest gap of an answer, as a share of the least seconds or bytes."""


class PlannerQuestion(Struct, frozen=True):
    """A question to the planner, with the CPU seconds that its answer may take."""

    text: str
    seconds: float
    gap: float | None
    """The largest gap of the answer; None where none is asked."""
    answer: Callable[[], tuple[str, float]]
    """The answer in words, and its gap."""


def planner(devices: int, model: str = "llama-2-70b") -> Planner:
    """The planner of a question about the paper's cluster."""
    return Planner.of(MODELS[model], load_cluster(CLUSTER), devices, BATCH, None)


def _refused() -> tuple[str, float]:
    try:
        refuse_what_cannot_fit(planner(8, model="opt-175b"))
    except PlanError:
        return "refused", 0.0
    return "a plan", float("inf")


def _words(plan: SearchResult | None) -> tuple[str, float]:
    if plan is None:
        return "none", float("inf")
    return f"{plan.seconds:.4g} s, {plan.memory / 1e9:.4g} GB", plan.gap or 0.0


def _within() -> tuple[str, float]:
    return _words(WithinLimits(planner(32)).fastest(1e11))


def _splits(model: str, nodes: int, batch: int) -> tuple[str, float]:
    """The fastest split of nodes of 8 H100, of steps of sequences of 4096 or 8192 tokens."""
    sizes, cluster = MODELS[model], load_cluster("h100", nodes)
    sizes = replace(sizes, context=min(sizes.context, 8192))
    splits = Splits(sizes, cluster, cluster.devices, batch, "bfloat16", "paper", choices=EXECUTED,
                    posted=True)  # fmt: skip
    best = splits.ranked()[0]
    split = " x ".join(map(str, best.split))
    return f"{split}: {best.seconds:.4g} s, {best.memory / 1e9:.4g} GB", 0.0


QUESTIONS = (
    PlannerQuestion("opt-175b on 8 V100, 32 GiB each", 0.2, None, _refused),
    PlannerQuestion("llama-2-70b on 32 devices within 100 GB", 5, GAP, _within),
    PlannerQuestion("llama-2-70b on 32 H100", 5, None, partial(_splits, "llama-2-70b", 4, 32)),
    PlannerQuestion("llama-3.1-70b on 64 H100", 10, None, partial(_splits, "llama-3.1-70b", 8, 64)),
    PlannerQuestion(
        "llama-3.1-405b on 1,024 H100", 30, None, partial(_splits, "llama-3.1-405b", 128, 256)
    ),
)


class AnswerRow(BenchRow, frozen=True):
    """The answer to one question: its CPU seconds, its words and its gap."""

    timed = ("seconds",)
    place: int
    """Of the question."""
    seconds: float
    answer: str
    gap: float

    @property
    def met(self) -> bool:
        """Whether the answer is in time and near enough."""
        question = QUESTIONS[self.place]
        near = question.gap is None or self.gap <= question.gap
        return self.seconds <= question.seconds and near

    @property
    def code(self) -> int:
        return 0 if self.met else 1

    @property
    def cells(self) -> Cells:
        question = QUESTIONS[self.place]
        return {
            "question": question.text,
            "CPU seconds": f"{self.seconds:.3f}",
            "target": question.seconds,
            "answer": self.answer,
            "gap": "" if self.gap == 0 else f"{self.gap:.2%}",
            "met": "yes" if self.met else "no",
        }


def measure(place: int) -> AnswerRow:
    """Put one of the questions here."""
    start = process_time()
    answer, gap = QUESTIONS[place].answer()
    return AnswerRow(place, process_time() - start, answer, gap)


def in_own_process(place: int) -> AnswerRow:
    """The answer of a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, place).result()


def planner_answers() -> Iterator[Case]:
    for place, question in enumerate(QUESTIONS):
        yield question.text, partial(in_own_process, place)


if __name__ == "__main__":
    bench(planner_answers, rounds=3)
