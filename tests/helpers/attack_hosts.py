"""`python tests/helpers/attack_hosts.py [--mpich BIN]`: runs on two hosts of `hosts.py`.

mpirun starts the processes by a host file, torchrun by a command on each host. The losses must be
those of one host, bit for bit, and so must those of a run that one host resumes. A host that is
lost, a launcher that is killed and a request to stop must end the run on both, and hosts with other
files must not train. It needs root, and Linux with `ip`. Ends with 1 unless all holds.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fault_launchers import environment
from faulty_runs import SIZES, TIMEOUT, wait_until
from hosts import ENDING, PORT, HostsRun, on, set_link, two_hosts

from primepar.distributed.training.log import StepRow, read_log

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
