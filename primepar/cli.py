"""The command line `primepar`. Each command is in a file of its own and loads what it needs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from errno import EBADF, EDQUOT, ENOSPC
from functools import wraps
from signal import SIGPIPE
from typing import Annotated, Any, NoReturn

import typer

from primepar.commands.check import check
from primepar.commands.exercise import exercise
from primepar.commands.list import list_
from primepar.commands.plan import plan
from primepar.commands.preflight import preflight
from primepar.commands.profile import profile
from primepar.commands.search import search
from primepar.commands.show import show
from primepar.commands.simulate import simulate
from primepar.commands.train import train
from primepar.commands.usage import UsageError, usage_line
from primepar.commands.verify import verify
from primepar.errors import PrimeParError, one_line
from primepar.files import announce, one_command
from primepar.reading import HIDDEN

app = typer.Typer(
    help="Partition primitives of tensor products: written once, emulated, proved and run.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXAMPLES: dict[Callable[..., None], str] = {
    list_: "list",
    show: "show primepar --side 2 -o grid.svg",
    check: "check primepar --side 3",
    verify: "verify primepar --json",
    search: "search --shape 2048,1024,4096 --side 2",
    exercise: "exercise 1 --diagnose races:0,3",
    preflight: "preflight -n 4 train.py --steps 2",
    plan: "plan config.json --cluster v100-8x4 --devices 8 -o plan.json",
    profile: "profile --ranks 4 -o here.toml",
    simulate: "simulate P2x2 --shape 4096,4096,4096 --cluster h200-8",
    train: "train --ranks 4 --plan P2x2 --steps 100",
}
"""Every command in the order of the help, with an example of how it is called."""
OUTPUTS = ("output", "smallest", "picture", "repaired", "sarif", "html")
"""Parameters of commands that name a file to write."""
_LOST = {
    ENOSPC: "expected room for what is written, got a full disk",
    EDQUOT: "expected room for what is written, got a full disk quota",
    EBADF: "expected an open standard output, got a closed one: write > /dev/null to print nowhere",
}
"""What the system states of an output that takes no more -> in our words."""


def _paragraphs(docstring: str | None) -> str:
    """A docstring whose paragraphs are one line each, so that a terminal wraps them."""
    return "\n\n".join(" ".join(part.split()) for part in (docstring or "").split("\n\n"))


class _Shown:
    """A stream that writes out, as JSON does, what a terminal obeys and does not show.

    A file's name may reverse the text after it. What moves the cursor and colours text is ours.
    """

    _hidden = re.compile(f"(?![\\x00-\\x1f\\x7f])[{HIDDEN}]")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        self._stream.write(self._hidden.sub(lambda letter: json.dumps(letter[0])[1:-1], text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _announcing(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which announces its outputs first: none of them may replace an input."""

    @wraps(command)
    def announced(**given: Any) -> None:
        for name in OUTPUTS:
            if given.get(name) is not None:
                announce(given[name])
        try:
            command(**given)
        except BrokenPipeError:
            _end_unread()

    return announced


for _command, _example in EXAMPLES.items():
    app.command(
        _example.partition(" ")[0],
        help=_paragraphs(_command.__doc__),
        epilog=f"Example: primepar {_example}",
        context_settings={"allow_interspersed_args": _command is not preflight},
    )(_announcing(_command))


def main(commands: typer.Typer = app, name: str = "primepar") -> None:
    """Run a command line: bad input ends in one line on stderr, never in a traceback."""
    if sys.stdout is None:
        _refuse(name, _LOST[EBADF])
    try:
        with (
            one_command(),
            redirect_stdout(_Shown(sys.stdout)),
            redirect_stderr(_Shown(sys.stderr)),
        ):
            code = commands(_arguments(), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        _end_unread()
    except PrimeParError as error:
        _refuse(name, str(error), error.exit_code)
    except UsageError as error:
        _refuse(name, usage_line(error, sys.argv[1:]))
    except OSError as error:
        if error.errno not in _LOST:
            raise
        _refuse(name, _LOST[error.errno])
    except MemoryError:
        _refuse(name, "expected a mesh and a shape that fit into memory, got larger ones: take "
                "smaller ones")  # fmt: skip


def _end_unread() -> NoReturn:
    """End as a process that SIGPIPE has ended, when nobody reads what is printed: `| head -1`.

    Not with 1, which states that something is refuted.
    """
    # Python flushes once more at its end, which must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + SIGPIPE)


def _arguments() -> list[str]:
    """The words of the command line; `help verify` is `verify --help`."""
    if sys.argv[1:2] == ["help"]:
        return [*sys.argv[2:], "--help"]
    return sys.argv[1:]


def _refuse(name: str, message: str, code: int = PrimeParError.exit_code) -> NoReturn:
    typer.echo(f"{name}: error: {one_line(message)}", err=True)
    sys.exit(code)


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
    """Take the options before a command, and print the help where none is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(PrimeParError.exit_code)
