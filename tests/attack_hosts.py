"""`python tests/attack_hosts.py`: a run on two hosts, which are network namespaces of this machine.

Each has a name, an address and a link to the other one. mpirun starts the processes by a host file,
torchrun by a command on each host. The losses must be those of one host. A host that is lost, a
launcher that is killed and a SIGTERM must end the run on both. It needs root, and Linux with `ip`.
Ends with 1 unless all holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_launchers import environment
from faulty_runs import SIZES, TIMEOUT, text_of, wait_until

from primepar.distributed.training.log import StepRow, read_log

HOSTS = {"hosta": "10.77.0.1", "hostb": "10.77.0.2"}
BIN = Path(sys.executable).parent
STEPS, MANY = 20, 100_000
ENDING = 30.0
"""Seconds that a run may take beyond the timeout, on a machine with other work."""
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
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


@contextmanager
def hosts() -> Iterator[None]:
    """Two namespaces, joined by a pair of links; /etc/hosts has both names there."""
    for host in HOSTS:
        folder = Path("/etc/netns", host)
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{address} {name}\n" for name, address in HOSTS.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        sure("ip", "netns", "add", host)
    try:
        sure("ip", "link", "add", "to-hosta", "type", "veth", "peer", "name", "to-hostb")
        for (host, address), link in zip(HOSTS.items(), ("to-hosta", "to-hostb"), strict=True):
            sure("ip", "link", "set", link, "netns", host, "name", "eth0")
            sure("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                sure("ip", "-n", host, "link", "set", name, "up")
        yield
    finally:
        for host in HOSTS:
            sure("ip", "netns", "del", host)


class HostsRun:
    """A run on both hosts, with its log and checkpoints in one folder that both share."""

    def __init__(self, folder: Path, launcher: str, steps: int) -> None:
        self.folder, self.log = folder, folder / "log.jsonl"
        folder.mkdir()
        train = (
            f"-m primepar train {' '.join(SIZES)} --timeout {TIMEOUT} --steps {steps} "
            f"--set output.log={self.log} --checkpoint {folder}/saved"
        )
        if launcher == "mpirun":
            agent, file = folder / "agent", folder / "hostfile"
            agent.write_text(AGENT)
            agent.chmod(0o755)
            file.write_text("".join(f"{host} slots=1\n" for host in HOSTS))
            commands = [on("hosta", f"exec {BIN}/mpirun --allow-run-as-root --hostfile {file} "
                           f"--prtemca plm_ssh_agent {agent} -x PYTHONPATH -x OMP_NUM_THREADS "
                           f"-n 2 {sys.executable} {train}")]  # fmt: skip
        else:
            commands = [
                on(host, f"exec {BIN}/torchrun --nnodes 2 --nproc-per-node 1 --node-rank {number} "
                   f"--master-addr hosta --master-port 29555 --no-python -- {sys.executable} "
                   f"{train}")
                for number, host in enumerate(HOSTS)
            ]  # fmt: skip
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.launchers = [
                subprocess.Popen(words, env=environment(), cwd=folder, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=errors)
                for words in commands
            ]  # fmt: skip

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

    def ends(self, limit: float = TIMEOUT + ENDING) -> float:
        """Wait for the end of all processes; the seconds that it took."""
        begin = time.monotonic()
        wait_until(lambda: None not in [p.poll() for p in self.launchers], "the end", limit)
        wait_until(lambda: not self.living(), "the end of all processes", limit)
        return time.monotonic() - begin

    @property
    def lines(self) -> list[str]:
        """What primepar printed on stderr, of all hosts."""
        return [line for line in self.errors.read_text().splitlines() if "primepar: error" in line]


def losses(log: Path) -> list[float]:
    """The loss of each step."""
    return [row.loss for row in read_log(log) if isinstance(row, StepRow)]


def cut(run: HostsRun) -> None:
    """Cut the link."""
    sure("ip", "-n", "hosta", "link", "set", "eth0", "down")


def kill(run: HostsRun) -> None:
    """Kill the first launcher: the shell, `ip` and `unshare` have become it."""
    run.launchers[0].send_signal(signal.SIGKILL)


def terminate(run: HostsRun) -> None:
    """Ask the first launcher to end."""
    run.launchers[0].send_signal(signal.SIGTERM)


FAULTS: dict[str, Callable[[HostsRun], None]] = {
    "SIGTERM": terminate, "the launcher is killed": kill, "the link is cut": cut,
}  # fmt: skip


def ends_well(folder: Path, launcher: str, name: str) -> bool:
    """Whether a run with a fault ends in time, with its checkpoint and few lines."""
    run = HostsRun(folder, launcher, MANY)
    try:
        wait_until(lambda: run.rows > 5, "the first steps")
        FAULTS[name](run)
        seconds = run.ends()
    except TimeoutError as error:
        print(f"{launcher}, {name}: {error}", flush=True)
        return False
    finally:
        for process in run.living():
            os.kill(process, signal.SIGKILL)
    saved = list((folder / "saved").glob("step-*"))
    right = len(run.lines) <= 2 and (name != "SIGTERM" or len(saved) == 1)
    text = f"ended after {seconds:.1f} s, {len(saved)} checkpoints, {len(run.lines)} lines"
    print(f"{launcher}, {name}: {text}: {right}", *run.lines, sep="\n  ", flush=True)
    return right


def main() -> int:
    """Run all, and print a line for each."""
    folder, wrong = Path(tempfile.mkdtemp(prefix="hosts-")), 0
    one = [sys.executable, "-m", "primepar", "train", "--ranks", "2", *SIZES, "--steps", str(STEPS)]
    log = folder / "one.jsonl"
    subprocess.run([*one, "--set", f"output.log={log}"], env=environment(), check=True, cwd=folder,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    for launcher in ("mpirun", "torchrun"):
        with hosts():
            run = HostsRun(folder / launcher, launcher, STEPS)
            run.ends(600)
            same = losses(run.log) == losses(log)
            print(f"{launcher}: losses of one host: {same}", flush=True)
            wrong += not same
        for name in FAULTS:
            with hosts():
                wrong += not ends_well(
                    folder / f"{launcher}-{name.replace(' ', '-')}", launcher, name
                )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
