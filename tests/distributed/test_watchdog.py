"""A rank that waits too long ends the run with one line; who works, however long, does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import MappingProxyType, SimpleNamespace

import pytest
from msgspec.structs import replace
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from primepar.distributed.runtime.running import CompiledStep, ListPlace, Running
from primepar.distributed.training.activity import Activity
from primepar.distributed.training.launch import first_error
from primepar.distributed.training.launchers import WorldPlace
from primepar.distributed.training.watchdog import STORE, Sign, Watchdog
from primepar.errors import LaunchError
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)

REMEDY = "look at its process and its machine, or raise --timeout"


# Where a rank is in its list

NODES: tuple[Instruction, ...] = (
    ISend(1, "a", request="sent"), IRecv(2, "b", request="got"), Wait("sent"),
    Compute(("a",), "c"), Wait("got"), Group((Send(1, "a"), Recv(2, "b"))),
    AllReduce(group=(0, 1, 2), block="c"), Free("c"),
)  # fmt: skip
PLACES = {
    0: ("isend a -> 1", (11,)), 2: ("wait for isend a -> 1", (11,)), 3: ("add c += a", ()),
    4: ("wait for irecv b <- 2", (12,)), 5: ("group send a -> 1; recv b <- 2", (11, 12)),
    6: ("all_reduce c over 0,1,2", (11, 12)), 7: ("free c", ()),
}  # fmt: skip


@pytest.mark.parametrize("by_action", [True, False])
def test_the_place_is_the_instruction_that_has_started_last(by_action: bool) -> None:
    """Some have several actions, some none: then their place is passed at once."""
    steps = [CompiledStep((node,), [print] * (number % 3)) for number, node in enumerate(NODES)]
    running = Running([*steps, CompiledStep((), [print])], 0, 10)
    seen = {}
    assert (running.token, running.place()) == (None, None)
    for _ in running.actions() if by_action else running.steps():
        place = running.place()
        if place is not None:
            seen[place.location] = place
    running.stop()
    assert (running.token, running.place()) == (None, None)
    numbers = [number for number in range(len(NODES)) if number % 3 or not by_action]
    assert list(seen) == [f"programs[0][{number}]" for number in numbers]
    for number in set(numbers) & set(PLACES):
        text, peers = PLACES[number]
        location = f"programs[0][{number}]"
        assert seen[location] == ListPlace(location, text, peers)
        assert str(seen[location]) == f"{location} ({text})"


# When it ends the process

ALL_REDUCE = [CompiledStep((NODES[6],), [print])]
PLACE = "programs[1][0] (all_reduce c over 0,1,2)"
COMPUTING = "step 7 at programs[2][5] (add c += a)"


def running(steps: Sequence[CompiledStep] = ALL_REDUCE) -> Running:
    """A list whose first action has started."""
    list_ = Running(steps, 1, 0)
    next(list_.actions())
    return list_


def watchdog(*lists: Running) -> Watchdog:
    """That of rank 1 of three, whose turns of a second are counted by the tests."""
    activity = Activity(1, 3)
    activity.meshes = [SimpleNamespace(running=run) for run in lists]  # type: ignore[misc]
    dog = Watchdog(activity, HashStore(), WorldPlace(1, 3, 1, HashStore()), 12.0)
    assert dog.every == 1.0
    for peer in (0, 2):
        dog.seen[peer] = Sign(0, "step 0", (1,))
    return dog


def seconds_until(
    dog: Watchdog, *silent: int, most: int = 400, signs: Mapping[int, Sign] = MappingProxyType({})
) -> tuple[int, str]:
    """Count seconds until there is a problem; `signs` are those that are given."""
    for second in range(1, most):
        for peer in {STORE, 0, 2} - set(silent):
            dog.heard[peer] = dog.turn
            if peer != STORE:
                sign = signs.get(peer, Sign(0, f"step {second}", (1,)))
                dog.seen[peer] = replace(sign, number=second)
        problem = dog.problem()
        if problem is not None:
            return second, problem
    return most, ""


LATE = f"rank 1: expected ranks 0, 2 to answer within 12 s, got nothing in step 7 at {PLACE}"
WAITS = {
    "all wait": ((), {}, f"{LATE}: {REMEDY}"),
    "one is silent": ((0,), {}, f"{LATE}; rank 0 is silent since step 0: {REMEDY}"),
    "one computes": (
        (), {2: Sign(0, COMPUTING)}, f"{LATE}; rank 2 is in {COMPUTING}: {REMEDY}",
    ),
    "one saves": ((), {0: Sign(0, "checkpoint of step 6", (), "other")}, ""),
    "one is in its setup": ((), {0: Sign(0, "the setup", (), "setup")}, ""),
    "none answers": (
        (STORE, 0, 2), {},
        f"{LATE}; rank 0, or the launcher that keeps the store, is silent: {REMEDY}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WAITS)
def test_a_rank_that_waits_names_step_instruction_block_peers_and_cause(case: str) -> None:
    """Who saves takes as long as it does, and so does a wait for it, also by way of others."""
    silent, signs, line = WAITS[case]
    dog = watchdog(running())
    with dog.activity.part("step 7", "step"):
        assert seconds_until(dog, *silent, signs=signs) == (14 if line else 400, line)


def test_a_wait_for_a_rank_that_is_stopped_ends_whatever_its_last_sign() -> None:
    """The first step may have begun after a last sign of the setup."""
    for part, kind in (("the setup", "setup"), ("checkpoint of step 6", "other")):
        dog = watchdog(running())
        dog.seen[0] = Sign(0, part, (), kind)  # type: ignore[arg-type]
        with dog.activity.part("step 7", "step"):
            assert seconds_until(dog, 0) == (
                14, f"{LATE}; rank 0 is silent since {part}: {REMEDY}",
            )  # fmt: skip


def test_a_sum_outside_of_a_list_counts_as_a_wait() -> None:
    dog = watchdog()
    with dog.activity.part("step 7", "step"), dog.activity.together("the sum of signals"):
        assert seconds_until(dog)[1] == f"{LATE.replace(PLACE, 'the sum of signals')}: {REMEDY}"


def test_who_computes_or_saves_takes_as_long_as_it_does() -> None:
    dog = watchdog(running([CompiledStep((NODES[3],), [print])]))
    with dog.activity.part("step 7", "step"):
        assert seconds_until(dog) == (400, "")
    dog = watchdog(running())
    with dog.activity.part("the checkpoint of step 7"):
        assert seconds_until(dog) == (400, "")


def test_a_list_that_goes_on_is_not_late() -> None:
    list_ = Running(ALL_REDUCE * 40, 1, 0)
    dog = watchdog(list_)
    with dog.activity.part("step 7", "step"):
        for _ in list_.actions():
            assert seconds_until(dog, most=10) == (10, "")


SILENT = {
    "the next rank": ("other", "step 0", (2,), 17, "of rank 2 within 12 s, got none since step 0"),
    "another rank": ("other", "step 0", (0,), 400, ""),  # rank 2 listens to it
    "in the setup": ("setup", "the setup", (2,), 65,
                     "of rank 2 within 60 s, got none since the setup"),
    "no sign yet": ("setup", None, (2,), 304, "of rank 2 within 300 s, got none"),
    "the store": ("other", "step 0", (STORE, 0, 2), 16,
                  "of rank 0, or the launcher that keeps the store, within 12 s, got none"),
}  # fmt: skip


@pytest.mark.parametrize("case", SILENT)
def test_silence_ends_a_part_that_is_no_step(case: str) -> None:
    """It may last a minute in the setup: a library is imported, with the interpreter locked."""
    kind, text, silent, seconds, line = SILENT[case]
    dog = watchdog()
    dog.seen[2] = Sign(0, str(text), (), kind)  # type: ignore[arg-type]
    if text is None:
        del dog.seen[2]
    with dog.activity.part("a part", kind):  # type: ignore[arg-type]
        count, problem = seconds_until(dog, *silent)
    expected = f"rank 1: expected a sign of life {line}, in a part: {REMEDY}" if line else ""
    assert (abs(count - seconds) <= 1, problem) == (True, expected)


def test_a_rank_that_has_ended_well_may_be_silent() -> None:
    dog = watchdog()
    dog.seen[2] = Sign(5, "step 9", ended=True)
    assert seconds_until(dog, 2) == (400, "")


def test_after_the_report_of_another_rank_the_process_ends_without_one() -> None:
    """Even if it waits, and the store has ended with that rank."""
    for lists in ([], [running()]):
        dog = watchdog(*lists)
        with dog.activity.part("step 7", "step"):
            assert seconds_until(dog, most=11) == (11, "")
            dog.failed = dog.turn
            assert seconds_until(dog, STORE, 0, 2) == (11, "")


def lost_peer(dog: Watchdog) -> None:
    """Lose the connection to another rank in a step."""
    with first_error(HashStore(), 1, dog), dog.activity.part("step 7", "step"):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")


def test_a_lost_rank_is_reported_unless_a_rank_has_reported_an_error_before() -> None:
    """Meanwhile this rank waits for nobody."""
    dog = watchdog(running())
    dog.grace = 0.0
    with pytest.raises(LaunchError) as caught:
        lost_peer(dog)
    assert str(caught.value) == (
        f"rank 1: expected every process to answer, got one that has ended, in step 7 at {PLACE}: "
        "look for the message of that process"
    )
    assert dog.activity.waiting is None
    dog = watchdog(running())
    dog.grace, dog.failed = 0.0, 0
    with pytest.raises(SystemExit) as ended:
        lost_peer(dog)
    assert ended.value.code == LaunchError.exit_code


def test_a_rank_with_an_error_of_its_own_has_time_to_report_it() -> None:
    """Then it ends, even if one of its threads waits for a rank that has gone."""
    dog = watchdog()
    dog.leave()
    assert seconds_until(dog, 2) == (11, "")


def test_ranks_exchange_signs_of_life_by_the_store() -> None:
    store = HashStore()
    places = [WorldPlace(rank, 3, rank, store) for rank in range(3)]
    dogs = [Watchdog(Activity(place.rank, 3), store, place, 0.6) for place in places]
    for dog in dogs:
        dog.exchange()
    assert list(dogs[2].seen) == [0]
    dogs[0]._asks_all = True
    dogs[0].exchange()
    assert dogs[0].seen == {peer: Sign(0, "the setup", (), "setup") for peer in (1, 2)}
    assert dogs[0].failed is None
    store.add("failures", 1)
    dogs[1].exchange()
    assert dogs[1].failed == 0
    dogs[2].sign(ended=True)
    dogs[1].exchange()
    assert dogs[1].seen[2].ended


def test_a_rank_reports_while_its_main_thread_waits_for_an_answer() -> None:
    """As in an agreement about a checkpoint, which a stopped rank never gives."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dog = Watchdog(Activity(0, 2), store, WorldPlace(0, 2, 0, store), 12.0)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(store.wait, ["answer"], timedelta(seconds=20))
        first = pool.submit(dog.reports)
        try:
            assert first.result(timeout=10) is True
            assert not answer.done()
        finally:
            dog._store.set("answer", "")
