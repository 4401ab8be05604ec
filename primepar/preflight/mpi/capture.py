"""Captures an mpi4py script in every way in which its receives from any rank may match.

A script whose branches depend on who sent first is another program in each run. So each run is
decided as the program that it is, with the messages that its receives took; other runs take the
others. Example: a master that takes results from any of two workers is run twice.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from primepar.errors import CaptureError
from primepar.preflight.capture.source_lines import line_of
from primepar.preflight.mpi.rank_side import Ended, NotModelledError, RankSide
from primepar.preflight.mpi.scheduler import MpiRun, MpiScheduler
from primepar.preflight.mpi.stand_in import install
from primepar.preflight.verdict import with_gaps
from primepar.schedule.program import Program
from primepar.schedule.program_file import instruction_line
from primepar.verify.program import verify_program
from primepar.verify.report import PropertyResult, Report

MOST_RUNS = 200
"""Runs of a script; beyond, the verdict is unknown."""
MOST_SHOWN = 8
"""Waiting ranks that a counterexample lists."""
EVERY_MATCHING = "matchings"
"""The property that all matchings were run."""


def preflight_mpi(
    script: Path, arguments: Sequence[str], ranks: int, limit: float, timeout: float
) -> tuple[Program, Report]:
    """Return the program of an mpi4py script, and its verdict: that of the first run that fails.

    Raises `CaptureError` where the script raises, does not end within `limit` seconds, or does not
    communicate.
    """
    first: tuple[Program, Report] | None = None
    runs = 0
    for run in all_runs(partial(run_script, script, arguments), str(script), ranks, limit):
        runs += 1
        program, report = decide(run, str(script), timeout)
        if report.verdict != "proved" or runs > MOST_RUNS:
            break
        first = first or (program, report)
    if first is None or report.verdict != "proved":
        return program, report
    if runs > MOST_RUNS:
        reason = f"its receives from any rank match in more than {MOST_RUNS} ways"
        unknown = PropertyResult(EVERY_MATCHING, "unknown", 0.0, reason=reason)
        return first[0], Report.of(str(script), (*first[1].properties, unknown))
    return first


def all_runs(
    body: Callable[[RankSide], None], script: str, ranks: int, limit: float
) -> Iterator[MpiRun]:
    """Yield a run for each sequence of decisions on what receives from any rank take."""
    left: list[list[int]] = [[]]
    while left:
        decisions = left.pop()
        run = MpiScheduler(script, body, ranks, limit).result(decisions)
        yield run
        for place in range(len(decisions), len(run.choices)):
            before = decisions + [0] * (place - len(decisions))
            left += [[*before, choice] for choice in range(1, run.choices[place])]


def decide(run: MpiRun, script: str, timeout: float) -> tuple[Program, Report]:
    """Return the program of a run, and its verdict for the messages that its receives took."""
    if not any(rank.instructions or rank.gaps for rank in run.recordings):
        raise CaptureError(
            f"{script}: expected a script that communicates through mpi4py, got no call on any of "
            f"{len(run.recordings)} ranks: call it at the top level"
        )
    lists = tuple(tuple(rank.instructions) for rank in run.recordings)
    program = Program("primepar-program", 1, len(lists), lists, rules="mpi")
    report = verify_program(program, script, timeout=timeout, taken=run.taken)
    results = [_with_waiting(result, run) for result in report.properties]
    return program, with_gaps(replace(report, properties=tuple(results)), run.recordings)


def _with_waiting(result: PropertyResult, run: MpiRun) -> PropertyResult:
    """The counterexample with the places where the ranks of the run wait, if it stopped there."""
    if not run.waiting or "none that is left" not in (result.counterexample or ""):
        return result
    places = []
    for rank in run.waiting[:MOST_SHOWN]:
        nodes = run.recordings[rank].instructions
        line = f" at {nodes[-1].source}" if nodes[-1].source else ""
        text = f"instruction {len(nodes) - 1} ({instruction_line(nodes[-1])}){line}"
        places.append(f"  the run stops with rank {rank} in {text}")
    return replace(result, counterexample="\n".join([str(result.counterexample), *places]))


def run_script(script: Path, arguments: Sequence[str], side: RankSide) -> None:
    """Run a script on one rank; what it prints is not shown."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    install(side)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except NotModelledError:
        return
    except SystemExit as end:
        if end.code not in (None, 0):
            side.end(_raised(end))
    except Exception as error:
        side.end(_raised(error))


def _raised(error: BaseException) -> Ended:
    """The exception as one line, and the innermost line of the user's files."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    text = " ".join(str(error).split())
    return Ended(raised=f"{type(error).__name__}: {text}", source=line_of(frames[-1]))
