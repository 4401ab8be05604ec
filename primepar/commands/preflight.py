"""`primepar preflight`: prove the program that a script, or a file of another tool, will run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from primepar.commands.counterexamples import write_picture
from primepar.commands.options import JsonOption, file_option, json_text
from primepar.commands.verify import EXIT_CODES, LONGEST, paint, report_json
from primepar.errors import ConfigError, TargetError
from primepar.files import check_ending, write_text
from primepar.schedule import Program, load_program, save_program
from primepar.schedule.deadline import TIMEOUT
from primepar.schedule.transport import Order, Transport

if TYPE_CHECKING:
    from primepar.preflight.decisions import ScriptRecorder
    from primepar.preflight.recording import RankRecording
    from primepar.verify.report import Report

MOST_RANKS = 4096


def preflight(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A script as torchrun starts it, program.json, or a file of another tool.",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="The script's arguments.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", metavar="N", help="Ranks of a script.", show_default=False),
    ] = None,
    limit: Annotated[
        float, typer.Option(metavar="S", help="Seconds that each rank of a script may run.")
    ] = 60.0,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cuda: each rank finds a pretended GPU; or cpu.")
    ] = "cuda",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Compute no tensor of more than 65,536 elements.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds in all for the proof. What is left then is unknown.")
    ] = TIMEOUT,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="free, or of NCCL: communicator, peer, queue.")
    ] = "free",
    slots: Annotated[
        str, typer.Option(metavar="K", help="Sends that a receiver may be behind, or any.")
    ] = "0",
    output: Annotated[
        Path | None, file_option("Write the program.", "--output", "-o", metavar="OUT.JSON")
    ] = None,
    picture: Annotated[
        Path | None, file_option("Draw the counterexamples.", "--picture", metavar="OUT.SVG")
    ] = None,
    repaired: Annotated[
        Path | None,
        file_option(
            "Find the fewest moves that make it pass, and write it.", "--repair", metavar="OUT.JSON"
        ),
    ] = None,
    sarif: Annotated[
        Path | None,
        file_option("Write the findings for code scanning.", "--sarif", metavar="OUT.SARIF"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Prove the program that you are about to launch: it ends, and all ranks agree.

    A script runs once per rank, unmodified, on CPU and without any communication. What each rank
    would do is recorded with its line, and proved. Options come before the script, and what follows
    the script is its own. Ends with 0 if all is proved, 1 if something is refuted, 3 if unknown.
    In a workflow of GitHub each finding is annotated too.
    """
    _check(limit, timeout, {"--output": output, "--picture": picture, "--repair": repaired,
                            "--sarif": sarif})  # fmt: skip
    transport = _transport(order, slots)
    if device not in ("cuda", "cpu"):
        raise ConfigError(f"--device: expected cuda or cpu, got {device!r}")
    from primepar.preflight.recording import all_pretended
    from primepar.preflight.report import findings
    from primepar.preflight.verdict import verdict_of

    program, recorded, recorder = _program(
        target, arguments or [], ranks, limit, device == "cuda", shrink
    )
    uncomputed = next((one.uncomputed for one in recorded if one.uncomputed), "")
    pretended = all_pretended(recorded)
    report = verdict_of(program, recorded, target, timeout, transport, recorder)
    if json:
        more = {"ranks": program.ranks, "pretended": pretended, "uncomputed": uncomputed}
        typer.echo(json_text(report_json(report) | more), nl=False)
    else:
        typer.echo("\n".join(_lines(report, program, transport)))
        if pretended:
            asked = ", ".join(f"{name} at {source}" for name, source in pretended.items())
            typer.echo(f"  a GPU is pretended, computed on the CPU: {asked}")
        if uncomputed:
            typer.echo(
                f"  tensors of more than 65,536 elements have no numbers, from {uncomputed} "
                "on: what is decided by them is taken either way"
            )
    if output is not None:
        save_program(program, output)
        typer.echo(f"wrote {output}", err=True)
    if picture is not None:
        write_picture(report, picture)
    if sarif is not None:
        from primepar.preflight.report import sarif as sarif_text

        write_text(sarif, sarif_text(findings(report), target), TargetError)
        typer.echo(f"wrote {sarif}", err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true" and not json:
        from primepar.preflight.report import workflow_commands

        typer.echo("\n".join(workflow_commands(findings(report))))
    if repaired is not None:
        _repair(program, report, transport, repaired)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _check(limit: float, timeout: float, files: dict[str, Path | None]) -> None:
    """Raise `ConfigError` or `TargetError` for a value that cannot be meant."""
    for option, seconds in (("--limit", limit), ("--timeout", timeout)):
        if not 0.001 <= seconds <= LONGEST:
            raise ConfigError(
                f"{option}: expected seconds from 0.001 to {LONGEST}, got {seconds:g}"
            )
    for option, path in files.items():
        ending = {"--picture": "svg", "--sarif": "sarif"}.get(option, "json")
        check_ending(option, path, **{ending: ""})


def _transport(order: str, slots: str) -> Transport:
    """Raise `ConfigError` for an order or a number of slots that there is not."""
    if order not in get_args(Order):
        raise ConfigError(f"--order: expected {', '.join(get_args(Order))}, got {order!r}")
    if slots != "any" and not (slots.isascii() and slots.isdigit() and len(slots) < 10):
        raise ConfigError(f"--slots: expected a number from 0, or any, got {slots!r}")
    return Transport(None if slots == "any" else int(slots), cast(Order, order))


def _program(
    target: str, arguments: list[str], ranks: int | None, limit: float, gpu: bool, shrink: bool
) -> tuple[Program, list[RankRecording], ScriptRecorder | None]:
    """The program of a target, and what was and is to be recorded if it is a script."""
    from primepar.preflight.importers import SCHEDULE, read_program

    path = Path(target)
    if path.suffix == ".json" or path.suffix == SCHEDULE or path.is_dir():
        if ranks is not None or arguments:
            option = f"--ranks {ranks}" if ranks is not None else arguments[0]
            raise TargetError(
                f"{target}: expected a file alone, as it has its ranks, got {option} too: "
                "leave it out"
            )
        program = load_program(path) if path.suffix == ".json" else read_program(path)
        return program, [], None
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of

    count = _ranks_of(path, ranks)
    recorded, recorder = capture_torch(path, arguments, count, limit, gpu, shrink)
    return program_of(recorded, target), recorded, recorder


def _ranks_of(path: Path, ranks: int | None) -> int:
    """The ranks of a script. Raises an error if there is no script, or no number of ranks."""
    if not path.is_file():
        raise TargetError(f"{path}: expected a script or a program, found none: check the path")
    if ranks is None:
        raise ConfigError(
            f"--ranks: expected the number of ranks of {path}, got none: write -n 4 before it"
        )
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks: expected a number from 1 to {MOST_RANKS}, got {ranks}")
    return ranks


def _lines(report: Report, program: Program, transport: Transport) -> Iterator[str]:
    from primepar.preflight.verdict import enough

    count = sum(map(len, program.programs))
    yield from report.lines(
        f"on {program.ranks} ranks, {count} instructions",
        seconds=True,
        paint=paint,
    )
    if report["deadlock-freedom"].verdict == "refuted":
        yield from enough(program, transport)


def _repair(program: Program, report: Report, transport: Transport, output: Path) -> None:
    """Write the nearest program that passes, and print how it differs."""
    from primepar.verify.repair.repair import repair, repair_lines

    if report.verdict != "refuted":
        typer.echo(f"nothing is refuted: {output} is not written", err=True)
        return
    repaired = repair(program, transport)
    if repaired is None or not repaired.moves:
        typer.echo(f"no few moves of instructions make it pass: {output} is not written", err=True)
        return
    save_program(repaired.program, output)
    typer.echo("\n".join(repair_lines(program, repaired)))
    typer.echo(f"wrote {output}", err=True)
