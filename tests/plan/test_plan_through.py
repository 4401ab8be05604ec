"""Plans that `primepar plan` wrote go through every command that takes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import training_cases as cases
from command import run
from distributed_ranks import on_ranks

from primepar.plan import load_plan

CONFIG = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 16,
    "vocab_size": 257, "activation_function": "gelu_new", "tie_word_embeddings": False,
}  # fmt: skip
BATCH, STEPS = cases.BATCH, 3


SPACES = ("paper", "all")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plans of four devices, one from a search in each space."""
    folder = tmp_path_factory.mktemp("plans")
    model, written = folder / "config.json", {}
    model.write_text(json.dumps(CONFIG))
    for space in SPACES:
        path = written[space] = folder / f"{space}.json"
        done = run("plan", str(model), "--cluster", "h200-8", "--devices", "4", "--batch",
                   str(BATCH), "--dtype", "float32", "--space", space, "-o", str(path))  # fmt: skip
        assert (done.code, done.err) == (0, "")
    return written


@pytest.fixture(params=SPACES)
def written(request: pytest.FixtureRequest, plans: dict[str, Path]) -> Path:
    return plans[request.param]


def test_it_is_shown_with_its_sequences(written: Path) -> None:
    done = run("show", str(written))
    assert (done.code, done.err) == (0, "")
    assert all(text in done.out for text in set(load_plan(written).sequences.values()))


def test_its_step_is_proved(written: Path) -> None:
    done = run("verify", str(written), "--json")
    assert (done.code, json.loads(done.out)["verdict"]) == (0, "proved")


def test_its_step_is_simulated(written: Path) -> None:
    done = run("simulate", str(written), "--cluster", "h200-8", "--dtype", "float32", "--json")
    report = json.loads(done.out)
    assert (done.code, report["ranks"], report["fits"]) == (0, 4, True)
    assert report["step"] == {"batch": BATCH, "positions": 16, "layers_left_out": 0,
                            "tokens_per_second": BATCH * 16 / report["seconds"]}  # fmt: skip


def four_ranks(folder: Path, plans: dict[str, Path]) -> list[Any]:
    """Train under each plan on this rank, in float64."""
    return [cases.train(folder / space, plan=str(path), steps=STEPS, evaluate_every=0)
            for space, path in plans.items()]  # fmt: skip


def test_they_train_as_one_process_does(plans: dict[str, Path], tmp_path: Path) -> None:
    plan, alone = plans["paper"], tmp_path / "alone.json"
    one = {"ranks": 1, "sequences": dict.fromkeys(load_plan(plan).sequences, "")}
    alone.write_text(json.dumps(json.loads(plan.read_text()) | one))
    assert cases.train(tmp_path / "one", plan=str(alone), steps=STEPS, evaluate_every=0) == 0
    assert on_ranks(4, four_ranks, tmp_path, plans) == [[0, 0]] * 4
    expected = cases.losses(tmp_path / "one")
    assert list(expected) == [1, 2, 3]
    for space in SPACES:
        assert cases.losses(tmp_path / space) == pytest.approx(expected, rel=1e-12)
