"""What preflight answers of scripts that are known to be right or wrong, one line each.

    python -m benchmarks.preflight_scoreboard --seeded         # the scripts of benchmarks/seeded
    python -m benchmarks.preflight_scoreboard --seeded ring    # those with `ring` in their titles
    python -m benchmarks.preflight_scoreboard --public         # scripts of others, fetched by git

The seeded scripts are written for this purpose, in pairs of which one is right and one is broken.
Wanted: no right one refuted, no broken one proved, and each refutation with the marked lines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

SEEDED = Path(__file__).parent / "seeded"
_NOTES = ("such as a clip by", "were taken for different layers")
FILES = ("pairs.txt", "threads.txt", "everyday.txt")


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
                head = body.rstrip("\n") + "\n\n\n"
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


class PreflightAnswer(NamedTuple):
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
    def line(self) -> str:
        """One line of the table."""
        kind = "right" if self.script.right else "broken"
        false = "FALSE" if self.is_false else ""
        if self.verdict == "refuted" and not self.names_its_lines:
            false = "LINES"
        return f"{kind:7}{self.verdict:9}{false:6}{self.seconds:5.1f} s  {self.script.title}"


def answers(scripts: list[SeededScript]) -> Iterator[PreflightAnswer]:
    """Capture and judge each script, in this process."""
    from primepar.errors import CaptureError
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for script in scripts:
            Path("train.py").write_text(script.text)
            start = sum(os.times()[:4])
            try:
                recorded, recorder = capture_torch(Path("train.py"), [], script.ranks, 60.0)
                program = program_of(recorded, "train.py")
                report = verdict_of(program, recorded, "train.py", 60.0, recorder=recorder)
                why = "\n".join(report.lines("", seconds=False))
                yield PreflightAnswer(script, report.verdict, why, sum(os.times()[:4]) - start)
            except CaptureError as error:
                yield PreflightAnswer(script, "error", str(error), sum(os.times()[:4]) - start)


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


def public_lines() -> Iterator[str]:
    """Fetch the public scripts, and yield the verdict on each, or why there is none."""
    for repository, commit in dict.fromkeys(one[:2] for one in PUBLIC):
        with tempfile.TemporaryDirectory() as folder:
            why = fetched(repository, commit, Path(folder))
            if why:
                yield why
                continue
            for public in (one for one in PUBLIC if one[:2] == (repository, commit)):
                path = Path(folder) / public.script
                command = [sys.executable, "-m", "primepar", "preflight", "-n", str(public.ranks),
                           path.name, *public.arguments]  # fmt: skip
                done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
                lines = (done.stdout or done.stderr).splitlines()
                yield f"{repository} {public.script}: {lines[0] if lines else done.returncode}"


def main() -> None:
    """Print a line for each script, and how many verdicts there are of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeded", action="store_true", help="the scripts of benchmarks/seeded")
    parser.add_argument("--public", action="store_true", help="scripts of others, by git")
    parser.add_argument("--why", action="store_true", help="print the reports too")
    parser.add_argument("title", nargs="*", help="only those with one of these in their titles")
    asked = parser.parse_args()
    if asked.public:
        for line in public_lines():
            print(line, flush=True)
    if not asked.seeded:
        return
    scripts = list(seeded_scripts())
    if asked.title:
        scripts = [one for one in scripts if any(text in one.title for text in asked.title)]
    counts: Counter[tuple[bool, str]] = Counter()
    false = 0
    for answer in answers(scripts):
        print(answer.line, flush=True)
        if asked.why:
            print(answer.why)
        counts[answer.script.right, answer.verdict] += 1
        false += answer.is_false
    for right in (True, False):
        kinds = [f"{count} {verdict}" for (kind, verdict), count in counts.items() if kind == right]
        print(f"{'right' if right else 'broken'}: {', '.join(kinds)}")
    print(f"{false} false verdicts")
    sys.exit(bool(false))


if __name__ == "__main__":
    main()
