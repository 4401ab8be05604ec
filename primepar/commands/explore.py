"""`primepar explore`: a second opinion on one program, by running it step by step, without Z3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.api.resolve_target import resolve
from primepar.commands.options import JsonOption, SideOption, TargetArgument, json_text, on_mesh
from primepar.commands.verify import EXIT_CODES, styled
from primepar.errors import ConfigError
from primepar.schedule import Program, lower
from primepar.schedule.program_file import instruction_text
from primepar.schedule.program_method import ProgramMethod

if TYPE_CHECKING:
    from primepar.verify.explorer.explore import Exploration


def explore(
    target: TargetArgument,
    side: SideOption = None,
    buffered: Annotated[
        bool, typer.Option("--buffered", help="Let every send return at once, a weaker question.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--every", help="Visit every interleaving. For small programs.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="States to visit with --every, 200000 by default.", min=1),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a program state by state, without Z3, and print which properties hold.

    It is a second opinion on what `verify` proves. Ends with 0 if all hold, 1 if one fails, 3 if
    one is unknown.
    """
    from primepar.verify.explorer import explore as explorer

    if limit is not None and not every:
        raise ConfigError(f"--limit: expected --every too, got --limit {limit} alone: add --every")
    resolved = resolve(target)
    placed = on_mesh(target, resolved, side)
    program = placed if isinstance(placed, Program) else lower(placed)
    seen = explorer.explore(program, buffered, every, limit or explorer.MOST_STATES)
    name = resolved.text if isinstance(resolved, ProgramMethod) else target
    if json:
        typer.echo(json_text(_as_json(name, seen)), nl=False)
    else:
        typer.echo("\n".join(_lines(name, program, seen)))
    raise typer.Exit(EXIT_CODES[seen.overall])


def _as_json(target: str, seen: Exploration) -> dict[str, object]:
    return {
        "target": target,
        "verdict": seen.overall,
        "properties": [{"name": name, "verdict": seen.verdict(name)} for name in seen.in_order],
        "states": seen.states,
        "ends": seen.ends,
        "finished": seen.finished,
        "stuck": [list(place) for place in seen.stuck],
    }


def _lines(target: str, program: Program, seen: Exploration) -> Iterator[str]:
    yield f"{target}: {styled(seen.overall)}"
    for name in seen.in_order:
        yield f"  {name:17} {styled(seen.verdict(name))}"
    for rank, index in seen.stuck:
        text = " ".join(instruction_text(program.programs[rank][index]).split())
        yield f"  rank {rank} hangs in instruction {index} ({text})"
    states = f"{seen.states} state{'s' * (seen.states > 1)}"
    ends = f"{seen.ends} end{'s' * (seen.ends != 1)}"
    yield f"  {states}, {ends}" + ("" if seen.finished else ", more were not visited")
