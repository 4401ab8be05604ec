"""Additions of received partial sums come right before the first use of their sum."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from phase_programs import Json, built
from phase_programs import program as program_of
from step_cases import lowered
from test_passes import assert_same
from test_passes_wrong import addition, assert_refused

from primepar.models.sizes import find_model
from primepar.operators import lower_step
from primepar.passes import PASSES, add_late, apply
from primepar.passes.liveness import peaks
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Program
from primepar.schedule.hidden_time import communication
from primepar.schedule.program import Compute
from primepar.verify import verify_program

delaying = import_module("primepar.passes.add_late")
BEFORE = [name for name in PASSES if name not in ("add-late", "overlap")]


def merged(name: str, ranks: int) -> Program:
    return apply(lowered(name, ranks, "gpt2"), BEFORE)


def own(nodes: list[Json], **sizes: int) -> Program:
    """A program of one rank that starts with blocks a, b and the scratch block s."""
    tensors: Json = {name: {"cuts": [[0, sizes.get(name, 4)]]} for name in "abcds"}
    return built(program_of([nodes], tensors=tensors, initial=[["a[0]", "b[0]", "s[0]"]]))


FREE: Json = {"op": "free", "block": "s[0]"}
ADD = addition(["s[0]"], "a[0]")


def test_an_addition_moves_to_the_first_use_of_its_sum() -> None:
    made, used = addition(["b[0]"], "c[0]"), addition(["a[0]"], "d[0]")
    given = own([ADD, FREE, made, used], c=1, d=1, s=1)
    delayed = add_late(given)
    assert [given.programs[0].index(node) for node in delayed.programs[0]] == [2, 0, 1, 3]
    assert verify_program(given).verdict == verify_program(delayed).verdict == "proved"


def test_an_addition_comes_before_what_has_no_room_next_to_its_scratch_block() -> None:
    given = own([ADD, FREE, addition(["b[0]"], "c[0]"), addition(["a[0]"], "d[0]")], d=1)
    assert peaks(given) == [13]
    assert add_late(given) == given


@pytest.mark.parametrize("name", ["stationary", "M2,megatron-sp", "primepar", "tesseract"])
def test_a_step_is_the_same_with_late_additions(name: str) -> None:
    given = merged(name, 4)
    made = add_late(given)
    assert made != given
    assert_same(given, made)
    assert add_late(made) == made
    assert all(map(int.__le__, peaks(made), peaks(given)))


@pytest.mark.parametrize("name", ["stationary", "summa", "M2,megatron-sp"])
def test_products_hide_more_of_the_messages_of_sums(name: str) -> None:
    """In a simulated step of one layer of OPT-6.7B on 4 of 8 x H200."""
    cluster, model = load_cluster("h200-8"), replace(find_model("opt-6.7b"), layers=1)
    plan = preset_plan(name, model, 4)
    before, after = (
        simulate_step(
            plan, 4, model.context, cluster, "bfloat16",
            program=lower_step(plan, 4, model.context, passes=passes),
        )
        for passes in ([name for name in PASSES if name != "add-late"], PASSES)
    )  # fmt: skip
    hidden = [communication(run.events)[0].share for run in (before, after)]
    assert hidden[0] < hidden[1]
    assert after.seconds < before.seconds


def test_a_late_addition_that_no_use_waits_for_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = merged("stationary", 4)

    def uses(used: Any, addition: Compute) -> bool:
        return False

    monkeypatch.setattr(delaying, "_uses", uses)
    assert_refused(add_late(given), given, "placement", "alignment", "completion", "races")
