"""Races, messages that do not fit, deadlock and unfinished ends are refused in one line."""

from __future__ import annotations

import pytest
from emulator_cases import GRID, OPERANDS, product, refusal, refused

from primepar.errors import (
    DeadlockError,
    IncompleteError,
    InFlightError,
    MismatchError,
)
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Barrier,
    Compute,
    Evict,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)

# Messages in flight


@pytest.mark.parametrize(
    ("touch", "done"),
    [
        (Compute(("y",), "x"), "changed"),
        (Free("x"), "freed"),
        (Evict("x"), "evicted"),
        (IRecv(1, "x", request="b"), "received into"),
    ],
)
@pytest.mark.parametrize("sends", [True, False])
def test_a_block_in_flight_is_left_alone(touch: Instruction, done: str, sends: bool) -> None:
    post = ISend(1, "x", request="a") if sends else IRecv(1, "x", request="a")
    error = refusal((post, touch, Wait("a")), (), initial=(("x", "y"), ()))
    verb = "sent" if sends else "received"
    refused(
        error,
        InFlightError,
        f"device 0, programs[0][1]: expected x to be left alone while it is being {verb}, "
        f"got it {done}: move the wait before this instruction",
    )


def test_a_group_does_not_receive_into_what_it_sends() -> None:
    swap = tuple((Group((Send(1 - rank, "x"), Recv(1 - rank, "x"))),) for rank in (0, 1))
    refused(
        refusal(*swap),
        InFlightError,
        "device 0, programs[0][0]: expected x to be left alone while it is being sent, "
        "got it received into: move the wait before this instruction",
    )


# Messages and collectives that do not fit


def test_a_request_in_use_is_not_posted_again() -> None:
    refused(
        refusal((ISend(1, "x", request="a"), ISend(1, "y", request="a")), ()),
        MismatchError,
        "device 0, programs[0][1]: expected a request that is not in use, got 'a' again: "
        "wait for it first, or give this one another name",
    )


def test_a_message_without_a_partner_is_left_over() -> None:
    refused(
        refusal((ISend(1, "x", request="a"),), ()),
        MismatchError,
        "device 0: expected request 'a' to be waited for, got the end of the program with it "
        "never matched: add a wait",
    )


@pytest.mark.parametrize(
    ("other", "claim"),
    [
        (AllReduce((0, 1), block="x", reduction="max"), "all_reduce over 0,1 reduction=max"),
        (AllReduce((1, 0), block="x"), "all_reduce over 1,0 reduction=sum"),
    ],
)
def test_members_call_one_collective(other: Instruction, claim: str) -> None:
    refused(
        refusal((AllReduce((0, 1), block="x"),), (other,)),
        MismatchError,
        "device 1, programs[1][0]: expected all_reduce over 0,1 reduction=sum as on device 0, "
        f"got {claim}: call collectives in one order on every member",
    )


def test_a_device_is_a_member_of_its_own_collective() -> None:
    refused(
        refusal((Barrier((1,)),), ()),
        MismatchError,
        "device 0, programs[0][0]: expected device 0 in the group of its own collective, got [1]",
    )


def test_a_collective_names_one_block_for_each_member() -> None:
    refused(
        refusal((AllGather((0, 1), block="x", blocks=("y",)),), ()),
        MismatchError,
        "device 0, programs[0][0]: expected blocks to name one block for each of 2 members, got 1",
    )


# Deadlock


def test_collectives_in_two_orders_wait_for_ever() -> None:
    a, b = (AllReduce((0, 1), name, block="x") for name in ("a", "b"))
    refused(
        refusal((a, b), (b, a), (Recv(0, "x"),)),
        DeadlockError,
        "expected every device to end, got 3 that wait without end: "
        "device 0 at programs[0][0] waits for device 1 to call all_reduce in a over 0,1 "
        "reduction=sum; device 1 at programs[1][0] waits for device 0 to call all_reduce in b "
        "over 0,1 reduction=sum (and 1 more wait)",
    )


# The end


def test_a_sub_operator_that_two_devices_compute_is_refused() -> None:
    error = refusal((product(0), product(1)), (product(1),), initial=(OPERANDS, OPERANDS),
                    grid=GRID)  # fmt: skip
    refused(
        error,
        IncompleteError,
        "expected forward M=0 N=1 K=0 to be computed exactly once, got it 2 times: "
        "programs[0][1], programs[1][0]",
    )


def test_without_final_a_sum_must_still_be_finished_somewhere() -> None:
    error = refusal((product(0),), (product(1),), initial=(OPERANDS, OPERANDS), grid=GRID)
    refused(
        error,
        IncompleteError,
        "at the end expected the 2 terms of O[0,0], got it without forward M=0 N=1 K=0",
    )


def test_a_sum_that_was_freed_is_finished_nowhere() -> None:
    error = refusal((product(0), product(1), Free("O[0,0]")), initial=(OPERANDS,), grid=GRID)
    refused(
        error,
        IncompleteError,
        "expected O[0,0] in some memory at the end, got it in none",
    )


def test_a_block_that_ends_nowhere_is_refused() -> None:
    refused(
        refusal((), initial=((),), final=(("x",),)),
        IncompleteError,
        "device 0: expected x in its memory at the end, got it on no device",
    )


def test_another_block_under_the_final_name_is_refused() -> None:
    error = refusal((Recv(1, "I[0,0]"),), (Send(0, "I[0,1]"),), initial=((), ("I[0,1]",)),
                    final=(("I[0,0]",), ()))  # fmt: skip
    refused(
        error,
        IncompleteError,
        "device 0: at the end expected I[0,0], got I[0,1] under that name",
    )


def test_what_a_sum_held_before_does_not_finish_it() -> None:
    error = refusal((), (product(0), product(1)), initial=(("O[0,0]",), OPERANDS), grid=GRID,
                    final=(("O[0,0]",), ()))  # fmt: skip
    refused(
        error,
        IncompleteError,
        "device 0: at the end expected the 3 terms of O[0,0], got it without forward M=0 N=0 K=0",
    )
