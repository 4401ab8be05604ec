"""Transfers in the order in which their results are needed: gathers of I before sums of dI."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
from pipelined_plans import pipelined
from step_cases import lowered
from test_passes import assert_same
from test_passes_wrong import assert_refused

from primepar.operators import lower_step
from primepar.passes import PASSES, apply, needed_first, overlap
from primepar.passes.block_uses import request_of
from primepar.schedule import Program
from primepar.schedule.program import Collective, Compute, Instruction, IRecv, ISend, Wait
from primepar.verify import verify_program

ordering = import_module("primepar.passes.needed_first")
BEFORE = list(PASSES)[: list(PASSES).index("needed-first")]
CUT_OUTSIDE = [("megatron-sp", 4), ("M2,megatron-sp", 4), ("M2,megatron-sp", 8)]


def merged(name: str, ranks: int) -> Program:
    return apply(lowered(name, ranks, "gpt2"), BEFORE)


def hidden(nodes: Sequence[Instruction], block: str) -> list[int]:
    """The number of products during each transfer whose block starts so."""
    posts, counts = dict[str, int](), list[int]()
    for place, node in enumerate(nodes):
        if isinstance(node, Wait) and node.request in posts:
            between = nodes[posts[node.request] : place]
            counts.append(sum(isinstance(node, Compute) for node in between))
        elif request_of(node) is not None and getattr(node, "block", "").startswith(block):
            posts[str(request_of(node))] = place
    return counts


@pytest.mark.parametrize(("name", "ranks"), CUT_OUTSIDE)
def test_the_gather_for_dw_is_hidden_behind_the_product_of_di(name: str, ranks: int) -> None:
    given = merged(name, ranks)
    made = needed_first(given)
    for rank, nodes in enumerate(overlap(given).programs):
        old, new = (
            hidden(nodes, "blocks.0.norm2["),
            hidden(overlap(made).programs[rank], "blocks.0.norm2["),
        )
        half = len(new) // 2
        assert not any(old[half:]), "backward"
        assert all(new[half:]), "backward"
    assert_same(given, made)
    assert needed_first(made) == made


@pytest.mark.parametrize(("name", "ranks"), CUT_OUTSIDE)
def test_all_ranks_of_a_group_have_one_order(name: str, ranks: int) -> None:
    """Of its collectives, and of messages among these: the calls that two ranks share."""
    program = needed_first(merged(name, ranks))
    for one in range(ranks):
        for another in range(one):
            assert shared(program, one, another) == shared(program, another, one)


def shared(program: Program, rank: int, other: int) -> list[object]:
    """What a rank calls together with another one; messages in both directions are alike."""
    calls: list[object] = []
    for node in program.programs[rank]:
        if isinstance(node, Collective) and other in node.group:
            calls.append((type(node), node.group))
        elif isinstance(node, ISend | IRecv) and node.peer == other:
            calls.append("message")
    return calls


@pytest.mark.parametrize("name", ["data", "megatron", "primepar", "summa"])
def test_a_step_without_such_transfers_stays(name: str) -> None:
    given = merged(name, 4)
    assert needed_first(given) is given


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_messages_between_stages_keep_their_order(schedule: str) -> None:
    plan = pipelined(schedule, "megatron-sp", 4)
    given = lower_step(plan, plan.batch or 0, 4, passes=BEFORE)
    made = needed_first(given)
    assert made != given
    assert verify_program(made).verdict == "proved"


def test_a_transfer_before_its_block_is_made_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = merged("megatron-sp", 4)
    monkeypatch.setattr(ordering.TransferSpans, "ready", lambda *args: -1)
    assert_refused(needed_first(given), given, "placement", "alignment", "races")


def test_a_transfer_that_moves_on_some_ranks_alone_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, move = merged("megatron-sp", 4), ordering._Posts.move

    def on_some(self: Any, places: list[int], target: int) -> None:
        if self.number:
            move(self, places, target)

    monkeypatch.setattr(ordering._Posts, "move", on_some)
    assert_refused(needed_first(given), given, "deadlock-freedom")
