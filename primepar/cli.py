"""The command line `primepar`. Each command stands in a file of its own and loads what it needs."""

from __future__ import annotations

import sys
from errno import ENOSPC
from typing import Annotated, NoReturn

import typer

from primepar.commands.certify import certify
from primepar.commands.check import check
from primepar.commands.exercise import exercise
from primepar.commands.explore import explore
from primepar.commands.list import list_
from primepar.commands.plan_search import plan
from primepar.commands.show import show
from primepar.commands.simulate import simulate
from primepar.commands.train import train
from primepar.commands.usage import UsageError, usage_line
from primepar.commands.verify import verify
from primepar.errors import PrimeParError

app = typer.Typer(
    help="Partition primitives of tensor products: written once, emulated, proved and run.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.command("list", epilog="Example: primepar list")(list_)
app.command("show", epilog="Example: primepar show primepar --side 2 -o grid.svg")(show)
app.command("check", epilog="Example: primepar check primepar --side 3")(check)
app.command("verify", epilog="Example: primepar verify primepar --json")(verify)
app.command("certify", epilog="Example: primepar certify proof.json primepar")(certify)
app.command("exercise", epilog="Example: primepar exercise 1 --diagnose races:0,3")(exercise)
app.command("explore", epilog="Example: primepar explore primepar --side 2 --every")(explore)
app.command(
    "plan", epilog="Example: primepar plan config.json --cluster v100-8x4 --devices 8 -o plan.json"
)(plan)
app.command(
    "simulate", epilog="Example: primepar simulate P2x2 --shape 4096,4096,4096 --cluster h200-8"
)(simulate)
app.command("train", epilog="Example: mpirun -n 4 primepar train --sequence P2x2 --steps 100")(
    train
)


def main(commands: typer.Typer = app, name: str = "primepar") -> None:
    """Run a command line: bad input ends in one line on stderr, never in a traceback."""
    try:
        sys.exit(commands(prog_name=name, standalone_mode=False))
    except PrimeParError as error:
        _refuse(name, str(error), error.exit_code)
    except UsageError as error:
        _refuse(name, usage_line(error, sys.argv[1:]))
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        _refuse(name, "expected room for what is written, got a full disk")
    except MemoryError:
        _refuse(name, "expected a mesh and a shape that fit into memory, got larger ones: take "
                "smaller ones")  # fmt: skip


def _refuse(name: str, message: str, code: int = PrimeParError.exit_code) -> NoReturn:
    typer.echo(f"{name}: error: {_one_line(message)}", err=True)
    sys.exit(code)


def _one_line(text: str) -> str:
    """Text with one space for any white space, and what a terminal would obey written out."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _print_version(asked: bool) -> None:
    if asked:
        from primepar import __version__

        typer.echo(f"primepar {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold the options that stand before a command, and show the help where none is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(PrimeParError.exit_code)
