"""A rank that waits too long ends the run with one line; who works, however long, does not."""

from __future__ import annotations

import atexit
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from msgspec.structs import replace
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from primepar.distributed.runtime.messages import CompiledStep
from primepar.distributed.runtime.running import ListPlace, Running
from primepar.distributed.training.activity import Activity, Kind
from primepar.distributed.training.first_error import first_error
from primepar.distributed.training.rendezvous import WorldPlace
from primepar.distributed.training.watchdog import STORE, Sign, Silence, Watchdog
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
    running: Running[CompiledStep] = Running([*steps, CompiledStep((), [print])], 0, 10)
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


class FakeMesh:
    """A mesh in which a list runs, or none."""

    def __init__(self, running: Running[CompiledStep] | None = None) -> None:
        self.running = running


def watchdog(*running: Running[CompiledStep]) -> Watchdog:
    """That of rank 1 of three; nothing is measured but what the tests count."""
    activity = Activity(1, 3)
    activity.meshes = [FakeMesh(run) for run in running]  # type: ignore[misc]
    dog = Watchdog(activity, HashStore(), WorldPlace(1, 3, 1, HashStore()), 12.0)
    signs(dog, 0)
    assert dog.every == 1.0
    return dog


def signs(dog: Watchdog, number: int, *silent: int) -> None:
    """The store answers, and all other ranks but the silent ones have given one more sign."""
    dog.exchange.answers = number
    for peer in {0, 2} - set(silent):
        dog.exchange.seen[peer] = Sign(number, f"step {number}", (1,))


def seconds_until(
    dog: Watchdog, *silent: int, most: int = 400, busy: Sign | None = None
) -> tuple[int, str]:
    """Count seconds until there is a problem; a silent store is `STORE`.

    If `busy` is given, rank 0 is not silent, and gives this sign.
    """
    for second in range(1, most):
        if STORE not in silent:
            signs(dog, second, *silent)
        if busy is not None:
            dog.exchange.seen[0] = replace(busy, number=second)
        problem = dog._problem(1.0)
        if problem is not None:
            return second, problem
    return most, ""


def waiting() -> Running[CompiledStep]:
    running: Running[CompiledStep] = Running(ALL_REDUCE, 1, 0)
    next(running.actions())
    return running


def test_a_rank_that_waits_names_step_instruction_block_and_peers() -> None:
    dog = watchdog(waiting())
    with dog.activity.part("step 7", "step"):
        assert seconds_until(dog) == (
            14, f"rank 1: expected ranks 0, 2 to answer within 12 s, got nothing in step 7 at "
            f"{PLACE}: {REMEDY}",
        )  # fmt: skip


def test_it_names_the_rank_that_is_silent_or_the_one_that_does_not_wait() -> None:
    dog = watchdog(waiting())
    with dog.activity.part("step 7", "step"):
        assert seconds_until(dog, 0)[1].endswith(
            f"at {PLACE}; rank 0 is silent since step 0: {REMEDY}"
        )
    dog = watchdog(waiting())
    dog.exchange.seen[2] = Sign(0, "step 7 at programs[2][5] (add c += a)")
    dog._problem(1.0)
    with dog.activity.part("step 7", "step"):
        for number in range(1, 14):
            signs(dog, number, 2)
            dog.exchange.seen[2] = Sign(number, "step 7 at programs[2][5] (add c += a)")
            assert dog._problem(1.0) is None
        signs(dog, 14, 2)
        dog.exchange.seen[2] = Sign(14, "step 7 at programs[2][5] (add c += a)")
        assert str(dog._problem(1.0)).endswith(
            f"at {PLACE}; rank 2 is in step 7 at programs[2][5] (add c += a): {REMEDY}"
        )


def test_a_sum_outside_of_a_list_counts_as_a_wait() -> None:
    dog = watchdog()
    with dog.activity.part("step 7", "step"), dog.activity.together("the sum of signals"):
        assert seconds_until(dog)[1] == (
            "rank 1: expected ranks 0, 2 to answer within 12 s, got nothing in step 7 at the sum "
            f"of signals: {REMEDY}"
        )


def test_who_computes_or_proves_or_saves_takes_as_long_as_it_does() -> None:
    computing: Running[CompiledStep] = Running([CompiledStep((NODES[3],), [print])], 1, 0)
    next(computing.actions())
    dog = watchdog(computing)
    with dog.activity.part("step 7", "step"):
        assert seconds_until(dog) == (400, "")
    with dog.activity.part("the checkpoint of step 7"):
        assert seconds_until(watchdog(waiting())) == (400, "")


def test_a_list_that_goes_on_is_not_late() -> None:
    running: Running[CompiledStep] = Running(ALL_REDUCE * 40, 1, 0)
    dog = watchdog(running)
    with dog.activity.part("step 7", "step"):
        for number, _ in enumerate(running.actions()):
            for _ in range(9):
                signs(dog, 10 * number)
                assert dog._problem(1.0) is None


def test_a_wait_for_a_rank_in_its_setup_or_a_checkpoint_takes_as_long_as_that() -> None:
    """Any rank: this one may wait for one that waits for it."""
    parts: dict[str, Kind] = {"the setup": "setup", "checkpoint of step 6": "other"}
    for part, kind in parts.items():
        dog = watchdog(waiting())
        with dog.activity.part("step 7", "step"):
            assert seconds_until(dog, busy=Sign(0, part, (), kind)) == (400, "")
            assert seconds_until(dog)[1].startswith("rank 1: expected ranks 0, 2 to answer within")


def test_a_wait_for_a_rank_that_is_stopped_ends_whatever_its_last_sign() -> None:
    """The first step may have begun after a last sign of the setup."""
    parts: dict[str, Kind] = {"the setup": "setup", "checkpoint of step 6": "other"}
    for part, kind in parts.items():
        dog = watchdog(waiting())
        dog.exchange.seen[0] = Sign(0, part, (), kind)
        with dog.activity.part("step 7", "step"):
            assert seconds_until(dog, 0) == (
                14, f"rank 1: expected ranks 0, 2 to answer within 12 s, got nothing in step 7 at "
                f"{PLACE}; rank 0 is silent since {part}: {REMEDY}",
            )  # fmt: skip


def test_silence_of_the_next_rank_ends_a_part_that_is_no_step() -> None:
    dog = watchdog()
    with dog.activity.part("checkpoint of step 3"):
        assert seconds_until(dog, 2) == (
            17, "rank 1: expected a sign of life of rank 2 within 12 s, got none since step 0, in "
            f"checkpoint of step 3: {REMEDY}",
        )  # fmt: skip
    assert seconds_until(watchdog(), 0) == (400, "")  # rank 2 listens to rank 0


def test_silence_in_the_setup_may_last_a_minute() -> None:
    """A library is imported, with Python's interpreter locked, on a machine with much to do."""
    dog = watchdog()
    dog.exchange.seen[2] = Sign(0, "the setup", (), "setup")
    assert seconds_until(dog, 2) == (
        65, "rank 1: expected a sign of life of rank 2 within 60 s, got none since the setup, in "
        f"the setup: {REMEDY}",
    )  # fmt: skip


def test_silence_of_the_store_ends_a_run() -> None:
    expected: dict[Kind, tuple[int, int]] = {"other": (17, 12), "setup": (65, 60)}
    for kind, (seconds, least) in expected.items():
        dog = watchdog()
        dog.exchange.seen = {rank: Sign(0, "a part", (), kind) for rank in (0, 2)}
        with dog.activity.part("a part", kind):
            assert seconds_until(dog, STORE, 0, 2) == (
                seconds, "rank 1: expected a sign of life of rank 0, or the launcher that keeps "
                f"the store, within {least} s, got none, in a part: {REMEDY}",
            )  # fmt: skip


def test_a_rank_that_has_ended_well_may_be_silent() -> None:
    dog = watchdog()
    dog.exchange.seen[2] = Sign(5, "step 9", ended=True)
    assert seconds_until(dog, 2) == (400, "")


def test_a_rank_that_nobody_has_heard_of_has_the_time_of_a_start() -> None:
    dog = watchdog()
    del dog.exchange.seen[2]
    assert seconds_until(dog, 2)[0] == 304


def test_after_the_report_of_another_rank_the_process_ends_without_one() -> None:
    """Even if it waits, and the store has ended with that rank."""
    for run in ([], [waiting()]):
        dog = watchdog(*run)
        with dog.activity.part("step 7", "step"):
            assert seconds_until(dog, most=11) == (11, "")
            dog.exchange.failed = True
            assert seconds_until(dog, STORE, 0, 2) == (12, "")


def lost_peer(dog: Watchdog) -> None:
    """Lose the connection to another rank in a step."""
    with first_error(HashStore(), 1, dog), dog.activity.part("step 7", "step"):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")


def test_a_lost_rank_is_reported_unless_a_rank_has_reported_an_error_before() -> None:
    """Meanwhile this rank waits for nobody."""
    dog = watchdog(waiting())
    dog.grace = 0.0
    with pytest.raises(LaunchError) as caught:
        lost_peer(dog)
    assert str(caught.value) == (
        f"rank 1: expected every process to answer, got one that has ended, in step 7 at {PLACE}: "
        "look for the message of that process"
    )
    assert dog.activity.waiting is None
    dog = watchdog(waiting())
    dog.grace, dog.exchange.failed = 0.0, True
    with pytest.raises(SystemExit) as ended:
        lost_peer(dog)
    assert ended.value.code == LaunchError.exit_code


def test_a_rank_with_an_error_of_its_own_has_time_to_report_it() -> None:
    """Then it ends, even if one of its threads waits for a rank that has gone."""
    dog = watchdog()
    dog.__exit__(RuntimeError, RuntimeError(), None)
    atexit.unregister(dog._stop)  # it ends threads, which have not begun
    assert seconds_until(dog, 2) == (12, "")


def test_a_process_that_was_stopped_itself_has_not_waited() -> None:
    count = Silence()
    assert [count.count(1, 5.0), count.count(1, 5.0), count.count(2, 5.0)] == [0.0, 5.0, 0.0]


def test_ranks_exchange_signs_of_life_by_the_store() -> None:
    store = HashStore()
    places = [WorldPlace(rank, 3, rank, store) for rank in range(3)]
    dogs = [Watchdog(Activity(place.rank, 3), store, place, 0.6) for place in places]
    for dog in dogs:
        dog.exchange._turn()
    assert list(dogs[0].exchange.seen) == []
    dogs[0].exchange.asked.set()
    dogs[0].exchange._turn()
    assert dogs[0].exchange.seen[2] == Sign(0, "the setup", (), "setup")
    assert not dogs[0].exchange.failed
    store.add("failures", 1)
    dogs[1].exchange._turn()
    assert dogs[1].exchange.failed
    dogs[2].exchange.stopped.set()
    dogs[2].exchange._write(ended=True)
    dogs[1].exchange._turn()
    assert dogs[1].exchange.seen[2].ended


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
            dog.exchange.store.set("answer", "")
