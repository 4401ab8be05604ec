"""`primepar preflight`: prove the program that a script, or a file of another tool, will run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.commands.options import JsonOption, json_text
from primepar.commands.verify import EXIT_CODES, LONGEST, styled
from primepar.errors import ConfigError, TargetError

if TYPE_CHECKING:
    from primepar.preflight.recording import RankRecording
    from primepar.verify.report import Report

MOST_RANKS = 4096


def preflight(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.PY", help="A script as torchrun would start it.", show_default=False
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="The script's arguments.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", metavar="N", help="Ranks to run it on.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.JSON", help="Write the program.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option(metavar="S", help="Seconds that each rank may run.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds in all for the proof. What is left then is unknown.")
    ] = 60.0,
    json: JsonOption = False,
) -> None:
    """Prove the program that you are about to launch: it ends, and all ranks agree.

    The script runs once per rank, unmodified, on CPU and without any communication. What each rank
    would do is recorded with its line, and proved. Options come before the script, and what follows
    the script is its own. Ends with 0 if all is proved, 1 if something is refuted, 3 if unknown.
    """
    count = _ranks(target, ranks)
    for option, seconds in (("--limit", limit), ("--timeout", timeout)):
        if not 0.001 <= seconds <= LONGEST:
            raise ConfigError(
                f"{option}: expected seconds from 0.001 to {LONGEST}, got {seconds:g}"
            )
    if output is not None and output.suffix != ".json":
        raise TargetError(f"--output: expected a name that ends with .json, got {output}")
    script = Path(target)
    if not script.is_file():
        raise TargetError(f"{target}: expected a Python script, found none: check the path")
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    recorded = capture_torch(script, arguments or [], count, limit)
    report = verdict_of(recorded, target, timeout)
    if json:
        typer.echo(json_text(_as_json(report, recorded)), nl=False)
    else:
        typer.echo("\n".join(_lines(report, recorded)))
    if output is not None:
        from primepar.schedule import save_program

        save_program(program_of(recorded, target), output)
        typer.echo(f"wrote {output}", err=True)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _ranks(target: str, ranks: int | None) -> int:
    if ranks is None:
        raise ConfigError(
            f"--ranks: expected the number of ranks of {target}, got none: write -n 4 before it"
        )
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks: expected a number from 1 to {MOST_RANKS}, got {ranks}")
    return ranks


def _lines(report: Report, recorded: list[RankRecording]) -> Iterator[str]:
    yield from report.lines(
        f"on {len(recorded)} ranks", seconds=True, paint=lambda text, verdict: styled(verdict)
    )
    calls = sum(len(rank.instructions) for rank in recorded)
    yield f"  {calls} instructions of {len(recorded)} ranks were captured"


def _as_json(report: Report, recorded: list[RankRecording]) -> dict[str, object]:
    return {
        "target": report.target,
        "verdict": report.verdict,
        "ranks": len(recorded),
        "properties": [
            {
                "name": result.name,
                "verdict": result.verdict,
                "seconds": round(result.seconds, 6),
                "counterexample": result.counterexample,
                **({"reason": result.reason} if result.reason else {}),
                **({"details": result.details} if result.details else {}),
            }
            for result in report.properties
        ],
    }
