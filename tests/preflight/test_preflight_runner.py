"""Ranks that need values of others: they wait, start anew, or hang where no value ever comes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from captured import SCRIPTS

from primepar.errors import CaptureError
from primepar.preflight.capture import runner, torch_script
from primepar.preflight.capture.runner import GivenValue, NeverComesError, RankLink, run_ranks
from primepar.preflight.capture.torch_capture import capture_torch
from primepar.preflight.recording import RankRecording

RANKS = 6


@pytest.fixture(autouse=True)
def few_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two ranks that wait have to end and start anew."""
    monkeypatch.setattr(runner, "MOST_WAITING", 2)


def gathered(rank: int, link: RankLink) -> RankRecording:
    """All ranks gather a value of each, and then a chain goes from the last rank to the first."""
    link.give(f"own {rank}", GivenValue("", bytes([rank])))
    values = link.ask([f"own {other}" for other in range(RANKS)])
    assert [given.value for given in values] == [bytes([other]) for other in range(RANKS)]
    if rank < RANKS - 1:
        assert link.ask([f"chain {rank + 1}"])[0].value == bytes([rank + 1])
    link.give(f"chain {rank}", GivenValue("", bytes([rank])))
    return RankRecording()


def circle(rank: int, link: RankLink) -> RankRecording:
    """Each rank asks its right neighbour before it gives anything."""
    try:
        link.ask([f"own {(rank + 1) % RANKS}"])
    except NeverComesError:
        return RankRecording(stopped=True)
    link.give(f"own {rank}", GivenValue("", b""))
    return RankRecording()


def writing(rank: int, link: RankLink) -> RankRecording:
    """All look for a file, and find it once the first one has gone on without it and written it."""
    if rank < RANKS - 1:
        with pytest.raises(NeverComesError):
            link.ask([runner.FILE + "weights"])
    if rank == 0:
        link.give(runner.FILE + "weights", GivenValue("there", None))
    link.give(f"own {rank}", GivenValue("", b""))
    link.ask(["own 0"])
    return RankRecording(lost=[link.ask([runner.FILE + "weights"])[0].statement])


def changing(rank: int, link: RankLink) -> RankRecording:
    """A rank gives another value when it starts anew."""
    import os

    link.give(f"own {rank}", GivenValue("", str(os.getpid()).encode()))
    return gathered(rank, link)


def test_values_reach_all_ranks_though_few_may_wait() -> None:
    assert [rank.stopped for rank in run_ranks(RANKS, gathered, 20)] == [False] * RANKS


def test_the_rank_that_another_waits_for_starts_next(tmp_path: Path) -> None:
    """So few wait that none has to start anew, though half of them wait for the other half."""
    starts = tmp_path / "starts"

    def halves(rank: int, link: RankLink) -> RankRecording:
        with starts.open("a") as file:
            file.write(f"{rank}\n")
        if rank < RANKS // 2:
            link.ask([f"own {rank + RANKS // 2}"], [rank + RANKS // 2])
        link.give(f"own {rank}", GivenValue("", b""))
        return RankRecording()

    run_ranks(RANKS, halves, 20)
    assert sorted(map(int, starts.read_text().split())) == list(range(RANKS))


def test_ranks_hang_where_values_never_come() -> None:
    assert [rank.stopped for rank in run_ranks(RANKS, circle, 20)] == [True] * RANKS


def test_ranks_go_on_without_a_file_that_nobody_has_written() -> None:
    """Those that wait for what these do then do not hang."""
    assert [rank.lost for rank in run_ranks(RANKS, writing, 20)] == [["there"]] * RANKS


def test_a_rank_that_does_otherwise_when_it_starts_anew_is_refused() -> None:
    message = (
        r"^script: expected rank \d+ to do the same when it starts anew, got other values: seed "
        r"its random numbers$"
    )
    with pytest.raises(CaptureError, match=message):
        run_ranks(RANKS, changing, 20)


@pytest.mark.parametrize("script", ["ring.py", "fsdp.py"])
def test_ranks_import_nothing(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script and the capture need is imported once, before ranks are forked."""
    run = torch_script.run_script

    def counted(*given: object, **named: object) -> RankRecording:
        before = set(sys.modules)
        recording: RankRecording = run(*given, **named)  # type: ignore[arg-type]
        recording.lost = sorted(set(sys.modules) - before)
        return recording

    monkeypatch.setattr(torch_script, "run_script", counted)
    recorded, _ = capture_torch(SCRIPTS / script, [], 2, 60)
    assert [rank.lost for rank in recorded] == [[], []]
