"""What does preflight answer of scripts that are known to be right or broken?

The scripts of `benchmarks/seeded` are written for this purpose, in pairs of which one is right and
one is broken. Wanted: no right one refuted, no broken one proved, and each refutation with the
marked lines. `--title ring` takes those with `ring` in their titles, `--public` scripts of others,
fetched by git at a commit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.bench import BenchRow, Case, Cells, Column, bench, cpu_seconds

SEEDED = Path(__file__).parent / "seeded"
_NOTES = ("such as a clip by", "were taken for different layers")
FILES = ("pairs.txt", "threads.txt", "everyday.txt", "methods.txt")


class PublicScript(NamedTuple):
    """A script of others, at a commit of its repository, and how it is started."""

    repository: str
    commit: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2


_EXAMPLES = "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"
PUBLIC = (
    PublicScript(*_EXAMPLES, "distributed/ddp/example.py"),
    PublicScript(*_EXAMPLES, "distributed/ddp-tutorial-series/multigpu_torchrun.py", ("2", "1")),
    PublicScript(*_EXAMPLES, "distributed/tensor_parallelism/tensor_parallel_example.py"),
    PublicScript(*_EXAMPLES, "distributed/tensor_parallelism/sequence_parallel_example.py"),
)


class SeededScript(NamedTuple):
    """A script, and whether it is right."""

    title: str
    right: bool
    ranks: int
    text: str
    head: int
    """Lines of the head, which all scripts share."""

    @property
    def marked(self) -> list[int]:
        """The lines that a refutation has to name."""
        lines = enumerate(self.text.splitlines(), 1)
        return [number for number, line in lines if line.endswith("# here")]


def seeded_scripts() -> Iterator[SeededScript]:
    """The scripts of all files: each section is one or two of them."""
    head = ""
    for file in FILES:
        _, *sections = ("\n" + (SEEDED / file).read_text()).split("\n=== ")
        for section in sections:
            first, _, body = section.partition("\n")
            if first == "head":
                head += body.rstrip("\n") + "\n\n\n"
                continue
            title, _, count = first.rpartition(", ")
            title, ranks = (title, int(count)) if count.isdecimal() else (first, 2)
            lines = body.splitlines()
            has = {sign for sign in "+-" if any(line.startswith(sign) for line in lines)}
            for right in (True, False) if has else (True,):
                sign, other = "+-" if right else "-+"
                kept = [line.removeprefix(sign) for line in lines if not line.startswith(other)]
                text = head + "\n".join(kept) + "\n"
                yield SeededScript(title, right, ranks, text, head.count("\n"))


class PreflightAnswer(BenchRow, frozen=True):
    """What preflight answered."""

    script: SeededScript
    verdict: str
    why: str
    seconds: float

    @property
    def is_false(self) -> bool:
        """Whether the verdict contradicts what is known."""
        if "; note" in self.script.title and self.verdict == "proved":  # with a note where broken
            return not (self.script.right or any(text in self.why for text in _NOTES))
        return self.verdict == ("refuted" if self.script.right else "proved")

    @property
    def names_its_lines(self) -> bool:
        """Whether the report has all lines that are marked."""
        return all(f"train.py:{number}" in self.why for number in self.script.marked)

    @property
    def code(self) -> int:
        return int(self.is_false)

    @property
    def cells(self) -> Cells:
        unnamed = self.verdict == "refuted" and not self.names_its_lines
        return {
            "script": self.script.title,
            "is": "right" if self.script.right else "broken",
            "verdict": self.verdict,
            "": "FALSE" if self.is_false else "LINES" if unnamed else "",
            "CPU s": f"{self.seconds:.1f}",
        }

    @classmethod
    def notes(cls, rows: Sequence[PreflightAnswer]) -> Iterator[str]:
        """How many verdicts there are of each kind."""
        for right in (True, False):
            counts = Counter(row.verdict for row in rows if row.script.right == right)
            kinds = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            yield f"{'right' if right else 'broken'}: {kinds}"
        yield f"{sum(row.is_false for row in rows)} false verdicts"


class PublicAnswer(BenchRow, frozen=True):
    """The first line of what preflight prints of a script of others."""

    script: Annotated[str, Column("script of others")]
    line: Annotated[str, Column("")]


def answer(script: SeededScript) -> PreflightAnswer:
    """Capture and judge a script, in this process."""
    from primepar.errors import CaptureError
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("train.py").write_text(script.text)
        start = cpu_seconds()
        try:
            recorded, recorder = capture_torch(Path("train.py"), [], script.ranks, 60.0)
            program = program_of(recorded, "train.py")
            report = verdict_of(program, recorded, "train.py", 60.0, recorder=recorder)
            verdict, why = str(report.verdict), "\n".join(report.lines("", seconds=False))
        except CaptureError as error:
            verdict, why = "error", str(error)
        return PreflightAnswer(script, verdict, why, cpu_seconds() - start)


def fetched(repository: str, commit: str, folder: Path) -> str:
    """Check a commit out of GitHub into a folder; return why it could not be done, or nothing."""
    address = f"https://github.com/{repository}"
    for command in (
        ("init", "-q"), ("fetch", "-q", "--depth", "1", address, commit),
        ("checkout", "-q", "FETCH_HEAD"),
    ):  # fmt: skip
        done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:]
            return f"{repository} at {commit[:8]}: not fetched: {' '.join(reason)}"
    return ""


def public_answers(repository: str, commit: str) -> Iterator[PublicAnswer]:
    """Fetch the public scripts of a commit, and yield the verdict on each, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        why = fetched(repository, commit, Path(folder))
        if why:
            yield PublicAnswer(repository, why)
            return
        for public in (one for one in PUBLIC if one[:2] == (repository, commit)):
            path = Path(folder) / public.script
            command = [sys.executable, "-m", "primepar", "preflight", "-n", str(public.ranks),
                       path.name, *public.arguments]  # fmt: skip
            done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
            lines = (done.stdout or done.stderr).splitlines()
            yield PublicAnswer(f"{repository} {public.script}", [*lines, str(done.returncode)][0])


def preflight_scoreboard(title: str = "", public: bool = False) -> Iterator[Case]:
    if public:
        for repository, commit in dict.fromkeys(one[:2] for one in PUBLIC):
            yield repository, partial(public_answers, repository, commit)
        return
    for script in seeded_scripts():
        if title in script.title:
            yield f"{script.title}, {script.right}", partial(answer, script)


if __name__ == "__main__":
    bench(preflight_scoreboard)
