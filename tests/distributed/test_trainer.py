"""Training on four processes, on one, stopped, resumed and resumed on another mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import training_cases as cases
from distributed_ranks import on_ranks
from lowered_steps import shared_folder
from saved_tensors import files_of, tensors_of

from primepar.distributed.checkpoints.manifest import read_manifest
from primepar.distributed.training.log import EndRow, EvaluateRow, Log, StartRow, StepRow, read_log
from primepar.errors import ConfigError

STEP_10 = "step-00000010"
STEP_20 = "step-00000020"


class Runs(NamedTuple):
    """A folder with what four processes left, and what each of them answered."""

    folder: Path
    answers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def four() -> Runs:
    return Runs(*shared_folder("four", lambda folder: on_ranks(4, cases.four_ranks, folder)))


@pytest.fixture(scope="module")
def one() -> Path:
    folder, code = shared_folder(
        "one", lambda path: cases.train(path / "straight", checkpoint=str(path / "whole"))
    )
    assert code == 0
    return folder


def test_losses_of_four_processes_are_those_of_one(four: Runs, one: Path) -> None:
    expected = cases.losses(one / "straight")
    assert list(expected) == list(range(1, 21))
    assert cases.losses(four.folder / "straight") == pytest.approx(expected, rel=1e-9, abs=0)
    assert expected[20] < expected[1]


def test_four_processes_read_the_samples_of_one(four: Runs, one: Path) -> None:
    """Also over the end of an epoch, and resumed in the middle of one."""
    read = {
        name: [
            (row.step, row.epoch, row.samples) for row in read_log(path) if isinstance(row, StepRow)
        ]
        for name, path in {
            "one": one / "straight" / "log.jsonl",
            "four": four.folder / "straight" / "log.jsonl",
            "resumed": four.folder / "resumed" / "log.jsonl",
        }.items()
    }
    assert read["one"] == [(step, int(step > 15), 4 * step) for step in range(1, 21)]
    assert read["four"] == read["one"]
    assert read["resumed"] == read["one"][10:]
    manifest = read_manifest(four.folder / "whole" / STEP_10)
    assert manifest.run_state["data"] == {
        "seed": 0, "text": cases.TEXT.digest, "epoch": 0, "sample": 40
    }  # fmt: skip


def test_a_run_with_another_batch_goes_on_at_the_next_sample(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    assert cases.train(tmp_path / "first", checkpoint=folder, steps=2) == 0
    again = {"checkpoint": folder, "resume": True, "override": True, "batch": 8, "steps": 4}
    assert cases.train(tmp_path / "second", **again) == 0
    rows = read_log(tmp_path / "second" / "log.jsonl")
    assert [row.samples for row in rows if isinstance(row, StepRow)] == [16, 24]


def test_gradient_norm_counts_every_element_once(four: Runs, one: Path) -> None:
    norms = [
        [row.gradient_norm for row in read_log(path) if isinstance(row, StepRow)]
        for path in (four.folder / "straight" / "log.jsonl", one / "straight" / "log.jsonl")
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-9, abs=0)


def test_bytes_in_the_log_equal_the_formula(four: Runs) -> None:
    config, M, p, s = cases.SMALL.model, cases.BATCH * cases.SMALL.model.context, 4, 2
    elements = sum(
        (2 * (s - 1) * (M * N + M * K) + 2 * s * N * K) / p
        for N, K in config.linear_shapes.values()
    )
    rows = read_log(four.folder / "straight" / "log.jsonl")
    sent = [row.sent_bytes for row in rows if isinstance(row, StepRow)]
    assert sent == [(8 * elements,) * 4] * 20


def test_a_log_has_the_whole_run(four: Runs) -> None:
    start, *rows, last, end = read_log(four.folder / "straight" / "log.jsonl")
    assert isinstance(start, StartRow)
    assert (start.sequence, start.ranks, start.step) == ("P2x2", 4, 0)
    assert (start.model, start.batch) == (cases.SMALL.model, cases.BATCH)
    assert start.parameters == cases.SMALL.model.parameters
    assert [row.step for row in rows] == list(range(1, 21))
    assert isinstance(last, EvaluateRow)
    assert end == EndRow(20)


def test_a_trace_shows_one_step_of_every_rank(four: Runs) -> None:
    spans = [
        event
        for event in json.loads((four.folder / "trace.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    ]
    linears = cases.SMALL.model.linear_shapes
    phases = {
        f"{name}.{phase}" for name in linears for phase in ("forward", "backward", "gradient")
    }
    products = [event for event in spans if event["cat"] in phases]
    operators = len(linears)
    for rank in range(4):
        assert len([event for event in products if event["pid"] == rank]) == operators * 3 * 2


def test_a_resumed_run_is_the_same_run(four: Runs) -> None:
    assert [answer["resumed"] for answer in four.answers] == [0] * 4
    whole = cases.losses(four.folder / "straight")
    assert cases.losses(four.folder / "resumed") == {n: whole[n] for n in range(11, 21)}


def test_a_resumed_run_leaves_the_same_file(four: Runs) -> None:
    resumed, whole = (four.folder / name / STEP_20 for name in ("half", "whole"))
    assert files_of(resumed) == files_of(whole)


def test_a_run_goes_on_under_a_primitive_of_a_file(four: Runs) -> None:
    assert [answer["own"] for answer in four.answers] == [0] * 4
    whole = cases.losses(four.folder / "straight")
    assert cases.losses(four.folder / "own") == {n: whole[n] for n in range(11, 21)}
    start, *_ = read_log(four.folder / "own" / "log.jsonl")
    assert isinstance(start, StartRow)
    assert start.sequence == f"{four.folder}/mine.py:Mine2x2"


def test_a_checkpoint_of_four_loads_on_one_process(four: Runs, tmp_path: Path) -> None:
    cases.keep(four.folder / "whole", tmp_path / "half", 10)
    answer = cases.train(tmp_path / "on", checkpoint=str(tmp_path / "half"), resume=True)
    whole = cases.losses(four.folder / "straight")
    assert answer == 0
    expected = {n: whole[n] for n in range(11, 21)}
    assert cases.losses(tmp_path / "on") == pytest.approx(expected, rel=1e-9, abs=0)


def test_a_checkpoint_has_whole_tensors_under_the_names_of_the_model(four: Runs) -> None:
    tensors = tensors_of(four.folder / "whole" / STEP_10)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = cases.SMALL.model.parameter_shapes.items()
    assert shapes == {
        f"{kind}.{name}": shape
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for name, shape in expected
    }


def test_one_rank_reports_a_torn_checkpoint_and_all_end(four: Runs) -> None:
    path = four.folder / "half-torn" / STEP_10 / "rank-00002.safetensors"
    size = path.stat().st_size
    refused = (
        f"CheckpointError: {path}: expected {size + 1000} bytes, got {size}: the file is cut "
        "short: no earlier checkpoint is whole"
    )
    ended = "SystemExit: 0"
    assert [answer["torn"] for answer in four.answers] == [ended, ended, refused, ended]
    assert not (four.folder / "torn" / "log.jsonl").exists()


def test_one_rank_reports_a_disk_without_room_and_nothing_is_left(four: Runs) -> None:
    folder = four.folder / "full-saved"
    refused = (
        f"CheckpointError: {folder / 'step-00000001'}: expected to write a checkpoint, got no "
        "space left on device: choose another --checkpoint folder or make room"
    )
    ended = "SystemExit: 0"
    assert [answer["full"] for answer in four.answers] == [ended, ended, refused, ended]
    assert list(folder.glob("step-*")) == []


def test_all_ranks_stop_after_the_step_in_which_one_was_asked(four: Runs) -> None:
    assert [answer["asked"] for answer in four.answers] == [128 + 15] * 4
    *_, end = read_log(four.folder / "asked" / "log.jsonl")
    assert end == EndRow(1, "SIGTERM")
    assert [path.name for path in (four.folder / "stopped").glob("step-*")] == ["step-00000001"]


def test_a_log_drops_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(str(path)) as log:
        for step in range(1, 5):
            log.write(EvaluateRow(step, 0.5))
        log.write(EndRow(4, "SIGINT"))
    with Log(str(path), keep_until=2) as log:
        log.write(EndRow(3))
    assert read_log(path) == [EvaluateRow(1, 0.5), EvaluateRow(2, 0.5), EndRow(3)]


def test_a_line_that_is_no_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"row": "end", "step": 1}) + '\n{"row": "sum"}\n')
    with pytest.raises(ConfigError) as caught:
        read_log(path)
    assert str(caught.value) == (
        f"{path}:2: expected a row of a log, got Invalid value 'sum' - at `$.row`"
    )


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    answer = cases.train(tmp_path / "run", lr=1e200, warmup=0)
    assert answer == (
        "ConfigError: optimizer.lr: expected a rate at which training stays finite, got loss nan "
        "and gradient norm nan in step 2: take a smaller one than 1e+200"
    )
    assert list(cases.losses(tmp_path / "run")) == [1]


def test_a_clipped_run_logs_the_norm_before_it_was_clipped(tmp_path: Path) -> None:
    rows = []
    for name, clip in (("free", None), ("clipped", 1e-9)):
        assert cases.train(tmp_path / name, clip=clip, steps=2, warmup=0, lr=0.01) == 0
        log = read_log(tmp_path / name / "log.jsonl")
        rows.append([(row.loss, row.gradient_norm) for row in log if isinstance(row, StepRow)])
    free, clipped = rows
    assert clipped[0] == free[0]
    assert clipped[0][1] is not None
    assert clipped[0][1] > 0.1
    assert abs(clipped[1][0] - clipped[0][0]) < abs(free[1][0] - free[0][0]) / 2


def test_a_scale_that_overflows_is_halved_until_steps_are_good(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"dtype": "float16", "loss_scale": 2.0**28, "loss_scale_every": 3}
    changes |= {"lr": 0.01, "warmup": 0}
    assert cases.train(tmp_path / "a", **changes) == 0
    rows = [row for row in read_log(tmp_path / "a" / "log.jsonl") if isinstance(row, StepRow)]
    scales = [row.loss_scale for row in rows]
    skipped = [row.gradient_norm is None for row in rows]
    assert skipped[0]
    for place, (skips, scale, after) in enumerate(zip(skipped, scales, scales[1:], strict=False)):
        assert scale is not None
        good = place >= 2 and not any(skipped[place - 2 : place + 1])
        doubled = good and scales[place - 2] == scale
        assert after == scale * (0.5 if skips else 2.0 if doubled else 1.0)
    assert rows[-1].loss < 0.9 * rows[skipped.index(False)].loss
    saved = {"checkpoint": str(tmp_path / "saved"), **changes}
    assert cases.train(tmp_path / "b", **saved | {"steps": 4}) == 0
    assert cases.train(tmp_path / "b", **saved, resume=True) == 0
    again = [row for row in read_log(tmp_path / "b" / "log.jsonl") if isinstance(row, StepRow)]
    numbers = [(row.loss, row.gradient_norm, row.loss_scale) for row in rows]
    assert [(row.loss, row.gradient_norm, row.loss_scale) for row in again] == numbers
