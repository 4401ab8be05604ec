"""Settings: what is out of range, alone or does not fit is refused before torch loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run

from primepar.distributed.training.settings import (
    BATCH,
    LEAST_VOCABULARY,
    SIZES,
    Settings,
    key_of,
    meta_of,
    shown,
)
from primepar.distributed.training.settings_file import (
    config_text,
    read_settings,
    settings_of,
)
from primepar.distributed.training.settings_plan import examples, plan_of
from primepar.errors import ConfigError

REFUSED = {
    ("--steps", "0"): "--steps: expected an integer of 1 or more, got 0",
    ("--set", "optimizer.lr=nan"): "--set optimizer.lr=nan: expected a positive number, got 'nan'",
    ("--set", "averaging.after=3"): "averaging.after: expected a period of averages, got none: add "
    "--set averaging.every=H",
    ("--set", "averaging.every=2", "--ranks", "2", "--plan", "K2"): "plan: expected replicas to "
    "average, all operators with the same first cut of the rows, like M2,K2, got K2 of "
    "embedding: begin every sequence with M2, or leave the period out",
    ("--set", "averaging.every=2"): "plan: expected replicas to average, all operators with the "
    "same first cut of the rows, like M2,K2, got P1x1 of embedding: begin every sequence with "
    "M2, or leave the period out",
    ("--average-every", "2"): "--average-every: expected an option of primepar train, got no such "
    "one: write --set averaging.every=VALUE",
    (
        "--set",
        "averaging.every=2",
        "--ranks",
        "2",
        "--plan",
        "M2",
        "--set",
        "training.batch=1",
    ): "batch: expected a multiple of the 2 replicas of the plan, got 1: take 2",
    ("--set", "model.heads=5"): "heads: expected a divisor of hidden=192, got 5",
    ("--ranks", "0"): "--ranks: expected 1 or more, got 0",
    ("--resume",): "--resume: expected a folder of checkpoints, got none: add --checkpoint DIR",
    ("--set", "checkpoint.every=5"): "checkpoint.every: expected a folder of checkpoints, got "
    "none: add --checkpoint DIR",
    ("--set", "output.trace=run.png"): "--set output.trace=run.png: expected a name that ends with "
    ".svg (a picture) or .json (a Chrome trace), got 'run.png'",
    ("--set", "output.log=no/where.jsonl"): "output.log no/where.jsonl: expected a folder that is "
    "there, got no: make it first",
    ("--data", "no.txt"): "no.txt: expected a file of text to train on, got no such file or "
    "directory: check --data",
    ("--plan", "P2x3"): "--plan P2x3: expected a plan file (.json), or a sequence like K,P2x2, got "
    "neither: sequence 'P2x3': expected 2 lengths after P, equal along r and c, like P2x2, got "
    "'P2x3'",
    (
        "--set",
        "model.vocabulary=255",
    ): "--set model.vocabulary=255: expected an integer of 256 or more, got '255'",
    (
        "--ranks",
        "4",
        "--set",
        "training.batch=5",
    ): "batch: expected a multiple or a divisor of the 2 slices "
    "of the rows in blocks.0.attention, got 5: take 6",
    (
        "--ranks",
        "4",
        "--set",
        "training.batch=1",
        "--set",
        "model.context=65",
    ): "batch: expected rows in a "
    "multiple of 2, as the operators cut them, got 65, 1 x 65 tokens: take 2",
    ("--ranks", "8", "--plan", "K8"): "heads: expected a multiple of 8 for sequence 'K8', "
    "got 4: take 8, or another sequence",
    ("--ranks", "5", "--plan", "N5"): "hidden: expected a multiple of 5 for sequence 'N5', "
    "got 192: take 195, or another sequence",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_wrong_settings_end_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", *arguments)
    assert done == (2, "", f"primepar: error: {REFUSED[arguments]}\n")
    assert list(tmp_path.iterdir()) == []


LIMITS = {
    "an integer of 1 or more": (0, "steps batch accumulate layers hidden heads context "
                                "loss_scale_every average_every"),
    "an integer of 0 or more": (-1, "seed warmup average_after evaluate_every evaluate_batches "
                                "checkpoint_every keep"),
    "a positive number": (0.0, "lr epsilon clip loss_scale peak_tflops timeout save_before "
                          "time_limit"),
    "a number of 0 or more": (-0.5, "lr_min weight_decay"),
    "a number of 0 or more, less than 1": (1.0, "beta1 beta2"),
}  # fmt: skip
"""Range in words -> a value just outside of it, and all settings that have it."""


@pytest.mark.parametrize("words", LIMITS)
def test_every_number_has_its_range(words: str) -> None:
    value, names = LIMITS[words]
    for name in names.split():
        given: dict[str, Any] = {name: value}
        with pytest.raises(ConfigError) as caught:
            Settings(**given)
        assert str(caught.value) == f"{shown(name)}: expected {words}, got {value}"


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


@pytest.mark.parametrize(("processes", "sequence"), [(1, "P1x1"), (4, "P2x2"), (9, "P3x3")])
def test_squares_of_processes_run_primepar(processes: int, sequence: str) -> None:
    assert str(plan_of(Settings(batch=6, heads=6, vocabulary=258), processes).mesh) == sequence


@pytest.mark.parametrize("devices", [2, 4, 6, 7, 8, 12])
def test_every_sequence_that_a_message_names_has_that_many_devices(devices: int) -> None:
    names = examples(devices).replace(" or ", ", ").split(", ")
    for name in names:
        settings = Settings(plan=name, batch=168, hidden=168, heads=168, vocabulary=336)
        assert plan_of(settings, devices).ranks == devices


# Settings in a file, and by --set

FILE = """
[model]
layers = 1
[training]
steps = 7
device = "cpu"
[optimizer]
lr = 1
[checks]
verify = false
"""


def test_options_and_set_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    changes = ["optimizer.lr=0.5", "output.log='a b'", "checks.conform=true", "optimizer.clip=2"]
    settings = settings_of(path, changes, {"steps": 9, "batch": None})
    assert settings == Settings(
        layers=1, steps=9, device="cpu", lr=0.5, verify=False, log="a b", conform=True, clip=2.0
    )


SAMPLES: dict[str, Any] = {
    "plan": "K4", "chunks": 2, "steps": 3, "batch": 6, "accumulate": 2,
    "recompute": "full", "seed": 5,
    "data": 'a "b".txt', "tokenizer": "t.json", "dtype": "float16",
    "device": "cpu", "layers": 1, "hidden": 48, "heads": 2, "context": 16, "vocabulary": 300,
    "optimizer": "sgd", "lr": 0.25, "warmup": 0, "clip": 1.5, "schedule": "cosine", "lr_min": 0.125,
    "decay_steps": 2, "beta1": 0.5, "beta2": 0.75, "epsilon": 1e-6, "weight_decay": 0.0,
    "sharded": True, "masters": False, "loss_scale": 64.0, "loss_scale_every": 5,
    "average_every": 4,
    "average_after": 2, "evaluate_every": 0, "evaluate_batches": 3, "tensorboard": "tb",
    "verbose": True, "peak_tflops": 0.5, "checkpoint": "ckpt",
    "checkpoint_every": 2, "keep": 5, "asynchronous": False, "resume": True, "override": True,
    "timeout": 5.5,
    "save_before": 60.0, "time_limit": 600.0, "weights": "w", "save_weights": "é", "log": "l.jsonl",
    "trace": "t.svg", "device_memory": "64MiB", "verify": False, "conform": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "left_out",
    [
        ("trace", "device_memory", "dtype", "loss_scale"),
        ("conform", "average_every", "average_after", "dtype", "loss_scale"),
        ("conform", "average_every", "average_after", "device_memory"),
    ],
)
def test_every_setting_is_reached_by_set_by_a_file_and_by_options(
    left_out: tuple[str, ...], tmp_path: Path
) -> None:
    """Of a trace and `checks.conform`, and of averages and a limit of memory, one is taken."""
    assert sorted(SAMPLES) == sorted(Settings.__struct_fields__)
    given = {name: value for name, value in SAMPLES.items() if name not in left_out}
    expected = Settings(**given)
    assert settings_of(None, [f"{key_of(name)}={value}".replace("True", "true")
                              .replace("False", "false") for name, value in given.items()],
                       {}) == expected  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text(config_text(expected))
    assert read_settings(path) == {"conform": False, "average_after": 0, "dtype": "float32"} | given
    assert settings_of(None, [], given) == expected


def test_the_shown_settings_are_a_file_of_the_same_settings(tmp_path: Path) -> None:
    shown = run("train", "--show-config", "--steps", "3", "--set", "model.heads=2")
    assert (shown.code, shown.err) == (0, "")
    path = tmp_path / "run.toml"
    path.write_text(shown.out)
    assert run("train", "--show-config", "--config", str(path)).out == shown.out
    assert "steps = 3  # training steps\n" in shown.out
    assert "# layers =  # transformer blocks; not set: the plan's, or 4\n" in shown.out


WRONG_FILES = {
    "[training\n": "run.toml: expected TOML, got broken text: Expected ']' at the end of a table "
    "declaration (at line 1, column 10)",
    "[training]\nstep = 3\n": "run.toml: expected a key like optimizer.lr, got 'training.step': "
    "write training.steps=3",
    "[training]\nsteps = 'ten'\n": "run.toml: training.steps: expected an integer of 1 or more, "
    'got "ten"',
    "[training]\ndtype = 'int8'\n": "run.toml: training.dtype: expected one of float32, float64, "
    'bfloat16, float16, got "int8"',
    "[checks]\nverify = 0\n": "run.toml: checks.verify: expected true or false, got 0",
    "[output]\nlog = true\n": "run.toml: output.log: expected a string, got true",
    "[optimiser]\nlr = 1\n": "run.toml: expected a key like optimizer.lr, got 'optimiser.lr': "
    "write optimizer.lr=1",
    "steps = 3\n": "run.toml: expected a key like optimizer.lr, got 'steps': write "
    "training.steps=3",
    "[optimizer]\nlr = -1\n": "run.toml: optimizer.lr: expected a positive number, got -1",
}


@pytest.mark.parametrize("text", WRONG_FILES)
def test_a_wrong_file_ends_in_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(text)
    done = run("train", "--config", "run.toml")
    assert done == (2, "", f"primepar: error: {WRONG_FILES[text]}\n")


WRONG_WORDS = {
    ("--config", "none.toml"): "--config none.toml: expected a TOML file of settings, got no such "
    "file or directory: write one with primepar train --show-config > run.toml",
    ("--set", "lr=1"): "--set lr=1: expected a key like optimizer.lr, got 'lr': write "
    "optimizer.lr=1",
    ("--set", "optimizer.lr"): "--set optimizer.lr: expected section.key=value, got no =: write it "
    "like optimizer.lr=0.01",
    ("--set", "optimizer.rate=1"): "--set optimizer.rate=1: expected a key like optimizer.lr, got "
    "'optimizer.rate': write one of optimizer.name, optimizer.lr, optimizer.warmup, "
    "optimizer.schedule, optimizer.lr_min, optimizer.decay_steps, optimizer.beta1, "
    "optimizer.beta2, optimizer.epsilon, optimizer.weight_decay, optimizer.clip, "
    "optimizer.sharded, optimizer.masters, optimizer.loss_scale, optimizer.loss_scale_every",
    ("--set", "modle.layers=1"): "--set modle.layers=1: expected a key like optimizer.lr, got "
    "'modle.layers': write model.layers=1",
    ("--set", "evaluate_every=1"): "--set evaluate_every=1: expected a key like optimizer.lr, got "
    "'evaluate_every': write evaluation.every=1",
    ("--set", "x=1"): "--set x=1: expected a key like optimizer.lr, got 'x': primepar train "
    "--show-config lists them all",
    (
        "--set",
        "optimizer.lr=fast",
    ): "--set optimizer.lr=fast: expected a positive number, got 'fast'",
    ("--set", "checks.verify=no"): "--set checks.verify=no: expected true or false, got 'no'",
    ("--set", "optimizer.lr=1", "--set", "optimizer.lr=2"): "--set optimizer.lr=2: expected "
    "optimizer.lr once, got it twice: leave one out",
    ("--set", "training.steps=1", "--steps", "2"): "--set training.steps: expected one value, got "
    "--steps too: leave one of the two out",
    (
        "--set",
        "checks.conform=true",
        "--set",
        "output.trace=t.svg",
    ): "output.trace: expected none together with "
    "checks.conform, which watches every step itself, got t.svg: leave one of the two out",
}


@pytest.mark.parametrize("arguments", WRONG_WORDS, ids=" ".join)
def test_a_wrong_set_ends_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("train", *arguments) == (2, "", f"primepar: error: {WRONG_WORDS[arguments]}\n")


def test_the_defaults_in_words_are_the_sizes_that_are_taken_without_a_plan() -> None:
    sizes = {"batch": BATCH} | {name: getattr(Settings().model, name) for name in SIZES}
    texts = {name: meta_of(name).extra["otherwise"] for name in sizes}
    assert texts.pop("vocabulary") == "the plan's, or the data's"
    assert sizes.pop("vocabulary") == LEAST_VOCABULARY  # one entry for each byte
    assert texts == {name: f"the plan's, or {size}" for name, size in sizes.items()}
