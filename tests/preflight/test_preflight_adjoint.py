"""Gradients that cross ranks: right and wrong scripts, compared with what they compute on gloo."""

from __future__ import annotations

import random
import re
import runpy
import sys
from functools import cache
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from captured import SCRIPTS, Case, answer
from distributed_ranks import on_ranks
from profiles import IS_LONG

SCRIPT = "adjoints.py"
Changes = tuple[str, ...]
RANKS = {"pipeline": 2, "gather": 2, "exchange": 2, "copy": 2, "halo": 3, "ring": 3}
CHANGES = {
    "pipeline": ["again", "zeros", "clone", "double", "data"],
    "gather": ["slice", "sum", "next", "minus"],
    "exchange": ["roll", "thrice", "half", "none"],
    "copy": ["ranks", "without0", "without1"],
    "halo": ["row", "none", "onward", "first"],
    "ring": ["short", "swap", "local"],
}
"""Changes of each kind."""
SHORT = {"again", "zeros", "slice", "roll", "ranks", "without0", "row", "short"}
"""Those of the short profile, of which `SENTENCES` has most."""


def orders(seed: int) -> Changes:
    """A pipeline whose messages are sent, received, returned and used in some order each."""
    draw = random.Random(seed)
    names = draw.sample("stre", draw.choice([1, 2, 2, 4]))
    changes = [name + "".join(draw.sample("012", 3)) for name in names]
    if draw.random() < 0.5:  # The other side does the same, which may repair it.
        changes += [{"s": "t", "t": "s", "r": "e", "e": "r"}[one[0]] + one[1:] for one in changes]
    return tuple(changes)


CASES = {
    (kind, *changes): Case(SCRIPT, ("-n", str(RANKS[kind])), (), (kind, *changes))
    for kind, changes in [
        *((kind, ()) for kind in RANKS),
        *(
            (kind, (change,))
            for kind, changes in CHANGES.items()
            for change in changes
            if IS_LONG or change in SHORT
        ),
        *(("pipeline", orders(seed)) for seed in range(400 if IS_LONG else 1)),
        ("gather", ("slice", "same")),
        ("copy", ("twice",)),
    ]
}


SCHEDULES = {
    (name, *deferred): Case("schedules.py", ("-n", "2"), (), (name, *deferred))
    for name in ("ZBVZeroBubble", "InterleavedZeroBubble", "DualPipeV", "Interleaved1F1B")
    for deferred in ((), ("defer",))
    if (not deferred or name.endswith("ZeroBubble")) and (IS_LONG or name == "ZBVZeroBubble")
}


def gradients(cases: list[Changes]) -> list[list[float]]:
    """The gradients of the weights of this rank in each case, on a real backend."""
    results = []
    for case in cases:
        with patch.object(sys, "argv", [SCRIPT, *case]), patch.object(dist, "init_process_group"):
            weights = runpy.run_path(str(SCRIPTS / SCRIPT))["results"]
        results.append(torch.cat([weight.grad.reshape(-1) for weight in weights]).tolist())
    return results


@cache
def harmful() -> set[Changes]:
    """The cases whose gradients are other ones than those of their script without a change."""
    wrong = set()
    for ranks in (2, 3):
        cases = [case for case in CASES if RANKS[case[0]] == ranks and "same" not in case]
        for of_rank in on_ranks(ranks, gradients, cases):
            numbers = dict(zip(cases, of_rank, strict=True))
            for case, gradient in numbers.items():
                if gradient != pytest.approx(numbers[case[:1]], rel=1e-4, abs=1e-5):
                    wrong.add(case)
    return wrong


@pytest.mark.parametrize("kind", RANKS)
def test_scripts_are_refuted_exactly_where_gloo_computes_other_gradients(kind: str) -> None:
    verdicts = {
        case: answer(CASES[case]).code for case in CASES if case[0] == kind and "same" not in case
    }
    assert verdicts == {case: int(case in harmful()) for case in verdicts}


def test_a_function_that_computes_too_is_compared_with_autograd() -> None:
    assert (
        "9 gradients of Ring are those that autograd computes of all ranks' forward pass, on "
        "random numbers" in answer(CASES["ring",]).out
    )


def test_ranks_that_compute_alike_may_take_their_part() -> None:
    assert answer(CASES["gather", "slice", "same"]).code == 0
    assert answer(CASES["gather", "slice"]).code == 1


SENTENCES: dict[Changes, str] = {
    ("pipeline", "again"): "rank 0, backward at adjoints.py:37: expected the gradient of what rank "
    "0 gave to instruction 1 (isend x1 -> 1) at adjoints.py:33, got that of what rank 0 gave to "
    "instruction 2 (isend x2 -> 1) at adjoints.py:33, which rank 1 received in instruction 2 (recv "
    "x2 <- 0) at adjoints.py:42 and computed at adjoints.py:45: send and receive both in one "
    "order, and give each gradient to the output that it belongs to",
    ("pipeline", "zeros"): "rank 0, backward at adjoints.py:37: expected the gradient of what rank "
    "0 gave to instruction 1 (isend x1 -> 1) at adjoints.py:33 with that of its copies on rank 1, "
    "computed at adjoints.py:45, got it without: let rank 1 send it, and add it to the others "
    "before backward",
    ("gather", "slice"): "rank 0, backward of Gather at adjoints.py:95: expected the gradient that "
    "autograd computes of the forward pass of all ranks, got one that differs by N% of its size "
    "on random numbers: its forward pass communicates by all_gather and its backward by none: send "
    "back, and sum, what the forward pass has sent",
    ("ring", "short"): "rank 0, backward of Ring at adjoints.py:255: expected the gradient that "
    "autograd computes of the forward pass of all ranks, got one that differs by N% of its size "
    "on random numbers: its forward pass communicates by send and recv and its backward by send "
    "and recv: send back, and sum, what the forward pass has sent",
    ("copy", "ranks"): "rank 1, backward of Sum at adjoints.py:168: expected the gradient that "
    "autograd computes of the forward pass of all ranks, got one that differs by N% of its size "
    "on random numbers: its forward pass communicates by all_reduce and its backward by none: send "
    "back, and sum, what the forward pass has sent",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_gradient_of_something_else_is_refuted_with_both_lines(case: Changes) -> None:
    # Random numbers are drawn by the bits of what the script computes, so by how much of its size
    # a gradient differs is another number on another processor.
    by = re.compile(r"differs by \d+%")
    printed = by.sub("differs by N%", answer(CASES[case]).out)
    assert f"\n      {SENTENCES[case]}\n" in printed


@pytest.mark.parametrize("case", SCHEDULES)
def test_deferred_receives_of_zero_bubble_schedules_are_refuted(case: Changes) -> None:
    done = answer(SCHEDULES[case])
    assert done.code == ("defer" in case)
    assert ("12 gradients came back to what they are gradients of" in done.out) == (not done.code)
    both = (
        "at schedules.py:21, got that of" in done.out and "computed at schedules.py:21" in done.out
    )
    assert both == bool(done.code)
