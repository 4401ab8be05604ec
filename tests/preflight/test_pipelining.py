"""Schedules of `torch.distributed.pipelining` as programs, as classes and as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle.traffic_run import comes_to_an_end
from pipelining_cases import NAMES, actions_of

from primepar.errors import FormatError, MethodError
from primepar.preflight.fewest import fewest_slots
from primepar.preflight.importers.pipelining import (
    csv_program,
    pipelining_program,
    schedule_names,
)
from primepar.schedule.program import Group, IRecv, ISend, Wait
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program
from primepar.verify.report import Report


def refuted(report: Report) -> list[str]:
    """The names of the properties that are refuted."""
    return [each.name for each in report.properties if each.verdict == "refuted"]


def written(folder: Path, rows: list[list[str]]) -> Path:
    """A file of these actions."""
    path = folder / "mine.csv"
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replicas", ["", "ddp", "fsdp"])
def test_every_schedule_of_the_installed_torch_is_proved(name: str, replicas: str) -> None:
    if name not in schedule_names():
        pytest.skip(f"the installed torch has no {name}")
    count = 2 if replicas else 1
    sharded = replicas == "fsdp"
    program = pipelining_program(name, 2, 4, replicas=count, sharded=sharded)
    assert verify_program(program).verdict == "proved"
    assert program.ranks == 2 * count


def test_all_schedules_of_the_installed_torch_are_tested() -> None:
    assert set(schedule_names()) <= set(NAMES)


def test_the_messages_of_1f1b_are_batched_as_torch_does() -> None:
    """Stage 0 of two: a send alone in the warm-up, batches in the steady state, then receives."""
    program = pipelining_program("1F1B", 2, 3)
    kinds = (ISend, IRecv, Wait, Group)
    first = [node for node in program.programs[0] if isinstance(node, kinds)]
    assert [type(node).__name__ for node in first] == [
        "ISend", "Wait", "Group", "Group", "IRecv", "Wait",
    ]  # fmt: skip
    assert first[2].source == "0SEND_F1 0RECV_B0"


def test_a_schedule_without_loss_has_forward_passes_alone() -> None:
    program = pipelining_program("Interleaved1F1B", 2, 4, trains=False)
    assert verify_program(program).verdict == "proved"
    assert {node.source[1:-1] for nodes in program.programs for node in nodes if node.source} == {
        "F", "SEND_F", "RECV_F",
    }  # fmt: skip


def test_deferred_receives_of_a_zero_bubble_schedule_take_another_stage_s_data() -> None:
    """torch 2.13 sends x.1 of micro-batch 2 before dx.3 of 0, and receives them exchanged."""
    report = verify_program(pipelining_program("ZBVZeroBubble", 2, 4, defer_pp_recv=True))
    assert refuted(report) == ["alignment"]
    wrong = next(each for each in report.properties if each.verdict == "refuted")
    assert wrong.counterexample == (
        "rank 1, instruction 12 (stage2.backward dx.2[0] += dx.3[0] * x.3[0] * w.2[0]) at 2I0: "
        "expected the data of dx.3[0] in dx.3[0] for the stage2.backward sub-operator (M=0), got "
        "that of stage0.forward product (M=2): send dx.3[0] here before"
    )


def test_deferred_receives_hang_on_nccl_and_not_on_gloo() -> None:
    """The head-on sends of pytorch issue 172668, which deferred receives still have."""
    program = pipelining_program("Interleaved1F1B", 2, 4, defer_pp_recv=True)
    assert verify_program(program).verdict == "proved"
    in_order = Transport(0, "peer")
    report = verify_program(program, transport=in_order)
    assert str(report["deadlock-freedom"].counterexample).startswith(
        "rank 0, instruction 11 (isend x.3[1] -> 1) at 2SEND_F1 and rank 1, instruction 14 "
        "(isend dx.3[0] -> 0) at 3SEND_B0 wait for each other: "
    )
    assert not comes_to_an_end(program, in_order)
    assert fewest_slots(program, "peer") == 1
    undeferred = pipelining_program("Interleaved1F1B", 2, 4)
    assert verify_program(undeferred, transport=in_order).verdict == "proved"


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_a_file_has_the_program_of_its_schedule(tmp_path: Path, form: str) -> None:
    rows = actions_of("DualPipeV", 2, 4, 4)
    if form == "compute_only":
        computes = ("F", "I", "B", "W")
        rows = [
            [a for a in row if a[1:-1] in computes or a.endswith("OVERLAP_F_B")] for row in rows
        ]
    from_file, of_class = (
        csv_program(written(tmp_path, rows)),
        pipelining_program("DualPipeV", 2, 4),
    )
    assert verify_program(from_file).verdict == "proved"
    assert [len(nodes) for nodes in from_file.programs] == [len(n) for n in of_class.programs]


def test_a_send_before_its_computation_is_refuted_with_its_line(tmp_path: Path) -> None:
    rows = actions_of("Interleaved1F1B", 2, 4, 4)
    place = rows[0].index("0SEND_F2")
    rows[0][place - 1], rows[0][place] = rows[0][place], rows[0][place - 1]
    path = written(tmp_path, rows)
    report = verify_program(csv_program(path))
    wrong = next(each for each in report.properties if each.verdict == "refuted")
    assert wrong.counterexample == (
        f"rank 0, instruction 13 (isend x.1[2] -> 1) at {path}:1, field 14 (0SEND_F2): "
        "expected x.1[2] in this rank's memory, got none there: receive or compute it before, or "
        "list it in initial"
    )


def test_a_receive_before_that_of_an_earlier_message_is_refuted(tmp_path: Path) -> None:
    """Messages of two ranks match in order, whatever the buffers: torch gives them no tags."""
    rows = actions_of("LoopedBFS", 2, 4, 4)
    rows[1].remove("1RECV_F2")
    rows[1].insert(rows[1].index("1RECV_F1"), "1RECV_F2")
    report = verify_program(csv_program(written(tmp_path, rows)))
    assert refuted(report) == ["placement", "alignment"]
    assert str(report.properties[1].counterexample).endswith(
        "expected the data of x.1[1] in x.1[1] for the stage1.forward sub-operator (M=1), got "
        "that of stage0.forward product (M=2): send x.1[1] here before"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", ":1, field 2: expected an action such as 2F0, 2SEND_F0, 2UNSHARD or "
         "(0F1;3B0)OVERLAP_F_B, got '0X0'"),
        ("0F0,0SEND_F\n", ":1, field 2: expected an action such as 2F0, 2SEND_F0, 2UNSHARD or "
         "(0F1;3B0)OVERLAP_F_B, got '0SEND_F'"),
        ("", ": expected actions such as 0F0 in each line, got none"),
        ("0B0,0F0\n1F0,1B0\n", ": _PipelineScheduleRuntime: torch refuses this schedule: Rank 0, "
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


@pytest.mark.parametrize(
    ("name", "ranks", "options", "message"),
    [
        ("1f2b", 2, {}, "expected a schedule of the installed torch.distributed.pipelining, got "
         "'1f2b': write 1F1B"),
        ("1F1B", 2, {"stages": 4}, "Schedule1F1B: expected stages=2, one on every rank, got "
         "stages=4"),
        ("1F1B", 8, {}, "Schedule1F1B: torch refuses this schedule: Number of microbatches (4) "
         "must be greater than or equal to the number of stages (8)."),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_end_in_one_line(
    name: str, ranks: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(MethodError) as raised:
        pipelining_program(name, ranks, 4, **options)  # type: ignore[arg-type]
    assert str(raised.value) == message
