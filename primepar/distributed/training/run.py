"""The body of `primepar train`: from settings to a finished run.

Checks that do not need torch are done before torch is loaded and before the rendezvous.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import msgspec

from primepar.distributed.training.alike import facts_of
from primepar.distributed.training.data import Text, load_text, with_vocabulary
from primepar.distributed.training.launch import World, check_installed, joined
from primepar.distributed.training.launchers import Launch
from primepar.distributed.training.log import EndRow, Log, StartRow, check_tensorboard
from primepar.distributed.training.progress import Reporter, print_reading
from primepar.distributed.training.ranks import end_with_parent, run_ranks
from primepar.distributed.training.settings import Settings, shown
from primepar.distributed.training.settings_file import config_text
from primepar.distributed.training.settings_plan import name_of, plan_of, sizes_of
from primepar.distributed.training.stopping import Stopping, exit_code, stop_reason, stop_time
from primepar.errors import ConfigError
from primepar.files import announce, note_input, reason, replace
from primepar.pictures.timeline import chrome_trace, timeline_svg
from primepar.plan import Plan
from primepar.plan.replicas import replicas_of
from primepar.schedule.events import Event, communication, together

if TYPE_CHECKING:
    from primepar.distributed.checkpoints.loading import SavedRun
    from primepar.distributed.training.run_programs import Prove
    from primepar.distributed.training.trainer import Trainer


def train(settings: Settings, ranks: int | None = None, prove: Prove | None = None) -> int:
    """Train in the processes that a launcher started, or start `ranks` processes.

    `prove` is called with the programs before the first step. Returns the exit code. Raises a
    `PrimeParError` on one rank only.
    """
    launch = Launch.of(os.environ)
    with launch.one_error():
        launch.check_alone(ranks)
        check_installed(launch, "torch", "safetensors")
        if ranks is not None and ranks < 1:
            raise ConfigError(f"--ranks: expected 1 or more, got {ranks}")
        plan = plan_of(settings, launch.size if ranks is None else ranks)
        text = load_text(settings.data, *sizes_of(settings, plan), settings.tokenizer)
        settings, plan = with_vocabulary(settings, plan, text)
        _check_folders(settings)
        check_tensorboard(settings.tensorboard)
        until = stop_time(settings, os.environ)
    if launch.launcher != "local":  # else the process that started this one printed them
        print_reading(settings, launch, "command", "settings", "launch")
    if ranks is not None:
        with NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
            file.write(config_text(settings))
            file.flush()
            return run_ranks(ranks, ["--config", file.name])
    if launch.launcher != "alone":
        end_with_parent()
        # Without it torch prints the C++ stack of every lost connection.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    facts = facts_of(settings, plan, text)
    with (
        Stopping(until) as stopping,
        joined(launch, settings.device, facts, settings.timeout) as world,
    ):
        prove = prove if settings.verify else None
        return train_here(settings, launch, world, plan, text, stopping, prove)


def _check_folders(settings: Settings) -> None:
    """Raise `ConfigError` for an output without a folder, `OutputError` if it is an input."""
    for name in ("log", "trace", "save_weights"):
        path = getattr(settings, name)
        if path is not None and not Path(path).parent.is_dir():
            raise ConfigError(
                f"{shown(name)} {path}: expected a folder that is there, "
                f"got {Path(path).parent}: make it first"
            )
        if path is not None:
            announce(Path(path))
    if settings.weights is not None:
        folder = Path(settings.weights)
        for file in folder.iterdir() if folder.is_dir() else [folder]:
            with suppress(OSError):
                note_input(file, file.stat())


def train_here(
    settings: Settings,
    launch: Launch,
    world: World,
    plan: Plan,
    text: Text,
    stopping: Stopping,
    prove: Prove | None = None,
) -> int:
    """Train on this rank of an initialised world; returns the exit code. A collective call."""
    # Not before the settings are checked: torch takes seconds to load.
    import torch

    from primepar.distributed.modules.weights import check_place, load_weights, save_weights
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.runtime.training_state import TrainingState
    from primepar.distributed.training.trainer import Trainer
    from primepar.models import WeightFile

    with ExitStack() as ending:
        with world.agreement("setup"):
            mesh = Mesh(
                plan.mesh, world.device, getattr(torch, settings.dtype), settings.device_bytes
            )
            replicas = 1 if settings.average_every is None else replicas_of(plan).count
            state = TrainingState(
                plan, mesh, settings.seed, settings.optimizer, replicas, settings.has_masters
            )
        saves, saved = None, None
        if settings.checkpoint is not None:
            # With torch.distributed.checkpoint, which takes half a second to import.
            from primepar.distributed.checkpoints.loading import load_saved, open_checkpoints

            saves, saved = open_checkpoints(settings, text, state, world, ending)
        with world.agreement("state"):
            if settings.save_weights is not None:
                check_place(Path(settings.save_weights), plan.model)
            done, run_state = (saved.manifest.step, saved.manifest.run_state) if saved else (0, {})
            # The file that the run began with defines the dtypes of saved weights.
            weights = None
            if saved is not None:
                load_saved(saved, state)
            if settings.weights is not None and saved is None:
                weights = load_weights(settings.weights, state)
            elif settings.weights is not None and settings.save_weights is not None:
                weights = WeightFile(settings.weights, plan.model)
            paths = (settings.log, settings.tensorboard) if world.rank == 0 else (None, None)
            log = Log(paths[0], done if saved else None, paths[1])
            reporter = Reporter(launch, done, settings.steps)
            trainer = Trainer(settings, world, state, text, log, reporter, saves, done, run_state)
        ending.enter_context(log)
        ending.enter_context(reporter)
        _open(trainer, saved)
        with world.agreement("start"):
            world.check_alike("start", {"checkpoint of step": str(trainer.done)})
        print_reading(settings, launch, "plan to program", *["proof"] * (prove is not None))
        with world.agreement("programs"):
            trainer.programs.check(prove, reporter)
        print_reading(settings, launch, "compile")
        with world.agreement("compiled"):
            trainer.programs.compile()
        print_reading(settings, launch, "run", "kernel")
        ending.enter_context(world.activity.part("training"))
        number, events = trainer.run(stopping)
        name = stop_reason(number)
        log.write(EndRow(trainer.done, name))
        if name:
            reporter.line(f"stopped by {name} after step {trainer.done}")
        with world.agreement("trace"):
            _write_trace(trainer, events)
        if settings.save_weights is not None:
            save_weights(settings.save_weights, state, world, weights)
            reporter.line(f"wrote {settings.save_weights}")
        mesh.barrier()
    return exit_code(number)


def _open(trainer: Trainer, saved: SavedRun | None) -> None:
    from primepar.distributed.training.speed import memory_of

    settings, world, plan = trainer.settings, trainer.world, trainer.state.plan
    parameters, name = plan.model.parameters, name_of(settings, plan)
    row = StartRow(
        settings, name, world.size, parameters, trainer.done, plan.model, trainer.programs.sizes[0],
        trainer.flops_per_token, trainer.peak_tflops, memory_of(world.device),
    )  # fmt: skip
    trainer.log.write(row)
    kind = "sequence" if settings.plan_file is None else "plan"
    processes = f"{world.size} process{'es' * (world.size > 1)}"
    trainer.reporter.line(
        f"{parameters} parameters in {settings.dtype}, {kind} {name}, {processes} on "
        f"{world.device.type}; {len(trainer.text.train)} {trainer.text.unit} of {trainer.text.name}"
    )
    if trainer.text.unknown:
        trainer.reporter.line(
            f"{trainer.text.unknown} tokens are unknown to the tokenizer: bits per byte leave them "
            "out"
        )
    if saved is not None:
        for note in saved.notes:
            trainer.reporter.line(f"{saved.path}: {note}")
        if trainer.done == settings.steps:  # a job that was queued again: its files are written
            trainer.reporter.line(f"{saved.path}: all {trainer.done} steps are done")


def _write_trace(trainer: Trainer, events: list[Event]) -> None:
    """Write the traced step of all ranks as a picture or as a Chrome trace."""
    path = trainer.settings.trace
    if path is None:
        return
    texts = trainer.world.exchange("events", msgspec.json.encode(events).decode())
    everyone = [event for text in texts for event in msgspec.json.decode(text, type=list[Event])]
    if trainer.world.rank == 0 and everyone:
        moved = together(communication(everyone))
        share = f"{moved.share:.1%} of the communication is hidden by computing"
        trainer.reporter.line(f"traced step: {share if moved.total else 'no communication'}")
        svg = path.endswith(".svg")
        drawn = timeline_svg(everyone) if svg else json.dumps(chrome_trace(everyone))
        try:
            replace(Path(path), drawn.encode())
        except OSError as error:
            raise ConfigError(
                f"output.trace {path}: expected a file that can be written, got "
                f"{reason(error)}: give another place"
            ) from None
