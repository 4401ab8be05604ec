"""The body of `primepar profile`: measure this machine, write it as a cluster file."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from primepar.distributed.training.launch import World, check_installed, joined
from primepar.distributed.training.launchers import Launch
from primepar.distributed.training.progress import on_terminal
from primepar.distributed.training.ranks import cores, end_with_parent, run_ranks
from primepar.distributed.training.settings import DeviceChoice, Dtype
from primepar.distributed.training.stopping import Stopping, exit_code
from primepar.errors import ConfigError, LaunchError
from primepar.files import write_text
from primepar.plan.profile import MeasuredMachine, cluster_text

RANKS = 4
"""Number of processes unless `--ranks` gives it."""
MOST_RANKS = 64
"""Largest number of processes on one machine."""
GPU_SCALE = 8
"""Factor of every tensor dim on a GPU, compared with a CPU."""


class Profile(Struct, frozen=True, kw_only=True):
    """Options of `primepar profile`. Raises `ConfigError` for options that cannot work."""

    output: str
    ranks: int | None = None
    dtype: Dtype = "float32"
    device: DeviceChoice = "auto"

    def __post_init__(self) -> None:
        folder = Path(self.output).parent
        if not folder.is_dir():
            raise ConfigError(
                f"--output {self.output}: expected a folder that is there, got {folder}: make it "
                "first"
            )
        if self.ranks is not None:
            check_ranks(self.ranks)

    def arguments(self) -> list[str]:
        """Return the command-line arguments that pass these options to each process."""
        options = {"--output": self.output, "--dtype": self.dtype, "--device": self.device}
        return [word for option in options.items() for word in option]


def check_ranks(ranks: int) -> None:
    """Raise `ConfigError` unless `ranks` is a power of two, so that ranks are device bits."""
    if not 2 <= ranks <= MOST_RANKS or ranks & (ranks - 1):
        near = min(MOST_RANKS, max(2, 1 << ranks.bit_length() - 1 if ranks > 0 else 2))
        raise ConfigError(
            f"--ranks: expected a power of two from 2 to {MOST_RANKS} processes, got {ranks}: "
            f"take {near}"
        )


def profile(asked: Profile) -> int:
    """Measure with the processes that mpirun or torchrun started, or start processes.

    Returns the exit code. Raises a `PrimeParError` on one rank only; then no file is written.
    """
    launch = Launch.of(os.environ)
    with launch.one_error():
        launch.check_alone(asked.ranks)
        check_installed(launch, "torch")
        if launch.launcher == "alone":
            again = ("-m", "primepar", "profile")
            return run_ranks(asked.ranks or RANKS, asked.arguments(), again)
        check_ranks(launch.size)
    end_with_parent()
    with Stopping() as stopping, joined(launch, asked.device) as world:
        return profile_here(asked, launch, world, stopping)


def profile_here(asked: Profile, launch: Launch, world: World, stopping: Stopping) -> int:
    """Measure on this rank of an initialised world; a collective call."""
    import torch

    from primepar.distributed.profiling.clock import RUNS, Stopped, Stopwatch
    from primepar.distributed.profiling.work import Works, hidden, measure
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.partition import parse_sequence

    console = Console(force_terminal=on_terminal(launch), quiet=world.rank > 0, soft_wrap=True,
                      highlight=False)  # fmt: skip
    sequence = parse_sequence(f"M{world.size}")
    mesh = Mesh(sequence, world.device, getattr(torch, asked.dtype))
    works = Works(mesh, GPU_SCALE if world.device.type == "cuda" else 1)
    with world.agreement("machine"):
        _check_one_machine(world)
    about = machine(asked, world)
    console.print(f"measuring {about.where}", markup=False)
    with _bar(console, works.count * RUNS) as done:
        count = cores() if world.device.type == "cpu" else None
        watch = Stopwatch(mesh, lambda: stopping.signal, done, count)
        try:
            samples = measure(works, watch)
            text = cluster_text(about, samples, hidden(works, watch))
        except Stopped as stopped:
            console.print("stopped before all was measured: nothing is written", markup=False)
            return exit_code(stopped.signal)
    with world.agreement("profile"):
        if world.rank == 0:
            write_text(Path(asked.output), text, ConfigError)
    console.print(f"wrote {asked.output}", markup=False)
    return 0


def _check_one_machine(world: World) -> None:
    """Raise `LaunchError` for several machines: the cluster file gets one level of links."""
    hosts = set(world.exchange("profile host", platform.node()))
    if len(hosts) > 1:
        raise LaunchError(
            f"profile: expected processes on one machine, got {', '.join(sorted(hosts))}: "
            "measure each on its own, and write the links between them into the file"
        )


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal, and yield the function that advances it."""
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda runs: bar.advance(task, runs)


def machine(asked: Profile, world: World) -> MeasuredMachine:
    """Describe the measured machine for the cluster file."""
    import torch

    ranks = f"{world.size} processes"
    if world.device.type == "cuda":
        about = torch.cuda.get_device_properties(world.device)
        name, where, memory = f"{world.size} x {about.name}", "NCCL", about.total_memory
    else:
        count = cores()
        name = f"{ranks} on {count} core{'s' * (count > 1)}"
        where = f"{_processor()}, gloo"
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world.size
    busy = f"load {os.getloadavg()[0]:.1f} before"
    where = f"{name}, {where}, {asked.dtype}, torch {torch.__version__}, {busy}"
    return MeasuredMachine(name, where, f"{date.today():%Y-%m-%d}", world.size, memory, asked.dtype)


def _processor() -> str:
    """Return the model name of the processor if Linux reports it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model_names = (
        line.partition(":")[2].strip() for line in lines if line.startswith("model name")
    )
    return next(model_names, platform.machine())
