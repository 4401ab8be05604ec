"""Reads a checkpoint: is it whole, is it of this run, and then this rank's boxes of it.

Every file is checked by one rank before any rank uses a number of it, so that the ranks share the
work.
"""

from __future__ import annotations

from pathlib import Path

from primepar.distributed.checkpoints.folder import saved_steps
from primepar.distributed.checkpoints.held import tensor_name, to_load
from primepar.distributed.checkpoints.identity import differences
from primepar.distributed.checkpoints.manifest import (
    Identity,
    Manifest,
    check_file,
    read_manifest,
)
from primepar.distributed.checkpoints.storage import load_part
from primepar.distributed.runtime.training_state import TrainingState
from primepar.errors import CheckpointError


def read_whole(path: Path, rank: int = 0, ranks: int = 1) -> Manifest:
    """Return the manifest of a checkpoint after a check of this rank's share of the files.

    Raises `CheckpointError` for what is damaged, and names the newest earlier one that is whole.
    """
    if path.is_file():
        raise CheckpointError(
            f"{path}: expected a folder of format version 2, got a file of version 1, without "
            "checksums and settings: resume it with the version of primepar that wrote it"
        )
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
    _check_model(path, manifest.identity, identity)
    _check_replicas(path, manifest, state)
    _check_optimizer(path, manifest.identity, identity)
    changed = differences(manifest.identity, identity)
    if changed and not override:
        raise CheckpointError(
            f"{path}: expected the settings of the run that wrote it, got {', '.join(changed)}: "
            "give them as they were, or add --override"
        )
    notes = [f"goes on with {', '.join(changed)}"] if changed else []
    if manifest.identity.code != identity.code:
        notes.append(f"was written by primepar {manifest.identity.code}, this is {identity.code}")
    return notes


def _check_model(path: Path, saved: Identity, now: Identity) -> None:
    differing = [key for key, value in now.model.items() if saved.model.get(key) != value]
    if differing:
        asked, got = (
            " ".join(f"model.{key}={identity.model.get(key)}" for key in differing)
            for identity in (now, saved)
        )
        raise CheckpointError(
            f"{path}: expected a checkpoint of a model with {asked}, got one with {got}: give the "
            "settings of that run"
        )


def _check_replicas(path: Path, manifest: Manifest, state: TrainingState) -> None:
    first = next(iter(state.plan.model.parameter_shapes))
    replicas = 0
    while tensor_name(first, "", replicas) in manifest.tensors:
        replicas += 1
    if replicas not in (0, state.replicas):
        raise CheckpointError(
            f"{path}: expected a checkpoint of {state.replicas} replica"
            f"{'s' * (state.replicas > 1)}, got one of {replicas}: resume with averaging.every and "
            f"a plan of {replicas} replicas"
        )


def _check_optimizer(path: Path, saved: Identity, now: Identity) -> None:
    """Raise `CheckpointError` if the optimizers differ: they have other moments."""
    asked, got = (identity.settings.get("optimizer.name") for identity in (now, saved))
    if asked != got:
        raise CheckpointError(
            f"{path}: expected a checkpoint of optimizer.name={asked}, got one of {got}: add "
            f"--set optimizer.name={got}"
        )


def load(path: Path, manifest: Manifest, state: TrainingState) -> None:
    """Fill a state with this rank's boxes. Raises `CheckpointError` if a file cannot be read."""
    for suffix in state.kinds:
        load_part(path, manifest, to_load(state, suffix, manifest.tensors))
