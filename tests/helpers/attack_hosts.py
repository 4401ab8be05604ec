"""`python tests/helpers/attack_hosts.py [--mpich BIN]`: training runs on two hosts, with faults.

The hosts are network namespaces of this machine, each with a name, an address and a link to the
other one. mpirun starts the processes by a host file, torchrun by a command on each host. The
losses must be those of one host, bit for bit, and so must those of a run that one host resumes. A
host that is lost, a launcher that is killed and a request to stop must end the run on both, and
hosts with other files must not train. It needs root, and Linux with `ip`. Ends with 1 unless all
holds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from primepar.distributed.training.log import StepRow, read_log

TIMEOUT = 10.0
SIZES = (
    "--plan", "K2", "--set", "training.batch=2", "--set", "model.layers=1", "--set",
    "model.hidden=16", "--set", "model.heads=2", "--set", "model.context=8",
    "--set", "checks.verify=false", "--set", "evaluation.every=0", "--set", "training.device=cpu",
)  # fmt: skip
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


def environment() -> dict[str, str]:
    """Ours, with the packages of this Python also for another one."""
    packages = [str(Path(__file__).resolve().parents[2]), str(Path(torch.__file__).parent.parent)]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(packages)}


def text_of(path: Path) -> str:
    """The content of a file in /proc; empty if its process has gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def wait_until(done: Callable[[], bool], what: str, seconds: float = 240) -> None:
    """Poll. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come")
        time.sleep(0.02)


STEPS, MORE, MANY = 20, 30, 100_000
START = 120.0
"""Seconds that a start may take, on a machine with other work."""
PLACE = r"in step \d+ at .*"
ONE_LINE = {"mpirun": 1, "MPICH": 1, "torchrun": 1}


@dataclass(frozen=True)
class Case:
    """A fault, and how the run must end: lines on stderr, all of which match, and checkpoints.

    `act` comes after the first steps; without it the run must end by itself, before the first one.
    `differs` is a file or a folder of the run that is another one on the second host.
    """

    name: str
    act: Callable[[HostsRun], None] | None = None
    message: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    saves: bool = False
    differs: str = ""
    arguments: str = ""
    per_host: int = 1
    own_address: str = ""
    around: Callable[[], AbstractContextManager[None]] = nullcontext


def to_first(number: signal.Signals) -> Callable[[HostsRun], None]:
    """Send a signal to the first launcher: the shell, `ip` and `unshare` have become it."""
    return lambda run: run.launchers[0].send_signal(number)


def kill_on_second(run: HostsRun) -> None:
    """Kill what started the rank of the second host: prted, Hydra's proxy, or torchrun."""
    os.kill(int(Path(f"/proc/{rank_on_second(run)}/stat").read_text().split()[3]), signal.SIGKILL)


def rank_on_second(run: HostsRun) -> int:
    """The process of a rank on the second host."""
    ranks = [
        process
        for process in run.living()
        if network_of(process) == network_at("hostb")
        and "libtorch" in Path(f"/proc/{process}/maps").read_text()
        and "torchrun\0" not in Path(f"/proc/{process}/cmdline").read_text()
    ]
    return ranks[0]


def network_of(process: int) -> int:
    """The network namespace of a process."""
    return Path(f"/proc/{process}/ns/net").stat().st_ino


def network_at(host: str) -> int:
    """The network namespace of a host."""
    return Path("/run/netns", host).stat().st_ino


def stop_on_second(run: HostsRun) -> None:
    """Stop the rank of the second host."""
    os.kill(rank_on_second(run), signal.SIGSTOP)


def cut(run: HostsRun) -> None:
    """Cut the link."""
    set_link("down")


@contextmanager
def port_in_use() -> Iterator[None]:
    """Another process on the first host listens where the ranks are to meet."""
    program = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(1e6)"
    taken = subprocess.Popen(on("hosta", f'exec {sys.executable} -c "{program}"'))
    try:
        wait_until(lambda: listens("hosta"), "the other process")
        yield
    finally:
        taken.kill()
        taken.wait()


def listens(host: str) -> bool:
    """Whether a process of the host takes connections at the port."""
    words = ["ip", "netns", "exec", host, "cat", "/proc/net/tcp"]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return f":{PORT:04X}" in shown


SILENT = rf"rank \d+: expected .* within 10 s, got .*{PLACE}"
CASES = (
    Case("SIGUSR1", to_first(signal.SIGUSR1), "", {"mpirun": 0}, saves=True),
    Case("SIGTERM", to_first(signal.SIGTERM), "", {"MPICH": 0, "torchrun": 0}, saves=True),
    Case("the first launcher is killed", to_first(signal.SIGKILL)),
    Case("the launcher of the second host is killed", kill_on_second),
    Case("a rank is stopped", stop_on_second, SILENT, ONE_LINE, per_host=2),
    # mpirun itself then waits until TCP gives the other host up, about a quarter of an hour.
    Case("the link is cut", cut, SILENT, {"torchrun": 2}),
    Case("the link is cut, four ranks", cut, SILENT, {"torchrun": 2}, per_host=2),
    Case("another text", None, "expected what rank 0 has on every rank, got .*text .* on rank 1",
         ONE_LINE, differs="text",
         arguments="--set training.data=FOLDER/text"),
    Case("another folder of checkpoints", None, "saved: expected", ONE_LINE, differs="saved"),
    Case("an address in use", None, f"port {PORT}, got an address that is in use",
         {"by hand": 1}, around=port_in_use),
    Case("an address of each host alone", None, "expected the name hosta to stand for an address",
         {"by hand": 1, "torchrun": 1, "mpirun": 1}, own_address="127.0.1.1"),
)  # fmt: skip


def losses(log: Path) -> list[float]:
    """The loss of each step."""
    return [row.loss for row in read_log(log) if isinstance(row, StepRow)]


class Attack:
    """All runs, in one folder."""

    def __init__(self, mpich: Path | None) -> None:
        self.folder, self.mpich = Path(tempfile.mkdtemp(prefix="hosts-")), mpich
        self.unbroken = losses(self.on_one_host("one.jsonl", MORE))

    def on_one_host(self, log: str, steps: int, *others: str) -> Path:
        """Run on this machine; its log."""
        words = [sys.executable, "-m", "primepar", "train", "--ranks", "2", *SIZES, "--steps",
                 str(steps), "--set", f"output.log={self.folder / log}", *others]  # fmt: skip
        subprocess.run(words, env=environment(), check=True, stdout=subprocess.DEVNULL)
        return self.folder / log

    def trains(self, launcher: str) -> bool:
        """Whether a run has the losses of one host, and one host resumes it with them."""
        (self.folder / launcher).mkdir()
        with two_hosts():
            run = HostsRun(self.folder / launcher, launcher, self.mpich, f"--steps {STEPS}")
            try:
                run.ends(START)
            finally:
                run.close()
        same = losses(run.log) == self.unbroken[:STEPS]
        resumed = self.on_one_host(
            f"{launcher}.jsonl", MORE, "--checkpoint", str(run.saved), "--resume"
        )
        right = same and losses(resumed) == self.unbroken[STEPS:]
        print(f"{launcher}: losses of one host, and resumed there: {right}", flush=True)
        return right

    def ends_well(self, launcher: str, case: Case) -> bool:
        """Whether a run with a fault ends in time, as the case states."""
        folder = self.folder / f"{launcher}-{case.name}".replace(" ", "-").replace(",", "")
        with two_hosts(case.own_address), case.around():
            run = self.started(folder, launcher, case)
            try:
                if case.act is not None:
                    wait_until(lambda: run.rows > 5, "the first steps", START)
                    case.act(run)
                seconds = run.ends(TIMEOUT + ENDING + (0 if case.act else START))
            except TimeoutError as error:
                names = [Path(f"/proc/{process}/comm").read_text() for process in run.living()]
                print(f"{launcher}, {case.name}: {error}: {names}", *run.lines, flush=True)
                return False
            finally:
                run.close()
        saved = len([*run.saved.glob("step-*")])
        right = saved == int(case.saves) and self.lines_are_right(run.lines, launcher, case)
        text = f"ended after {seconds:.1f} s, {saved} checkpoints, {len(run.lines)} lines"
        print(f"{launcher}, {case.name}: {text}: {right}", *run.lines, sep="\n  ", flush=True)
        return right

    def started(self, folder: Path, launcher: str, case: Case) -> HostsRun:
        """Start the run of a case."""
        for letter, part in (("a", folder), ("b", folder / "second")):
            (part / "saved").mkdir(parents=True)
            (part / "text").write_text(letter * 5000)
        mounts = {folder / case.differs: folder / "second" / case.differs} if case.differs else {}
        arguments = f"--steps {MANY} {case.arguments.replace('FOLDER', str(folder))}"
        return HostsRun(folder, launcher, self.mpich, arguments, case.per_host, mounts)

    @staticmethod
    def lines_are_right(lines: list[str], launcher: str, case: Case) -> bool:
        """Whether there are as many lines as the case states, all with its message."""
        if not case.lines:
            return len(lines) <= 1
        matching = [line for line in lines if re.search(case.message, line)]
        return len(matching) == len(lines) == case.lines[launcher]


def main() -> int:
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpich", type=Path, help="the bin folder of an MPICH and its python")
    parser.add_argument("--only", default="", help="part of the name of launcher and case")
    given = parser.parse_args()
    attack, wrong = Attack(given.mpich), 0
    for launcher in ("mpirun", "torchrun", "MPICH", "by hand"):
        if launcher == "MPICH" and given.mpich is None:
            continue
        if launcher != "by hand" and given.only in f"{launcher}, trains":
            wrong += not attack.trains(launcher)
        for case in CASES:
            asked = launcher in case.lines or (launcher != "by hand" and not case.lines)
            if asked and given.only in f"{launcher}, {case.name}":
                wrong += not attack.ends_well(launcher, case)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
