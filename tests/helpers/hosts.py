"""Two hosts, which are network namespaces of this machine, and a run of `primepar train` on both.

Each host has a name, an address, and a link to the other one. It needs root, and Linux with `ip`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from fault_launchers import environment
from faulty_runs import SIZES, TIMEOUT, text_of, wait_until

HOSTS = {"hosta": "10.77.0.1", "hostb": "10.77.0.2"}
BIN = Path(sys.executable).parent
ENDING = 60.0
"""Seconds that a run may take beyond the timeout: torchrun waits 30 for a stopped process."""
PORT = 29555
"""Where the processes of torchrun meet, and those that are started by hand."""
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; PRELUDE $*"
"""
"""Runs a command on a host, as ssh does."""


def on(host: str, command: str) -> list[str]:
    """The words that run a command on a host, with its name."""
    return [
        "ip",
        "netns",
        "exec",
        host,
        "unshare",
        "--uts",
        "sh",
        "-c",
        f"hostname {host}; {command}",
    ]


def sure(*words: str) -> None:
    """Run a command that must work."""
    subprocess.run(words, check=True)


def set_link(state: str) -> None:
    """Cut the link between the hosts (`down`), or join them again (`up`)."""
    sure("ip", "-n", "hosta", "link", "set", "eth0", state)


@contextmanager
def two_hosts(own: str = "") -> Iterator[None]:
    """Two namespaces, joined by a pair of links; /etc/hosts has both names there.

    `own` is an address that each host gives to its own name there.
    """
    made: list[str] = []
    try:
        for host in HOSTS:
            sure("ip", "netns", "add", host)
            made.append(host)
            folder = Path("/etc/netns", host)
            folder.mkdir(parents=True, exist_ok=True)
            known = HOSTS | ({host: own} if own else {})
            names = "".join(f"{address} {name}\n" for name, address in known.items())
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        sure("ip", "link", "add", "to-hosta", "type", "veth", "peer", "name", "to-hostb")
        for (host, address), link in zip(HOSTS.items(), ("to-hosta", "to-hostb"), strict=True):
            sure("ip", "link", "set", link, "netns", host, "name", "eth0")
            sure("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                sure("ip", "-n", host, "link", "set", name, "up")
        yield
    finally:
        for host in made:
            sure("ip", "netns", "del", host)
            shutil.rmtree(Path("/etc/netns", host))


class HostsRun:
    """A run on both hosts; its log and checkpoints are in one folder, which must be there.

    `per_host` ranks run on each. On the second host another file or folder may be mounted at a
    path, which only this host then sees: `mounts` has path -> what is there.
    """

    def __init__(
        self, folder: Path, launcher: str, mpich: Path | None, arguments: str,
        per_host: int = 1, mounts: Mapping[Path, Path] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.folder, self.log, self.per_host = folder, folder / "log.jsonl", per_host
        self.saved = folder / "saved"
        ranks = 2 * per_host
        sizes = " ".join(SIZES).replace("K2", f"K{ranks}").replace("heads=2", f"heads={ranks}")
        train = (
            f"-m primepar train {sizes} --timeout {TIMEOUT} --checkpoint {self.saved} "
            f"--set output.log={self.log} {arguments}"
        )
        self.agent, self.hostfile = folder / "agent", folder / "hostfile"
        first = folder / "first"
        self.agent.write_text(AGENT.replace("PRELUDE", f"sh {first};"))
        self.agent.chmod(0o755)
        mounting = "; ".join(f"mount --bind {there} {path}" for path, there in mounts.items())
        first.write_text(f'if [ "$(hostname)" = hostb ]; then {mounting or ":"}; fi\n')
        commands = {
            "mpirun": self._open_mpi, "MPICH": self._mpich, "torchrun": self._torchrun,
            "by hand": self._by_hand,
        }[launcher](train, mpich)  # fmt: skip
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.launchers = [
                subprocess.Popen(
                    on(host, f"sh {first}; {command}"), env=environment(), cwd=folder,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                )
                for host, command in commands
            ]  # fmt: skip

    def _open_mpi(self, train: str, _: Path | None) -> list[tuple[str, str]]:
        self.hostfile.write_text("".join(f"{host} slots={self.per_host}\n" for host in HOSTS))
        words = (
            f"exec {BIN}/mpirun --allow-run-as-root --hostfile {self.hostfile} --bind-to none "
            f"--prtemca plm_ssh_agent {self.agent} -x PYTHONPATH -x OMP_NUM_THREADS"
        )
        return [("hosta", f"{words} -n {2 * self.per_host} {sys.executable} {train}")]

    def _mpich(self, train: str, mpich: Path | None) -> list[tuple[str, str]]:
        self.hostfile.write_text("".join(f"{host}:{self.per_host}\n" for host in HOSTS))
        words = f"exec {mpich}/mpirun -f {self.hostfile} -launcher ssh -launcher-exec {self.agent}"
        return [("hosta", f"{words} -n {2 * self.per_host} {mpich}/python {train}")]

    def _torchrun(self, train: str, _: Path | None) -> list[tuple[str, str]]:
        words = f"exec {BIN}/torchrun --nnodes 2 --nproc-per-node {self.per_host}"
        meeting = f"--master-addr hosta --master-port {PORT} --no-python -- {sys.executable} "
        return [
            (host, f"{words} --node-rank {number} {meeting} {train}")
            for number, host in enumerate(HOSTS)
        ]

    def _by_hand(self, train: str, _: Path | None) -> list[tuple[str, str]]:
        world = f"WORLD_SIZE=2 MASTER_ADDR={HOSTS['hosta']} MASTER_PORT={PORT} LOCAL_RANK=0"
        return [
            (host, f"exec env RANK={number} {world} {sys.executable} {train}")
            for number, host in enumerate(HOSTS)
        ]

    @property
    def rows(self) -> int:
        """Rows in the log."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def living(self) -> list[int]:
        """All processes that name the folder, but zombies."""
        paths = (path.parent for path in Path("/proc").glob("[0-9]*/cmdline"))
        named = [path for path in paths if str(self.folder) in text_of(path / "cmdline")]
        return [
            int(path.name)
            for path in named
            if text_of(path / "stat").rpartition(")")[2].split()[:1] != ["Z"]
        ]

    def ends(self, limit: float) -> float:
        """Wait for the end of all processes; the seconds that it took."""
        begin = time.monotonic()
        wait_until(lambda: None not in [p.poll() for p in self.launchers], "the end", limit)
        wait_until(lambda: not self.living(), "the end of all processes", limit)
        return time.monotonic() - begin

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.living():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()

    @property
    def lines(self) -> list[str]:
        """What primepar printed on stderr, of all hosts."""
        return [line for line in self.errors.read_text().splitlines() if "primepar: error" in line]
