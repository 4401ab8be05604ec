"""What ranks do in the tests of the profile: each function runs on every rank of one world."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist
from lowered_steps import lower_step
from torch import device
from torch.distributed import FileStore  # type: ignore[attr-defined]

from primepar.distributed.profiling import clock as profile_clock
from primepar.distributed.profiling import work
from primepar.distributed.profiling.clock import Stopwatch
from primepar.distributed.profiling.measure import Profile, profile_here
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.training.launch import World
from primepar.distributed.training.launchers import Launch
from primepar.distributed.training.stopping import Stopping
from primepar.errors import LaunchError
from primepar.partition import parse_sequence


def profile(folder: Path, asked: bool) -> int:
    """Profile in the shortest of times; where `asked`, rank 1 is asked to stop before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    name = "asked" if asked else "whole"
    world = World(rank, size, device("cpu"), FileStore(str(folder / f"{name}-store"), size))
    with (
        patch.object(profile_clock, "SECONDS", 1e-6),
        patch.object(profile_clock, "REPEATS", 1),
        patch.object(profile_clock, "TURNS", 1),
        patch.object(work, "lower_step", lower_step),
        Stopping() as stopping,
    ):
        if asked and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        settings = Profile(output=str(folder / f"{name}.toml"))
        return profile_here(settings, Launch("torchrun", rank, size), world, stopping)


def clocked() -> tuple[float, float, float, int]:
    """Times of work by clocks that go on by a second at each look, and how often it was done.

    The clock of rank 1 is ten seconds ahead, and its CPU clock is twice as fast. With three cores,
    with one, and in turn.
    """
    mesh, done = Mesh(parse_sequence(f"M{dist.get_world_size()}")), list[int]()
    now, used = count(), count()
    clocks = (lambda: float(10 * mesh.rank + next(now)),
              lambda: float(next(used) * (1 + mesh.rank)))  # fmt: skip
    many, one = (Stopwatch(mesh, lambda: 0, lambda _: None, cores, clocks) for cores in (3, 1))
    works = [lambda: done.append(1)]
    return many.seconds(works)[0], one.seconds(works)[0], many.in_turn(works)[0], len(done)


def apart(folder: Path) -> str:
    """The refusal where every rank is on another machine; "" on ranks that print nothing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    world = World(rank, size, device("cpu"), FileStore(str(folder / "apart"), size))
    asked = Profile(output=str(folder / "apart.toml"))
    launch = Launch("torchrun", rank, size)
    with (
        patch("platform.node", return_value=f"host{rank}"),
        Stopping() as stopping,
    ):
        try:
            profile_here(asked, launch, world, stopping)
        except LaunchError as error:
            return str(error)
        except SystemExit:
            return ""
    return "it was measured"


def all_cases(folder: Path) -> tuple[int, int, tuple[float, float, float, int], str]:
    """A whole profile, one that is stopped, the clock, and one on two machines."""
    whole, stopped = profile(folder, asked=False), profile(folder, asked=True)
    return whole, stopped, clocked(), apart(folder)
