"""Finds a checkpoint and reads it: is it whole, is it of this run, then this rank's boxes of it.

Every file is checked by one rank before any rank uses a number of it, so that the ranks share the
work. Settings of some sections define the losses. How the work is divided does not, so a resumed
run may have another plan, another number of ranks, or another device.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from primepar.distributed.checkpoints.folder import check_shared, saved_path, saved_steps
from primepar.distributed.checkpoints.manifest import (
    Identity,
    Manifest,
    check_file,
    read_manifest,
)
from primepar.distributed.checkpoints.saving import Checkpoints
from primepar.distributed.checkpoints.shards import load_state
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.alike import DIGITS, code_version, in_words
from primepar.distributed.training.data import Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.settings import Settings, key_of
from primepar.distributed.training.settings_plan import name_of, sizes_of
from primepar.distributed.training.trainer import STATES
from primepar.errors import CheckpointError, ConfigError

SECTIONS = ("training", "optimizer", "averaging")
"""Sections whose settings must be the same."""
FREE = (
    "training.steps",
    "training.tokenizer",
    "training.device",
    "training.accumulate",
    "training.recompute",
    "optimizer.sharded",
)
"""Settings of these sections that may differ: they divide the work, or have no part in a loss. The
tokens of a tokenizer are compared with the data."""
_DATA, _BATCH, _DECAY = "training.data", "training.batch", "optimizer.decay_steps"


class SavedRun(NamedTuple):
    """A checkpoint that this run goes on from, and what differs from it, in words."""

    path: Path
    manifest: Manifest
    notes: list[str]


def open_checkpoints(
    settings: Settings,
    text: Text,
    state: TrainingState,
    world: World,
    ending: ExitStack,
) -> tuple[Checkpoints, SavedRun | None]:
    """Return the checkpoints of this run, and the one to resume from. A collective call.

    The latter is None in a new run. `ending` closes the folder. This rank has checked its share of
    the files. Raises `CheckpointError` on one rank if the folder, or a checkpoint in
    it, is not one for this run, or is another one on some machine, and `ConfigError` if it has more
    steps than are asked.
    """
    assert settings.checkpoint is not None
    identity = identity_of(settings, state, text)
    folder = Path(settings.checkpoint)
    with world.agreement("checkpoints opened"):
        if world.rank == 0:
            path = saved_path(settings.checkpoint, resume=settings.resume)
        saves = Checkpoints(folder, identity, state, world, settings.keep, settings.asynchronous)
        ending.enter_context(saves)
    with world.agreement("checkpoints shared"):
        if world.rank > 0:
            check_shared(folder, saves.holder)
            path = saved_path(settings.checkpoint, resume=settings.resume)
    if path is None:
        return saves, None
    with world.agreement("checkpoint checked"):
        manifest = read_whole(path, world.rank, world.size)
        notes = check_same_run(path, manifest, identity, state, override=settings.override)
        if manifest.step > settings.steps:
            raise ConfigError(
                f"--steps: expected at least the {manifest.step} steps of {path}, got "
                f"{settings.steps}"
            )
    return saves, SavedRun(path, manifest, notes)


def read_whole(path: Path, rank: int = 0, ranks: int = 1) -> Manifest:
    """Return the manifest of a checkpoint after a check of this rank's share of the files.

    Raises `CheckpointError` for what is damaged, and names the newest earlier one that is whole.
    """
    try:
        return _read(path, rank, ranks)
    except CheckpointError as error:
        raise CheckpointError(f"{error}: {_earlier(path)}") from None


def _read(path: Path, rank: int, ranks: int) -> Manifest:
    manifest = read_manifest(path)
    for name, saved in sorted(manifest.files.items())[rank::ranks]:
        check_file(path, name, saved)
    return manifest


def _earlier(path: Path) -> str:
    """Return which earlier checkpoint a run could resume from; each is checked whole."""
    steps = saved_steps(path.parent)
    damaged = next(step for step, saved in steps.items() if saved == path)
    for step, saved in steps.items():
        if step < damaged and _is_whole(saved):
            return f"delete {path} to resume from step {step}, which is whole"
    return "no earlier checkpoint is whole"


def _is_whole(path: Path) -> bool:
    try:
        _read(path, 0, 1)
    except CheckpointError:
        return False
    return True


def check_same_run(
    path: Path, manifest: Manifest, identity: Identity, state: TrainingState, *, override: bool
) -> list[str]:
    """Return what differs from the run that wrote a checkpoint, and may differ.

    Raises `CheckpointError` for another model, optimizer or number of replicas, and without
    `override` for other settings.
    """
    saved = manifest.identity
    differing = [key for key, value in identity.model.items() if saved.model.get(key) != value]
    if differing:
        asked, got = (
            " ".join(f"model.{key}={run.model.get(key)}" for key in differing)
            for run in (identity, saved)
        )
        raise CheckpointError(
            f"{path}: expected a checkpoint of a model with {asked}, got one with {got}: give the "
            "settings of that run"
        )
    if saved.replicas not in (1, state.replicas):
        raise CheckpointError(
            f"{path}: expected a checkpoint of {state.replicas} replica"
            f"{'s' * (state.replicas > 1)}, got one of {saved.replicas}: resume with "
            f"averaging.every and a plan of {saved.replicas} replicas"
        )
    optimizer, other = (run.settings.get("optimizer.name") for run in (identity, saved))
    if optimizer != other:  # they have other moments
        raise CheckpointError(
            f"{path}: expected a checkpoint of optimizer.name={optimizer}, got one of {other}: add "
            f"--set optimizer.name={other}"
        )
    # A setting that the version which saved did not have counts with its default.
    defaults = {key_of(field.name): field.default for field in msgspec.structs.fields(Settings)}
    keys = sorted(identity.settings, key=lambda key: (SECTIONS.index(key.partition(".")[0]), key))
    pairs = [
        (key, identity.settings[key], saved.settings.get(key, defaults.get(key))) for key in keys
    ]
    changed = [
        f"{key}={in_words(value)} instead of {in_words(before)}"
        for key, value, before in pairs
        if value != before
    ]
    if changed and not override:
        raise CheckpointError(
            f"{path}: expected the settings of the run that wrote it, got {', '.join(changed)}: "
            "give them as they were, or add --set checkpoint.override=true"
        )
    notes = [f"goes on with {', '.join(changed)}"] if changed else []
    if saved.code != identity.code:
        notes.append(f"was written by primepar {saved.code}, this is {identity.code}")
    return notes


def identity_of(settings: Settings, state: TrainingState, text: Text) -> Identity:
    """Return what a run is.

    The data is compared by its content, the batch with the plan's. A rate that falls until the last
    step depends on the number of steps.
    """
    plan = state.plan
    values = {
        key_of(name): value
        for name, value in msgspec.structs.asdict(settings).items()
        if key_of(name).partition(".")[0] in SECTIONS and key_of(name) not in FREE
    }
    values[_DATA] = text.digest[:DIGITS]
    values[_BATCH] = sizes_of(settings, plan)[0]
    if settings.schedule != "constant" and settings.decay_steps is None:
        values[_DECAY] = settings.steps
    model, name = msgspec.to_builtins(plan.model), name_of(settings, plan)
    return Identity(values, model, name, plan.ranks, code_version(), state.replicas)


def load_saved(saved: SavedRun, state: TrainingState) -> None:
    """Fill the state of this rank, when every rank has checked its share of the files.

    Raises `CheckpointError` for a file that cannot be read, and a run state that no run saves.
    """
    for name, kind in STATES.items():
        try:
            msgspec.convert(saved.manifest.run_state.get(name), kind | None)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"{saved.path}: run_state.{name}: expected what a run saves, got {error}"
            ) from None
    load_state(saved.path, state, saved.manifest.identity.replicas)
