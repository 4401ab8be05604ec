"""Settings: what is out of range, alone or does not fit is refused before torch loads."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints
from unittest.mock import patch

import pytest
from command import run

from primepar.commands.train import train
from primepar.distributed.training.relaunch import mpirun_line
from primepar.distributed.training.settings import BATCH, SIZES, Settings, examples

REFUSED = {
    ("--steps", "0"): "--steps: expected 1 or more, got 0",
    ("--batch", "0"): "--batch: expected 1 or more, got 0",
    ("--seed", "-1"): "--seed: expected 0 or more, got -1",
    ("--lr", "nan"): "--lr: expected a positive number, got nan",
    ("--lr", "0"): "--lr: expected a positive number, got 0.0",
    ("--clip", "0"): "--clip: expected a positive number, got 0.0",
    ("--clip", "inf"): "--clip: expected a positive number, got inf",
    ("--layers", "0"): "layers: expected 1 or more, got 0",
    ("--heads", "5"): "heads: expected a divisor of hidden=192, got 5",
    ("--ranks", "0"): "--ranks: expected 1 or more, got 0",
    ("--resume",): "--resume: expected a folder of checkpoints, got none: add --checkpoint DIR",
    ("--checkpoint-every", "5"): "--checkpoint-every: expected a folder of checkpoints, got none: "
    "add --checkpoint DIR",
    ("--trace", "run.png"): "--trace: expected a name that ends with .svg (a picture) or .json "
    "(a Chrome trace), got 'run.png'",
    ("--log", "no/where.jsonl"): "--log no/where.jsonl: expected a folder that is there, got no: "
    "make it first",
    ("--data", "no.txt"): "no.txt: expected a file of text to train on, got no such file or "
    "directory: check --data",
    ("--sequence", "P2x3"): "sequence 'P2x3': expected 2 lengths after P, equal along r "
    "and c, like P2x2, got 'P2x3'",
    ("--vocabulary", "255"): "--vocabulary: expected 256 or more, got 255",
    ("--ranks", "4", "--batch", "5"): "--batch: expected a multiple or a divisor of the 2 slices "
    "of the rows in sequence P2x2, got 5: take 6, or another --sequence",
    ("--ranks", "4", "--batch", "1", "--context", "65"): "--batch: expected rows in a multiple of "
    "2, as the operators cut them, got 65, 1 x 65 tokens: take 2, or another --sequence",
    ("--ranks", "8", "--sequence", "K8"): "--heads: expected a multiple of 8 for sequence K8, "
    "got 4: take 8, or another --sequence",
    ("--ranks", "5", "--sequence", "N5"): "--hidden: expected a multiple of 5 for sequence N5, "
    "got 192: take 195, or another --sequence",
    ("--ranks", "3", "--sequence", "K3", "--heads", "3"): "--vocabulary: expected a multiple of 3 "
    "for sequence K3, got 256: take 258, or another --sequence",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_wrong_settings_end_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", *arguments)
    assert done == (2, "", f"primepar: error: {REFUSED[arguments]}\n")
    assert list(tmp_path.iterdir()) == []


def test_settings_are_judged_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = None\nfrom primepar.cli import main\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", script, "train", "--ranks", "4"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "primepar: error: training: expected the package torch, found none: "
        "run pip install 'primepar[torch]'\n"
    )


def test_arguments_give_the_settings_again() -> None:
    settings = Settings(
        sequence="K,P2x2", lr=0.25, clip=0.5, steps=3, checkpoint="a b", resume=True
    )
    assert settings.arguments() == [
        "--sequence", "K,P2x2", "--steps", "3", "--lr", "0.25", "--clip", "0.5", "--checkpoint",
        "a b", "--resume",
    ]  # fmt: skip
    assert Settings().arguments() == []


@pytest.mark.parametrize(("processes", "sequence"), [(1, "P1x1"), (4, "P2x2"), (9, "P3x3")])
def test_squares_of_processes_run_primepar(processes: int, sequence: str) -> None:
    assert str(Settings(batch=6, heads=6, vocabulary=258).mesh(processes)) == sequence


@pytest.mark.parametrize("devices", [2, 4, 6, 7, 8, 12])
def test_every_sequence_that_a_message_names_has_that_many_devices(devices: int) -> None:
    names = examples(devices).replace(" or ", ", ").split(", ")
    for name in names:
        settings = Settings(sequence=name, batch=168, hidden=168, heads=168, vocabulary=336)
        assert settings.mesh(devices).ranks == devices


@pytest.mark.parametrize(
    ("user", "cores", "flags"),
    [(0, 2, ["--allow-run-as-root", "--oversubscribe"]), (0, 4, ["--allow-run-as-root"]),
     (7, 2, ["--oversubscribe"]), (7, 4, [])],
)  # fmt: skip
def test_mpirun_gets_what_it_needs_here(user: int, cores: int, flags: list[str]) -> None:
    with (
        patch("os.geteuid", return_value=user),
        patch("os.sched_getaffinity", return_value=set(range(cores))),
    ):
        line = mpirun_line(4, ["--steps", "3", "--data", "a b"])
    python = Path(sys.executable)
    assert list(line.words) == [
        str(python.with_name("mpirun")), "-n", "4", "--bind-to", "none", *flags,
        str(python), "-m", "primepar", "train", "--steps", "3", "--data", "a b",
    ]  # fmt: skip
    assert str(line).startswith(f"OMP_NUM_THREADS=1 {python.with_name('mpirun')} -n 4 ")
    assert str(line).endswith("train --steps 3 --data 'a b'")


def test_threads_fill_the_cores_once() -> None:
    with patch("os.sched_getaffinity", return_value=set(range(16))):
        assert mpirun_line(4, []).variables == {"OMP_NUM_THREADS": "4"}


def test_the_help_names_every_setting() -> None:
    text = run("train", "--help").out
    options = ["--" + name.replace("_", "-") for name in Settings.__struct_fields__]
    assert [option for option in options if option not in text] == []


def test_defaults_of_the_command_are_those_of_the_settings() -> None:
    given = {name: p.default for name, p in inspect.signature(train).parameters.items()}
    assert given.pop("ranks") is None
    assert given == {name: getattr(Settings(), name) for name in Settings.__struct_fields__}


def test_the_help_has_the_sizes_that_are_taken_without_a_plan() -> None:
    sizes = {"batch": BATCH} | {name: getattr(Settings().model, name) for name in SIZES}
    hints = get_type_hints(train, include_extras=True)
    said = {name: hints[name].__metadata__[0].show_default for name in sizes}
    assert said == {name: f"the plan's, or {size}" for name, size in sizes.items()}
