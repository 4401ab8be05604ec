"""Dumps of torch's flight recorder: what hung, and why.

The dumps in `golden/flight_recorder` were written by torch 2.13 on gloo, in two runs that hung;
the paths of files in them are shortened.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from primepar.errors import FormatError
from primepar.preflight.importers import read_program
from primepar.verify.program import verify_program

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "flight_recorder"


def entry(number: int, name: str, sizes: tuple[int, ...] = (4,), **fields: Any) -> dict[str, Any]:
    """One operation of the process group of all ranks."""
    return {
        "record_id": number, "profiling_name": f"nccl:{name}", "process_group": ("0", "default_pg"),
        "state": "scheduled", "collective_seq_id": number, "input_sizes": [list(sizes)],
        "output_sizes": [list(sizes)], "input_dtypes": ["Float"], "retired": False, **fields,
    }  # fmt: skip


def dumped(folder: Path, *ranks: list[dict[str, Any]], as_json: bool = False) -> Path:
    """Write a dump for each rank."""
    everyone = str(list(range(len(ranks))))
    for rank, entries in enumerate(ranks):
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": everyone}}
        dump = {"version": "2.10", "pg_config": config, "entries": entries}
        content = json.dumps(dump).encode() if as_json else pickle.dumps(dump)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return folder


def why(folder: Path) -> str | None:
    """Why the run of these dumps hung."""
    return (
        verify_program(read_program(folder), only="deadlock-freedom").properties[0].counterexample
    )


def test_a_rank_that_called_another_collective_is_named_with_its_line() -> None:
    assert why(GOLDEN / "mismatch") == (
        "rank 1, instruction 1 (broadcast broadcast1 over 0,1, posted) at train.py:11: "
        "expected to meet rank 0, instruction 1 (all_reduce all_reduce1 over 0,1, posted) at "
        "train.py:9, got another collective: call them in one order on all of their ranks"
    )


def test_a_rank_that_never_called_is_named() -> None:
    assert why(GOLDEN / "absent") == (
        "rank 0, instruction 1 (barrier over 0,1, posted) at train.py:13: expected rank 1 "
        "to make the matching call, got none that is left there: add it, or take the rank out of "
        "the group"
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_calls_of_other_sizes_do_not_match(tmp_path: Path, as_json: bool) -> None:
    calls = [entry(0, "all_reduce")], [entry(0, "all_reduce", (5,))]
    wrong = why(dumped(tmp_path, *calls, as_json=as_json))
    assert wrong is not None
    assert "expected count 4" in wrong.replace("a count of", "count")


def test_calls_that_all_members_have_are_proved_whatever_the_oldest_is(tmp_path: Path) -> None:
    """The recorder of rank 1 has forgotten the first two calls, and rank 0 none."""
    kinds = ("broadcast", "all_reduce", "all_gather", "barrier")
    calls = [entry(number, name) for number, name in enumerate(kinds)]
    assert why(dumped(tmp_path, calls, calls[2:])) is None


def test_a_message_without_its_receive_is_refuted(tmp_path: Path) -> None:
    sends = [entry(0, "send 0->1"), entry(1, "send 0->1")]
    assert why(dumped(tmp_path, sends, [entry(0, "recv 1<-0")])) == (
        "rank 0, instruction 1 (isend send1 -> 1): expected a recv from rank 0 on rank 1 "
        "to match, got none that is left: add it there, or remove this one"
    )


def test_messages_that_were_done_are_left_out_where_some_are_forgotten(tmp_path: Path) -> None:
    sends = [entry(7, "send 0->1", state="completed"), entry(8, "send 0->1")]
    assert why(dumped(tmp_path, sends, [entry(9, "recv 1<-0")])) is None


class Harmful:
    """What a pickle may not make."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("run by a pickle",)


def test_a_pickle_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Harmful()]}))
    with pytest.raises(FormatError) as raised:
        read_program(tmp_path)
    assert str(raised.value) == (
        f"{path}: expected a dump of the flight recorder, got a pickle with builtins.print, which "
        "no dump has"
    )
    assert capsys.readouterr().out == ""


def test_a_dump_of_every_rank_is_needed(tmp_path: Path) -> None:
    dumped(tmp_path, [], [], [])
    (tmp_path / "nccl_trace_rank_1").unlink()
    with pytest.raises(FormatError) as raised:
        read_program(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}: expected a dump of every rank, such as nccl_trace_rank_0, got none of rank 1"
    )


@pytest.mark.parametrize("name", ["send 0->9", "send", "recv 0->x"])
def test_ranks_that_there_are_not_end_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="expected dumps that name their ranks, got "):
        read_program(dumped(tmp_path, [entry(0, name)], []))


@pytest.mark.parametrize("content", [b"", b"\x80", b"{}", b'{"entries": [1]}'])
def test_other_files_end_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank_0").write_bytes(content)
    with pytest.raises(FormatError, match="rank_0: expected a dump of the flight recorder, got "):
        read_program(tmp_path)
