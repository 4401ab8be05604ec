"""The machine of a run, and how much of its CPU went to other work meanwhile."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

IDLE = 0.05
"""Share of the CPU that may go elsewhere on a machine that counts as idle."""
_NOT_BUSY = (3, 4)
"""Fields of /proc/stat for idle time: idle and iowait."""
_COUNTED = 8
"""Fields of /proc/stat up to stolen time; those of guests are in them already."""


class MachineLoad(Struct, frozen=True):
    """What the machine did during a run; seconds of CPU are summed over cores."""

    date: str
    machine: str
    versions: dict[str, str]
    cores: int
    seconds: float
    busy: float
    used: float
    load_before: float

    @property
    def elsewhere(self) -> float:
        """Share of the machine's CPU time that went to other processes, or was stolen."""
        return max(0.0, self.busy - self.used) / (self.seconds * self.cores)

    @property
    def idle(self) -> bool:
        """Whether nothing else of weight ran."""
        return self.elsewhere <= IDLE

    def __str__(self) -> str:
        share = f"{self.elsewhere:.0%} of the CPU went elsewhere"
        return f"idle ({share})" if self.idle else f"loaded ({share})"


class LoadClock:
    """Reads /proc/stat at the start and at the end of a run."""

    def __init__(self) -> None:
        self.begin, self.busy = time.monotonic(), busy_seconds(_stat())
        self.load_before = os.getloadavg()[0]

    def stop(self, used: float) -> MachineLoad:
        """The load since the start; `used` are the CPU seconds of this run's processes."""
        from importlib.metadata import version

        names = ("primepar", "torch")
        return MachineLoad(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
            versions={"python": platform.python_version(), **{n: version(n) for n in names}},
            cores=os.cpu_count() or 1,
            seconds=time.monotonic() - self.begin,
            busy=busy_seconds(_stat()) - self.busy,
            used=used,
            load_before=self.load_before,
        )


def busy_seconds(stat: str) -> float:
    """CPU seconds of all cores that were not idle, by the first line of /proc/stat."""
    ticks = [int(field) for field in stat.split("\n")[0].split()[1 : 1 + _COUNTED]]
    busy = sum(ticks[place] for place in range(len(ticks)) if place not in _NOT_BUSY)
    return busy / os.sysconf("SC_CLK_TCK")


def _stat() -> str:
    return Path("/proc/stat").read_text(encoding="ascii")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
