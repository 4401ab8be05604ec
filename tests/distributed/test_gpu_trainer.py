"""The training command on four ranks, saved and resumed: NCCL and GPUs against gloo and CPUs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from backends import LONG, gpu
from command_ranks import EndedRank, train_ranks
from saved_tensors import files_of

from primepar.distributed.training.log import StepRow, read_log

RANKS, STEPS, SAVED = 4, 4, 2
SMALL = [
    "--set", "training.batch=4", "--set", "training.dtype=float64", "--set", "model.layers=1",
    "--set", "model.hidden=32", "--set", "model.context=16", "--set", "checks.verify=false",
    "--set", f"checkpoint.every={SAVED}",
]  # fmt: skip


class Run(NamedTuple):
    """How the ranks ended, the losses by step, and the files of checkpoints."""

    ended: list[EndedRank]
    losses: dict[int, float]
    saved: dict[str, dict[str, bytes]]


def trained(folder: Path, backend: str, steps: int, *more: str, ranks: int = RANKS) -> Run:
    """Train on ranks of a backend, with checkpoints in `folder/saved`."""
    log, saved = folder / "log.jsonl", folder / "saved"
    words = [*SMALL, "--steps", str(steps), "--set", f"output.log={log}", *more]
    ended = train_ranks(ranks, folder, backend, [*words, "--checkpoint", str(saved)])
    rows = read_log(log) if log.exists() else []
    losses = {row.step: row.loss for row in rows if isinstance(row, StepRow)}
    files = {path.name: files_of(path) for path in sorted(saved.glob("step-*"))}
    return Run(ended, losses, files)


@cache
def straight(backend: str) -> Run:
    """All steps at once."""
    with TemporaryDirectory() as folder:
        return trained(Path(folder), backend, STEPS)


def resumed(folder: Path, backend: str, after: str, ranks: int = RANKS) -> Run:
    """Go on from the first checkpoint of the straight run of another backend."""
    name = f"step-{SAVED:08d}"
    (folder / "saved" / name).mkdir(parents=True)
    for file, content in straight(after).saved[name].items():
        (folder / "saved" / name / file).write_bytes(content)
    return trained(folder, backend, STEPS, "--resume", ranks=ranks)


@pytest.mark.parametrize("backend", LONG[:2])
def test_four_ranks_train_and_end_without_an_error(backend: str) -> None:
    run = straight(backend)
    assert [(rank.code, rank.err) for rank in run.ended] == [(0, "")] * RANKS
    assert "4 processes on " + ("cuda" if backend == "nccl" else "cpu") in run.ended[0].out
    assert [rank.out for rank in run.ended[1:]] == [""] * (RANKS - 1)
    assert list(run.losses) == list(range(1, STEPS + 1))
    assert run.losses == pytest.approx(straight("gloo").losses, rel=1e-9, abs=0)


@pytest.mark.parametrize("backend", LONG[:2])
def test_a_resumed_run_is_the_same_run(backend: str, tmp_path: Path) -> None:
    rest = resumed(tmp_path / "rest", backend, backend)
    assert [(rank.code, rank.err) for rank in rest.ended] == [(0, "")] * RANKS
    assert rest.losses == {step: straight(backend).losses[step] for step in (3, 4)}
    assert rest.saved == straight(backend).saved


@gpu
def test_a_run_goes_on_from_the_cpu_to_the_gpu_and_back(tmp_path: Path) -> None:
    expected = {step: straight("gloo").losses[step] for step in (3, 4)}
    for backend, after in (("nccl", "gloo"), ("gloo", "nccl")):
        rest = resumed(tmp_path / backend, backend, after)
        assert rest.losses == pytest.approx(expected, rel=1e-9, abs=0)


@gpu
def test_one_gpu_without_other_ranks_is_enough(tmp_path: Path) -> None:
    rest = resumed(tmp_path, "nccl", "gloo", ranks=1)
    expected = {step: straight("gloo").losses[step] for step in (3, 4)}
    assert rest.losses == pytest.approx(expected, rel=1e-9, abs=0)
