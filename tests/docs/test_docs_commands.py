"""docs/commands.md names every option of every command, in the section of that command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import run
from typer.core import TyperGroup
from typer.main import get_command

from primepar.cli import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()
GROUP = get_command(app)
assert isinstance(GROUP, TyperGroup)
COMMANDS = GROUP.commands


def options(command: str) -> set[str]:
    """What `primepar COMMAND --help` lists."""
    help_text = run(command, "--help").out
    names = {name for each in COMMANDS[command].params for name in each.opts if name[0] == "-"}
    assert {name for name in names if not re.search(rf"{name}\b", help_text)} == set()
    return names | {"--help"}


def unnamed(page: str, command: str) -> set[str]:
    """Options that neither the head of a page nor the section of the command names."""
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    own = [section for section in sections if section.startswith(f"{command}\n")]
    names = re.findall(r"`(--?[a-z][a-z-]*)[` ]", "\n".join([head, *own]))
    return options(command) - set(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_named_where_its_command_is_described(command: str) -> None:
    assert unnamed(PAGE, command) == set()
    assert f"`primepar {command}" in PAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_more_options_than_a_reader_keeps_in_mind(command: str) -> None:
    """At most 12, not counting --help; `plan` also has the sizes of the question and degrees."""
    most = 23 if command == "plan" else 12
    assert sum(each.param_type_name == "option" for each in COMMANDS[command].params) <= most


def test_an_option_that_is_not_named_is_found() -> None:
    assert unnamed(PAGE.replace("`--seed N`", "seed"), "check") == {"--seed"}
    assert unnamed(PAGE.split("## verify")[0], "verify") == {
        "--batch", "--buffered", "--certificate", "--devices", "--minimal",
        "--output", "--positions", "--solver", "--timeout", "-o",
    }  # fmt: skip
