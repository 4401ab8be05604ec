"""Programs that end under rendezvous and hang where each rank has one queue (NCCL).

The check of a program is held against what real processes do on a backend with NCCL's rules, on
random programs: with HYPOTHESIS_PROFILE=ci on 1,000 of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import msgspec
import ordered_ranks
import pytest
from distributed_ranks import on_ranks
from lowered_steps import lower_step
from nccl_rules import EAGER, LAZY, SHARED
from ordered_programs import drawn, program_of
from partitioned_cases import SHAPES
from pipelined_plans import POSITIONS, SCHEDULES, pipelined
from profiles import IS_LONG, few

from primepar.plan import preset_plan
from primepar.schedule import Program
from primepar.schedule.matching import Matches
from primepar.schedule.one_queue import in_one_queue, out_of_order
from primepar.schedule.program import Alloc, Group, Instruction, IRecv, ISend, Recv, Send, Wait
from primepar.schedule.transport import batches
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.schedule.words import NCCL_ADVICE
from primepar.verify import verify_program

COUNT = 1000 if IS_LONG else 60
DRAWN = [drawn(seed) for seed in range(COUNT)]


def finishes(program: Program) -> bool:
    """Whether a program ends under rendezvous, in any order within a communicator."""
    matches = Matches(program)
    assert not matches.faults
    return cycle_of(WaitGraph(matches)) is None


def outcomes(programs: list[Program], backend: str, checked: bool = False) -> list[list[str]]:
    """What every program came to, on each rank: "" or its error."""
    texts = [msgspec.json.encode(program) for program in programs]
    by_rank = on_ranks(programs[0].ranks, ordered_ranks.outcomes, texts, checked, backend=backend)
    return [list(errors) for errors in zip(*by_rank, strict=True)]


def exchange(*, swapped: bool, names: tuple[str, str] = ("world", "world")) -> Program:
    """Each of two ranks sends the other a block; `swapped` on rank 1 has its two posts swapped.

    What is between the posts makes them two batches.
    """
    (one, two), ready = names, Alloc("y0[0]")
    first: list[Instruction] = [
        IRecv(1, "x1.got[0]", communicator=one, request="in"), ready,
        ISend(1, "x0[0]", communicator=two, request="out"),
    ]  # fmt: skip
    second: list[Instruction] = [
        ISend(0, "x1[0]", communicator=one, request="out"), ready,
        IRecv(0, "x0.got[0]", communicator=two, request="in"),
    ]  # fmt: skip
    if swapped:
        second.reverse()
    waits: list[Instruction] = [Wait("in"), Wait("out")]
    return program_of([first + waits, second + waits])


@cache
def drawn_outcomes(backend: str) -> list[list[str]]:
    return outcomes(DRAWN, backend)


def test_a_random_program_is_refused_exactly_if_it_hangs() -> None:
    for seed, (program, errors) in enumerate(zip(DRAWN, drawn_outcomes(EAGER), strict=True)):
        assert all(error == "" or error.startswith("deadlock under") for error in errors), seed
        assert any(errors) == (out_of_order(program) is not None), seed


def test_one_order_is_stricter_than_rendezvous_and_the_random_programs_show_it() -> None:
    refused = [out_of_order(program) is not None for program in DRAWN]
    ends = [finishes(program) for program in DRAWN]
    only_ordered = sum(both == (True, True) for both in zip(refused, ends, strict=True))
    neither = sum(both == (True, False) for both in zip(refused, ends, strict=True))
    assert (False, False) not in set(zip(refused, ends, strict=True))
    assert only_ordered >= COUNT // 20
    assert neither >= COUNT // 20
    assert refused.count(False) >= COUNT // 3


def test_what_ends_in_one_queue_ends_in_two_and_what_ends_in_two_ends_under_rendezvous() -> None:
    one, two = ([not any(errors) for errors in drawn_outcomes(name)] for name in (EAGER, SHARED))
    ends = [finishes(program) for program in DRAWN]
    assert all(a <= b <= c for a, b, c in zip(one, two, ends, strict=True))
    assert sum(one) < sum(two) < sum(ends)


@pytest.mark.parametrize(
    ("backend", "ends"), [(LAZY, [True, True]), (SHARED, [True, False]), (EAGER, [False, False])]
)
def test_communicators_that_share_a_queue_hold_each_other_up(
    backend: str, ends: list[bool]
) -> None:
    """In two queues the third communicator is with the first one, the second with the world."""
    pairs = [exchange(swapped=True, names=("up", name)) for name in ("down", "late")]
    assert [not any(errors) for errors in outcomes(pairs, backend)] == ends


@pytest.mark.parametrize("backend", [LAZY, EAGER])
def test_posts_in_another_order_hang_and_in_one_order_do_not(backend: str) -> None:
    right, wrong = exchange(swapped=False), exchange(swapped=True)
    (good, bad) = outcomes([right, wrong], backend)
    assert good == ["", ""]
    assert bad == [bad[0]] * 2
    assert bad[0].splitlines()[:3] == [
        "deadlock under the rules of NCCL: no rank can go on",
        "  rank 0 waits for recv from 1 of 2 float64",
        "  rank 1 waits for recv from 0 of 2 float64",
    ]
    assert bad[0].splitlines()[3:] == [
        "  rank 0, communicator 0: recv from 1 of 2 float64, then 1 more",
        "  rank 1, communicator 0: recv from 0 of 2 float64, then 1 more",
    ]


def test_the_same_posts_do_not_hang_on_gloo() -> None:
    wrong = exchange(swapped=True)
    assert finishes(wrong)
    assert outcomes([exchange(swapped=False), wrong], "gloo") == [["", ""]] * 2


def send_around_a_group() -> Program:
    """Rank 0 receives two messages in one group; rank 1 receives one between its two sends."""
    group = Group((Recv(1, "x1.got[0]"), Recv(1, "x2.got[0]")))
    first: list[Instruction] = [ISend(1, "x0[0]", request="out"), group, Wait("out")]
    return program_of([first, [Send(0, "x1[0]"), Recv(0, "x0.got[0]"), Send(0, "x2[0]")]])


def test_the_executor_and_the_prover_name_what_waits_in_one_line() -> None:
    wrong = send_around_a_group()
    text = (
        "rank 0, instruction 0 (isend x0[0] -> 1) and rank 1, instruction 0 (send x1[0] -> 0) "
        f"wait for each other: {NCCL_ADVICE}"
    )
    assert finishes(wrong)
    assert out_of_order(wrong) == text
    assert in_one_queue(wrong) is wrong
    (errors,) = outcomes([wrong], EAGER, checked=True)
    whole = (
        "program: expected one that ends on NCCL, where the operations of a rank may run one "
        f"after another, got one where {text}"
    )
    assert errors == [whole] * 2
    (answer,) = verify_program(wrong, only="deadlock-freedom").properties
    note = f"not on NCCL, where the operations of a rank may run one after another: {text}"
    assert (answer.verdict, answer.reason) == ("proved", note)
    (good,) = verify_program(exchange(swapped=True), only="deadlock-freedom").properties
    assert (good.verdict, good.reason) == ("proved", None)


def test_what_the_executor_accepts_ends() -> None:
    programs = [*DRAWN, exchange_of_three()]
    for seed, (program, errors) in enumerate(
        zip(programs, outcomes(programs, EAGER, checked=True), strict=True)
    ):
        refused = out_of_order(in_one_queue(program)) is not None
        assert [error.partition(":")[0] for error in errors] == ["program" * refused] * 3, seed
        assert refused >= (not finishes(program)), seed


def exchange_of_three() -> Program:
    """The swapped exchange of two ranks, with a third that does nothing."""
    return program_of([*map(list, exchange(swapped=True).programs), []])


def test_without_groups_every_program_that_ends_under_rendezvous_ends_in_one_queue() -> None:
    held_up = [
        program
        for program in DRAWN
        if finishes(program) and out_of_order(program) and not has_groups(program)
    ]
    assert len(held_up) >= COUNT // 20
    assert [out_of_order(in_one_queue(program)) for program in held_up] == [None] * len(held_up)
    assert out_of_order(in_one_queue(exchange(swapped=True))) is None


def test_posts_that_move_match_as_before() -> None:
    for program in [*DRAWN, exchange(swapped=True)]:
        moved = in_one_queue(program)
        assert partners(moved) == partners(program)
        assert [Counter(nodes) for nodes in moved.programs] == list(map(Counter, program.programs))
        assert (moved is program) == (
            out_of_order(program) is None or out_of_order(moved) is not None
        )


def has_groups(program: Program) -> bool:
    """A group is one operation, which may have to end before a message of it can."""
    return any(isinstance(node, Group) for nodes in program.programs for node in nodes)


def partners(program: Program) -> list[tuple[tuple[int, Instruction], tuple[int, Instruction]]]:
    """The messages of each channel in their order: rank and instruction of both ends."""
    matches = Matches(program)
    return [
        ((send[0], matches.node(send)), (receive[0], matches.node(receive)))
        for channel in sorted(matches.channels)
        for send, receive in matches.channels[channel]
    ]


def test_adjacent_posts_are_one_batch() -> None:
    ring: list[list[Instruction]] = []
    for rank, peer in ((0, 1), (1, 0)):
        gotten = IRecv(peer, f"x{peer}.got[0]", request="in")
        given = ISend(peer, f"x{rank}[0]", request="out")
        ring.append([gotten, given, Wait("in"), Wait("out")])
    assert out_of_order(program_of(ring)) is None
    apart = [[nodes[0], Alloc("y0[0]"), *nodes[1:]] for nodes in ring]
    assert out_of_order(program_of(apart)) is not None


def test_a_second_message_to_a_peer_begins_a_batch() -> None:
    """As one batch they would hang: rank 1 sends y when it has the second block."""
    first: list[Instruction] = [
        ISend(1, "x0[0]", request="one"), ISend(1, "z0[0]", request="two"),
        IRecv(1, "x0.got[0]", request="in"), *map(Wait, ("one", "two", "in")),
    ]  # fmt: skip
    second: list[Instruction] = [Recv(0, "x1.got[0]"), Recv(0, "z1.got[0]"), Send(0, "x1[0]")]
    assert [len(nodes) for nodes in batches(first, 2)] == [1, 2, 1, 1, 1]
    assert out_of_order(program_of([first, second])) is None


def test_with_more_than_eight_ranks_a_batch_has_one_peer() -> None:
    posts: list[Instruction] = [
        IRecv(1, "x1[0]", request="one"), IRecv(2, "x2[0]", request="two"),
        ISend(2, "x0[0]", request="out"),
    ]  # fmt: skip
    assert [len(nodes) for nodes in batches(posts, 8)] == [3]
    assert [len(nodes) for nodes in batches(posts, 9)] == [1, 2]


def test_posts_move_and_nothing_else_and_the_program_is_proved() -> None:
    program = lower_step(preset_plan("stationary", SHAPES["gpt2"], 4), 8, 4, "gradients")
    moved = in_one_queue(program)
    assert moved is not program
    assert verify_program(moved).verdict == "proved"
    for before, after in zip(program.programs, moved.programs, strict=True):
        assert Counter(posts(before)) == Counter(posts(after))
        assert [node for node in before if node not in posts(before)] == [
            node for node in after if node not in posts(before)
        ]


def posts(nodes: Iterable[Instruction]) -> list[Instruction]:
    """What may move: messages, and collectives that do not block."""
    return [node for node in nodes if isinstance(node, ISend | IRecv)]


@few
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_ends_in_one_queue(schedule: str) -> None:
    sizes = "2x2" if schedule == "interleaved-1f1b" else "3x2"
    plan = pipelined(schedule, "data", int(sizes[0]), sizes=sizes)
    program = lower_step(plan, plan.batch or 0, POSITIONS)
    assert out_of_order(program) is not None  # a stage posts its receives one action early
    assert out_of_order(in_one_queue(program)) is None
