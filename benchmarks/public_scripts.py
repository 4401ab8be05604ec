"""Scripts of others: fetched at a commit, set small, judged by preflight, and run on gloo.

`public/scripts.toml` has one row for each: the repository, the script, its arguments and ranks,
what is replaced in its text (a patch), and files that it reads. Texts of others are not kept here.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

PUBLIC = Path(__file__).parent / "public"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": f"{tempfile.gettempdir()}/public-scripts",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
"""The environment of all runs: no network, one thread."""
PROOF = 120.0
"""Seconds of a proof, in which decisions are taken the other way."""
LIMIT = 300.0
"""Seconds of a run on gloo; one that takes longer is taken to hang."""


class PublicScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script of others, and how it is started."""

    repository: str
    script: str
    arguments: str = ""
    ranks: int = 2
    title: str = ""
    """Distinguishes the rows of one script."""
    packages: tuple[str, ...] = ()
    """Packages that it imports, besides torch and NumPy."""
    folder: str = ""
    """Where it is started, from the root of its repository; empty for where it is."""
    path: tuple[str, ...] = ()
    """Folders of its repository that Python imports from."""
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    """Files that are written into its folder: a name, and a text, or `= NAME` of a shared one."""
    patch: tuple[tuple[str, str, str], ...] = ()
    """A file, what is there, and what is put in its place."""
    prepare: str = ""
    """Arguments of `public/tiny.py`, which makes models and data in its folder."""
    limit: int = 300
    spawns: bool = False
    """Whether it starts its ranks itself."""
    gloo: str = ""
    """Why gloo cannot run it, where that is no fault of the script."""
    broken: str = ""
    """What is wrong with it, found by reading it: a refutation is right then."""
    reason: str = ""
    """Why it is not captured, or not proved."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.repository} {self.script}" + (f", {self.title}" if self.title else "")

    @property
    def lines_patched(self) -> int:
        """Lines of its repository that are replaced."""
        return sum(max(old.count("\n"), new.count("\n")) + 1 for _, old, new in self.patch)


def public_scripts() -> tuple[dict[str, str], list[PublicScript]]:
    """Each repository's commit, and all rows."""
    text = tomllib.loads((PUBLIC / "scripts.toml").read_text(encoding="utf-8"))
    rows: list[PublicScript] = msgspec.convert(text["script"], list[PublicScript])
    return text["commits"], rows


def import_packages(rows: Sequence[PublicScript]) -> None:
    """Import what rows need, once, before processes are forked."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401

    os.environ |= OFFLINE
    for name in dict.fromkeys(package for row in rows for package in row.packages):
        with suppress(ImportError):
            import_module(name)


def missing(row: PublicScript) -> str:
    """What it needs that is not installed."""
    names = [name for name in row.packages if find_spec(name) is None]
    return f"needs {', '.join(names)}" if names else ""


def fetched(repository: str, commit: str, folder: Path, mirror: str = "") -> str:
    """Check a commit out into a folder; return why it could not be done, or nothing.

    It is fetched of GitHub, or taken of a local copy: the git folder MIRROR/OWNER+NAME/repo.
    Files that a copy lacks, as large ones may be, are left out.
    """
    git = ["git", f"--git-dir={folder}/.git", f"--work-tree={folder}"]
    if not mirror:
        address = f"https://github.com/{repository}"
        commands = [
            ["git", "init", "-q", str(folder)],
            [*git, "fetch", "-q", "--depth", "1", address, commit],
        ]
    else:
        git[1] = f"--git-dir={mirror}/{repository.replace('/', '+')}/repo"
        commands = []
    environment = os.environ | {"GIT_INDEX_FILE": f"{folder}/.index"}
    for command in [*commands, [*git, "read-tree", commit]]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:]
            return f"{repository} at {commit[:8]}: not fetched: {' '.join(reason)}"
    subprocess.run([*git, "checkout-index", "-a", "-q", "-f"], env=environment, capture_output=True)
    return ""


def prepared(row: PublicScript, root: Path) -> str:
    """Patch a checkout, and write a row's files; return why it could not be done, or nothing."""
    for name, old, new in row.patch:
        file = root / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if old not in text:
            return f"the patch of {name} does not apply: no {old!r}"
        file.write_text(text.replace(old, new), encoding="utf-8")
    place = started_in(row, root)
    for name, text in row.files.items():
        if text.startswith("= "):
            text = (PUBLIC / text[2:]).read_text(encoding="utf-8")
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    if row.prepare:
        command = [sys.executable, str(PUBLIC / "tiny.py"), *row.prepare.split()]
        environment = os.environ | environment_of(row, root)
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True
        )  # fmt: skip
        if done.returncode:
            return f"{row.prepare}: {done.stderr.strip().splitlines()[-1]}"
    return ""


def started_in(row: PublicScript, root: Path) -> Path:
    """The folder in which a script is started."""
    return root / (row.folder or Path(row.script).parent)


def environment_of(row: PublicScript, root: Path) -> dict[str, str]:
    """What a run finds in its environment: no network."""
    return OFFLINE | {
        name: text.replace("{root}", str(root)) for name, text in row.environment.items()
    }


class Forked(NamedTuple):
    """A process that is forked of this one, which has imported torch already."""

    process: int
    answer: int
    output: Path

    @classmethod
    def start(
        cls, row: PublicScript, root: Path, name: str, environment: dict[str, str],
        body: Callable[[str], bytes],
    ) -> Forked:  # fmt: skip
        """Run `body` of the script's path, where the script is started."""
        output, (read, write) = root / f".{name}", os.pipe()
        process = os.fork()
        if process:
            os.close(write)
            return cls(process, read, output)
        code = 1
        with output.open("w") as file:
            try:
                os.setsid()
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                os.environ |= environment_of(row, root) | environment
                folders = [str(root / folder) for folder in row.path]
                os.environ["PYTHONPATH"] = os.pathsep.join(folders)
                sys.path[:0] = folders
                os.chdir(started_in(row, root))
                script = os.path.relpath(root / row.script)
                os.write(write, body(script))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        process, status = os.waitpid(self.process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if process else None

    def kill(self) -> None:
        """End it, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)


def judged(row: PublicScript, root: Path) -> list[str]:
    """The verdict of preflight, why it is no proof, and its report.

    The verdict is `error` where the script could not be captured.
    """

    def body(script: str) -> bytes:
        from primepar.errors import PrimeParError
        from primepar.preflight.capture.torch_capture import capture_torch
        from primepar.preflight.recording import program_of
        from primepar.preflight.verdict import verdict_of

        limit = float(row.limit)
        try:
            recorded, recorder = capture_torch(
                Path(script), row.arguments.split(), row.ranks, limit
            )
            program = program_of(recorded, script)
            report = verdict_of(program, recorded, script, PROOF, recorder=recorder)
        except PrimeParError as error:
            return msgspec.json.encode(["error", str(error)])
        wrong = [one for one in report.properties if one.verdict in ("refuted", "unknown")]
        reasons = [f"{one.name}: {one.counterexample or one.reason}" for one in wrong]
        why = reasons[0].splitlines()[0] if reasons else ""
        return msgspec.json.encode([str(report.verdict), why, *report.lines("", seconds=True)])

    forked = Forked.start(row, root, "preflight", {}, body)
    end, answer = time.monotonic() + 4 * row.limit, b""
    while time.monotonic() < end and select.select([forked.answer], [], [], 5):
        part = os.read(forked.answer, 1 << 16)
        answer += part
        if not part:
            break
    forked.kill()
    os.waitpid(forked.process, 0)
    if not answer:
        lines = forked.output.read_text(errors="replace").splitlines()
        return ["error", *lines[-1:]]
    report: list[str] = msgspec.json.decode(answer)
    return report


def run_on_gloo(row: PublicScript, root: Path) -> str:
    """What a real run on gloo does: `ends`, `hangs`, or what the first rank that fails raises."""

    def body(script: str) -> bytes:
        from primepar.preflight.capture.torch_script import StandInPackages

        runpy.run_path(str(PUBLIC / "gloo/sitecustomize.py"))
        sys.argv = [script, *row.arguments.split()]
        sys.path[:0] = [str(Path(script).parent.resolve())]
        sys.meta_path.append(StandInPackages(lambda _: None))
        runpy.run_path(str(Path(script).resolve()), run_name="__main__")
        return b"ends"

    environment = {
        "PUBLIC_SCRIPT_ON_GLOO": str(row.ranks),
        "TORCHDYNAMO_DISABLE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + time.monotonic_ns() % 20000),
        "WORLD_SIZE": str(row.ranks),
        "LOCAL_WORLD_SIZE": str(row.ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    alone = row.ranks
    if row.spawns:
        alone = 1
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del environment[name]
        row = msgspec.structs.replace(row, path=(*row.path, str(PUBLIC / "gloo")))
    ranks = [
        Forked.start(
            row, root, f"rank{rank}", environment | (
                {} if row.spawns else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ), body,
        )
        for rank in range(alone)
    ]  # fmt: skip
    end, codes = time.monotonic() + LIMIT, dict[int, int]()
    failed: list[int] = []
    while time.monotonic() < end and len(codes) < alone:
        for rank, forked in enumerate(ranks):
            if rank not in codes and (code := forked.ended()) is not None:
                codes[rank] = code
                if code:
                    failed.append(rank)
                    end = min(end, time.monotonic() + 5)
        time.sleep(0.1)
    for rank, forked in enumerate(ranks):
        if rank not in codes:
            forked.kill()
            os.waitpid(forked.process, 0)
    if failed:
        return f"rank {failed[0]} raises {_raised(ranks[failed[0]].output)}"
    return "ends" if len(codes) == alone else "hangs"


def _raised(output: Path) -> str:
    """The line of an exception in what a rank printed."""
    lines = output.read_text(errors="replace").strip().splitlines() or [""]
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return (errors or lines)[-1][:160]
