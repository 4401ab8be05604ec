"""Does the planner answer six questions within their CPU seconds, and near enough to the best?

Every question is put to a process of its own with one thread. Counted is the processor time from
the question to the answer, without the start of Python and the imports. Ends with 1 where a target
is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from time import process_time

from msgspec import Struct

from benchmarks.bench import BenchRow, Case, Cells, bench
from benchmarks.plan import BATCH, CLUSTER
from primepar.commands.plan_objective import Question
from primepar.errors import PlanError
from primepar.models.sizes import MODELS
from primepar.plan.cluster import load_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.within import WithinLimits

_Answer = tuple[str, float]
GAP = 0.005
"""The largest gap of an answer, as a share of the least seconds or bytes."""


class PlannerQuestion(Struct, frozen=True):
    """A question to the planner, with the CPU seconds that its answer may take."""

    text: str
    seconds: float
    gap: float | None
    """The largest gap of the answer; None where none is asked."""
    answer: Callable[[], _Answer]
    """The answer in words, and its gap."""


def planner(devices: int, model: str = "llama-2-70b") -> Planner:
    """The planner of a question about the paper's cluster."""
    return Planner.of(MODELS[model], load_cluster(CLUSTER), devices, BATCH, None)


def _words(plan: SearchResult | None) -> _Answer:
    if plan is None:
        return "none", float("inf")
    return f"{plan.seconds:.4g} s, {plan.memory / 1e9:.4g} GB", plan.gap or 0.0


def _within() -> _Answer:
    return _words(WithinLimits(planner(32)).fastest(1e11))


def _asked(model: str, cluster: str, nodes: int | None, devices: int, batch: int) -> _Answer:
    """What `primepar plan` answers."""
    question = Question(target=model, cluster=cluster, nodes=nodes, devices=devices, batch=batch,
                        dtype="bfloat16" if nodes else None)  # fmt: skip
    try:
        best = question.rows(str)[0]
    except PlanError:
        return "refused", 0.0
    split = best.name or best.split
    return f"{split}: {best.seconds:.4g} s, {best.memory / 1e9:.4g} GB", 0.0


def _on_h100(model: str, nodes: int, batch: int) -> Callable[[], _Answer]:
    return partial(_asked, model, "h100", nodes, 8 * nodes, batch)


QUESTIONS = (
    PlannerQuestion("opt-175b on 8 V100, 32 GiB each", 0.2, None,
                    partial(_asked, "opt-175b", CLUSTER, None, 8, BATCH)),
    PlannerQuestion("llama-2-70b on 32 devices within 100 GB", 5, GAP, _within),
    PlannerQuestion("llama-2-7b on 16 H100", 5, None, _on_h100("llama-2-7b", 2, 16)),
    PlannerQuestion("llama-2-70b on 32 H100", 5, None, _on_h100("llama-2-70b", 4, 32)),
    PlannerQuestion("llama-3.1-70b on 64 H100", 10, None, _on_h100("llama-3.1-70b", 8, 64)),
    PlannerQuestion("llama-3.1-405b on 1,024 H100", 30, None, _on_h100("llama-3.1-405b", 128, 256)),
)  # fmt: skip


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
