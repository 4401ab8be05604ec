"""The checkpoints of a run: opens their folder, and finds and checks the one to resume from."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from primepar.distributed.training.data import Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.settings import Settings
from primepar.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from primepar.distributed.checkpoints.manifest import Manifest
    from primepar.distributed.checkpoints.saving import Checkpoints
    from primepar.distributed.runtime.training_state import TrainingState


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
) -> tuple[Checkpoints | None, SavedRun | None]:
    """Return the checkpoints of this run, and the one to resume from. A collective call.

    Each is None if the settings ask for none. `ending` closes the folder. This rank has checked
    its share of the files. Raises `CheckpointError` on one rank if the folder, or a checkpoint in
    it, is not one for this run, or is another one on some machine, and `ConfigError` if it has more
    steps than are asked.
    """
    if settings.checkpoint is None:
        return None, None
    # With torch.distributed.checkpoint, which takes half a second to import.
    from primepar.distributed.checkpoints.folder import check_shared, saved_path
    from primepar.distributed.checkpoints.loading import check_same_run, identity_of, read_whole
    from primepar.distributed.checkpoints.saving import Checkpoints

    identity = identity_of(settings, state.plan, text)
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


def load_saved(saved: SavedRun, state: TrainingState) -> None:
    """Fill the state of this rank, when every rank has checked its share of the files.

    Raises `CheckpointError` for a file that cannot be read, and a run state that no run saves.
    """
    from primepar.distributed.checkpoints.loading import load
    from primepar.distributed.training.trainer import STATES

    for name, kind in STATES.items():
        try:
            msgspec.convert(saved.manifest.run_state.get(name), kind | None)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"{saved.path}: run_state.{name}: expected what a run saves, got {error}"
            ) from None
    load(saved.path, saved.manifest, state)
