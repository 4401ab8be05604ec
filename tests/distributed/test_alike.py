"""What all ranks of a run must have in common, and which rank reports where they do not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from primepar.distributed.training.alike import differences, facts_of
from primepar.distributed.training.data import Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of
from primepar.errors import ConfigError, PrimeParError

RANKS = 4
OTHER = {
    **dict.fromkeys(("plan", "data", "log", "weights", "save_weights", "tensorboard"), "a file"),
    "tokenizer": "a file",
    "checkpoint": None, "device": "cpu", "device_memory": "1GiB", "dtype": "float64", "heads": 2,
    "hidden": 64, "lr_min": 1e-4, "decay_steps": 50, "beta1": 0.5, "beta2": 0.5, "loss_scale": 8.0,
    "optimizer": "sgd", "recompute": "full", "schedule": "cosine", "trace": "step.svg",
    "vocabulary": 300,
}  # fmt: skip
"""Values of the settings that take no number, or not any one."""
TEXT = Text.of("letters", bytes(range(200)) * 40, 4, 16)


def on_all(work: Callable[[World], None]) -> list[str]:
    """What each rank of one store ends with: an error's text, an exit code, or nothing."""
    store, cpu = HashStore(), torch.device("cpu")

    def end(rank: int) -> str:
        try:
            work(World(rank, RANKS, cpu, store))
        except PrimeParError as error:
            return f"{type(error).__name__} {error.exit_code}: {error}"
        except SystemExit as exit:
            return f"exit {exit.code}"
        return ""

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(end, range(RANKS)))


def compared(*everyone: dict[str, str]) -> list[str]:
    def work(world: World) -> None:
        with world.agreement("alike"):
            world.check_alike("alike", everyone[world.rank])

    return on_all(work)


def test_ranks_with_the_same_facts_go_on() -> None:
    facts = {"torch": "2.13.0", "training.seed": "0"}
    assert compared(*[facts] * RANKS) == [""] * RANKS


def test_rank_0_names_the_ranks_that_differ_and_the_others_are_silent() -> None:
    facts = {"torch": "2.13.0", "optimizer.clip": "none"}
    clipped = facts | {"optimizer.clip": "1.0"}
    assert compared(facts, clipped, facts | {"torch": "2.11.0"}, clipped) == [
        "LaunchError 2: ranks: expected what rank 0 has on every rank, got optimizer.clip 1.0 on "
        "rank 1, 3, not none; torch 2.11.0 on rank 2, not 2.13.0: start all ranks with one command "
        "line, on machines with the same files and the same version",
        *["exit 0"] * 3,
    ]


def test_of_the_ranks_that_fail_the_lowest_reports() -> None:
    def work(world: World) -> None:
        with world.agreement("device"):
            if world.rank >= 2:
                raise ConfigError(f"rank {world.rank} has no device")

    assert on_all(work) == ["exit 0", "exit 0", "ConfigError 2: rank 2 has no device", "exit 0"]


def test_a_fact_that_a_rank_does_not_know_differs() -> None:
    assert differences([{}, {"new": "1"}]) == "new 1 on rank 1, not none"
    assert differences([{"old": "1"}, {}]) == "old none on rank 1, not 1"


def changed(name: str, value: object) -> object:
    """Another value of a setting."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else 1


def test_every_setting_is_compared() -> None:
    averaged = Settings(checkpoint="run", average_every=2, schedule="linear", save_before=1.0)
    scaled = Settings(dtype="float16")
    plan = plan_of(Settings(), 1)
    for name in averaged.__struct_fields__:
        one = scaled if name.startswith("loss_scale") else averaged
        one = Settings() if name == "device_memory" else one
        other = msgspec.structs.replace(one, **{name: changed(name, getattr(one, name))})
        facts = facts_of(one, plan, TEXT)
        assert differences([facts, facts_of(other, plan, TEXT)]), name


def test_paths_may_differ_and_what_is_in_the_files_may_not() -> None:
    one, other = (Settings(data=str(Path(name) / "text")) for name in ("here", "there"))
    facts, plan = facts_of(one, plan_of(one, 1), TEXT), plan_of(one, 1)
    assert not differences([facts, facts_of(other, plan, TEXT)])
    text = Text.of("others", bytes(range(201)) * 40, 4, 16)
    assert differences([facts, facts_of(one, plan, text)]).startswith("text ")
    assert differences([facts, facts_of(one, plan_of(one, 4), TEXT)]).startswith("plan ")


def test_the_code_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    facts = facts_of(settings, plan_of(settings, 1), TEXT)
    monkeypatch.setattr(
        "primepar.distributed.training.alike.digest_of_code", lambda: b"other sources"
    )
    assert differences([facts, facts_of(settings, plan_of(settings, 1), TEXT)]).startswith(
        "primepar "
    )
