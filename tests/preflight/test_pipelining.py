"""Schedules of `torch.distributed.pipelining` in CSV files as programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_pipelining import NAMES, Rows, ScheduleCase, actions_of
from oracle.traffic_run import comes_to_an_end

from primepar.errors import FormatError
from primepar.preflight.importers.pipelining import csv_program
from primepar.preflight.verdict import fewest_slots
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program
from primepar.verify.report import Report


def refuted(report: Report) -> list[str]:
    """The names of the properties that are refuted."""
    return [each.name for each in report.properties if each.verdict == "refuted"]


def written(folder: Path, rows: Rows) -> Path:
    """A file of these actions."""
    return ScheduleCase("", 2, 4, 4, rows).file(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_every_schedule_of_the_installed_torch_is_proved(
    name: str, form: str, tmp_path: Path
) -> None:
    """Where the file has computations alone, torch adds the messages."""
    rows = actions_of(name, 2, 4, 4)
    computes = ("F", "I", "B", "W")
    given = [
        [a for a in row if form != "compute_only" or a[1:-1] in computes or a.endswith("F_B")]
        for row in rows
    ]
    program = csv_program(written(tmp_path, given))
    assert verify_program(program).verdict == "proved"
    whole = csv_program(written(tmp_path, rows))
    assert [len(nodes) for nodes in program.programs] == [len(n) for n in whole.programs]


def test_deferred_receives_of_a_zero_bubble_schedule_take_another_stage_s_data(
    tmp_path: Path,
) -> None:
    """torch 2.13 sends x.1 of micro-batch 2 before dx.3 of 0, and receives them exchanged."""
    path = written(tmp_path, actions_of("ZBVZeroBubble", 2, 4, 4, defer_pp_recv=True))
    report = verify_program(csv_program(path))
    assert refuted(report) == ["alignment"]
    assert str(report["alignment"].counterexample) == (
        f"rank 1, instruction 12 (stage2.backward dx.2[0] += dx.3[0] * x.3[0] * w.2[0]) at {path}:"
        "2, field 12 (2I0): expected the data of dx.3[0] in dx.3[0] for the stage2.backward "
        "sub-operator (M=0), got that of stage0.forward product (M=2): send dx.3[0] here before"
    )


def test_deferred_receives_hang_on_nccl_and_not_on_gloo(tmp_path: Path) -> None:
    """The head-on sends of pytorch issue 172668, which deferred receives still have."""
    computes = actions_of("Interleaved1F1B", 2, 4, 4)
    for row in computes:
        row[:] = [action for action in row if action[1:-1] in ("F", "B")]
    path = written(tmp_path, computes)
    program = csv_program(path, defer_pp_recv=True)
    assert verify_program(program).verdict == "proved"
    in_order = Transport(0, "peer")
    report = verify_program(program, transport=in_order)
    assert str(report["deadlock-freedom"].counterexample).startswith(
        "rank 0, instruction 11 (isend x.3[1] -> 1) at 2SEND_F1 and rank 1, instruction 14 "
        "(isend dx.3[0] -> 0) at 3SEND_B0 wait for each other: "
    )
    assert not comes_to_an_end(program, in_order)
    assert fewest_slots(program, "peer") == 1
    assert verify_program(csv_program(path), transport=in_order).verdict == "proved"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", ":1, field 2: expected an action such as 2F0, 2SEND_F0, 2UNSHARD or "
         "(0F1;3B0)OVERLAP_F_B, got '0X0'"),
        ("0F0,0SEND_F\n", ":1, field 2: expected an action such as 2F0, 2SEND_F0, 2UNSHARD or "
         "(0F1;3B0)OVERLAP_F_B, got '0SEND_F'"),
        ("", ": expected actions such as 0F0 in each line, got none"),
        ("0B0,0F0\n1F0,1B0\n", ": torch refuses this schedule: Rank 0, "
         "step 0: Running Full Backward for stage 0, microbatch 0 without first running Forward"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_schedule_ends_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(FormatError) as raised:
        csv_program(path)
    assert str(raised.value) == f"{path}{message}"
