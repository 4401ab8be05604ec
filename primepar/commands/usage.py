"""What is wrong with how a command was called, in one line as every other error.

Typer raises what Click calls a usage error. Its class defines what it knows: a parameter, the
name of an option, the command.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any, Final

import typer

from primepar.commands.suggestions import argument_instead, command_instead, option_instead

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What Typer raises for an unknown, missing or wrong option, argument or command."""


def usage_line(error: Any, arguments: list[str]) -> str:
    """The line for a `UsageError` of these arguments of `primepar`."""
    path = error.ctx.command_path if error.ctx else "primepar"
    if getattr(error, "param", None) is not None:
        name = _name(error.param)
        if not error.message:
            return (
                f"{name}: expected a value, got none: write {_call(error.param, path, error.ctx)}"
            )
        return f"{name}: {_value(error.message, name, arguments)}: see {path} --help"
    if hasattr(error, "possibilities"):
        instead = option_instead(error.option_name, error.ctx.command, path)
        return f"{error.option_name}: expected an option of {path}, got no such one: {instead}"
    if hasattr(error, "option_name"):
        option = error.option_name
        if "requires" in error.message:
            return f"{option}: expected a value, got none: write {option} VALUE"
        return f"{option}: expected no value, got one: write {option}"
    return _of_words(error, path, arguments)


def _name(param: Any) -> str:
    """`--cluster` of an option, `MODEL` of an argument."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _call(param: Any, path: str, ctx: Any) -> str:
    """The option with its value, or the command with all of its arguments; and what it means."""
    text = (param.help or "").rstrip(".")
    meaning = f" ({text[:1].lower()}{text[1:]})" if text else ""
    if param.param_type_name == "option":
        return f"{_name(param)} {param.metavar or 'VALUE'}{meaning}"
    arguments = [param for param in ctx.command.params if param.param_type_name == "argument"]
    return f"{path} {' '.join(map(_name, arguments))}{meaning}"


def _value(message: str, name: str, arguments: list[str]) -> str:
    """The message of Typer about a value, in the form of all messages where it is known."""
    choice = re.fullmatch(r"(?:Value error, )?(.*) is not one of (.*?)\.?", message)
    if choice:
        return f"expected one of {choice[2].replace(chr(39), '')}, got {choice[1]}"
    number = re.fullmatch(r"Input should be (.*?)(?:, unable to parse.*)?", message)
    if number is None:
        return message
    kind = number[1].removeprefix("a valid ")
    article = {"i": "an ", "n": "a ", "g": "a number ", "l": "a number "}.get(kind[0], "")
    return f"expected {article}{kind}, got {_given(name, arguments)}"


def _given(name: str, arguments: list[str]) -> str:
    """The last value that was given to an option, or the first that is given to no option."""
    value = "" if name.startswith("-") else next(iter(_plain(arguments[1:])), "")
    for place, word in enumerate(arguments):
        if word == name and place + 1 < len(arguments):
            value = arguments[place + 1]
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
    return repr(value) if value else "another value"


def _plain(arguments: list[str]) -> list[str]:
    """The words before the first option."""
    return list(takewhile(lambda word: not word.startswith("-"), arguments))


def _of_words(error: Any, path: str, arguments: list[str]) -> str:
    """A command that there is not, or one argument too many."""
    command = re.match(r"No such command '(.*?)'\.", error.message)
    if command:
        known = list(error.ctx.command.commands)
        return f"expected one of {', '.join(known)}, got {command[1]!r}: " + command_instead(
            command[1], known, path
        )
    extra = re.search(r"extra argument.*\((.*)\)", error.message)
    if extra:
        word = extra[1].partition(" ")[0]
        instead = argument_instead(word, _plain(arguments[1:]), error.ctx.command, path)
        return f"expected no more arguments of {path}, got {extra[1]}: {instead}"
    return str(error.message)
