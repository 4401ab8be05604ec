"""What does preflight answer of scripts that are known to be right or broken?

The scripts of `benchmarks/seeded` are written for this purpose, in pairs of which one is right and
one is broken. Wanted: no right one refuted, no broken one proved, and each refutation with the
marked lines. `--title ring,mesh` takes those with `ring` or `mesh` in their titles.

`--public` takes the scripts of others in `public/scripts.toml`, fetched by git at a commit, and
`--gloo` runs each too. `--mirror FOLDER` takes repositories of a disk: FOLDER/OWNER+NAME/repo.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.bench import BenchRow, Case, Cells, Column, bench, cpu_seconds
from benchmarks.public_scripts import (
    PublicScript,
    fetched,
    import_packages,
    judged,
    missing,
    prepared,
    public_scripts,
    run_on_gloo,
)

SEEDED = Path(__file__).parent / "seeded"
FILES = ("pairs.txt", "threads.txt", "everyday.txt", "methods.txt")


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
    """What preflight answered of a script of others, and what a real run did."""

    script: Annotated[str, Column("script of others")]
    ranks: Annotated[int, Column("ranks")]
    patched: Annotated[int, Column("lines patched")]
    verdict: Annotated[str, Column("verdict")]
    forks: Annotated[int, Column("forks")]
    """Decisions that were taken the other way."""
    seconds: Annotated[float, Column("CPU s", ".1f")]
    gloo: Annotated[str, Column("on gloo")]
    why: Annotated[str, Column("", ".200")]
    """Where it is not proved: the finding, or the reason why it is not captured."""
    broken: str = ""

    @property
    def is_false(self) -> bool:
        """Whether the verdict contradicts the run, or what is known of the script."""
        fails = self.gloo == "hangs" or "raises" in self.gloo
        if self.verdict == "proved":
            return bool(self.broken) or fails
        return self.verdict == "refuted" and not self.broken and not fails

    @property
    def code(self) -> int:
        return int(self.is_false)

    @classmethod
    def notes(cls, rows: Sequence[PublicAnswer]) -> Iterator[str]:
        """How many verdicts there are of each kind."""
        counts = Counter(row.verdict for row in rows)
        kinds = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        captured = len(rows) - counts["error"]
        yield f"{captured} of {len(rows)} captured: {kinds}"
        yield f"{sum(row.forks for row in rows)} decisions taken the other way"
        for verdict in ("unknown", "error"):
            gaps = Counter(gap_of(row.why) for row in rows if row.verdict == verdict)
            yield from (f"{verdict}: {count} {gap}" for gap, count in gaps.most_common())
        yield f"{sum(row.is_false for row in rows)} false verdicts"


_GAPS = {
    " to end within ": "end too late",
    " to run to its end": "raise before the first call",
    "a library makes a plain number": "decide by a number that a library made plain",
    "only equal data at the start": "have replicas for which only equal data speak",
    "decisions are left": "have more decisions than are taken in the time",
    "needs ": "lack a package",
}
"""What a reason has in it -> the kind of gap."""


def gap_of(why: str) -> str:
    """The kind of gap that a reason names, or the property that is not decided."""
    kinds = (kind for text, kind in _GAPS.items() if text in why)
    return next(kinds, f"by {why.partition(':')[0]}")


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


def public_answer(row: PublicScript, commit: str, mirror: str, gloo: bool) -> PublicAnswer:
    """Fetch a script of others, judge it, and run it."""
    start, ran = cpu_seconds(), ""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        why = missing(row) or fetched(row.repository, commit, root, mirror) or prepared(row, root)
        report = ["error", why]
        if not why:
            start = cpu_seconds()
            report = judged(row, root)
        seconds = cpu_seconds() - start
        if gloo and not why:
            ran = row.gloo or run_on_gloo(row, root)
    verdict, why, *lines = report
    taken = re.search(r"(\d+) decisions? taken the other way", "\n".join(lines))
    forks = int(taken[1]) if taken else 0
    why = "" if verdict == "proved" else row.broken or row.reason or why
    patched = row.lines_patched
    return PublicAnswer(row.name, row.ranks, patched, verdict, forks, seconds, ran, why, row.broken)


def preflight_scoreboard(
    title: str = "", public: bool = False, mirror: str = "", gloo: bool = False
) -> Iterator[Case]:
    def is_asked(name: str) -> bool:
        return any(part in name for part in title.split(","))

    if public:
        commits, rows = public_scripts()
        rows = [row for row in rows if is_asked(row.name)]
        import_packages(rows)
        for row in rows:
            yield row.name, partial(public_answer, row, commits[row.repository], mirror, gloo)
        return
    for script in seeded_scripts():
        if is_asked(script.title):
            yield f"{script.title}, {script.right}", partial(answer, script)


if __name__ == "__main__":
    bench(preflight_scoreboard)
