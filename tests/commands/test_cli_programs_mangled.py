"""Program files mangled at random end in a verdict or in one line, whatever is asked of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phase_programs
import pytest
from command import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import few

from primepar.partition import parse_sequence
from primepar.schedule import lower
from primepar.schedule.program_file import program_json

HERE = Path(__file__).parents[1]
Json = Any
RIGHT: list[Json] = [
    json.loads(program_json(lower(parse_sequence("N2"), phases=("forward",)))),
    phase_programs.norm(),
    phase_programs.heads(),
    *(json.loads((HERE / "wrong" / f"{name}.json").read_text()) for name in (
        "posted-reduce-not-waited", "wrong-root", "used-after-free", "missing-all-reduce",
    )),
]  # fmt: skip
JUNK: list[Json] = [
    None, True, -1, 0, 1, 10**6, 2**63, 10**30, 1.5, 1e300, "", "x", "O[0,0]", "I[0,0,0]",
    "x[9,0]", "W[", "a\x1b[31m", "\u2028", "forward", "max", "wait", "free", "1/3", "1/0",
    "y[M,K]", "y[M/0]", "y[Q]", f"I[{'9' * 900},0]", [], {}, [0], [[]], {"M": 1}, ["x[0,0]"],
]  # fmt: skip
COMMANDS = [
    ("show",), ("check",), ("verify", "--timeout", "2"), ("verify", "--buffered", "--json"),
    ("show", "--program"), ("show", "-o", "p.svg"), ("verify", "-o", "c.svg"),
]  # fmt: skip


def places(value: Json) -> Iterator[tuple[Json, Any]]:
    """Every container with every key of it."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mangle(program: Json, chance: random.Random) -> Json:
    """The program with one or two places changed: junk, a copy of another, gone, or off by 1."""
    mangled = json.loads(json.dumps(program))
    for _ in range(chance.choice((1, 1, 2))):
        known = list(places(mangled))
        holder, key = chance.choice(known)
        other, at = chance.choice(known)
        way = chance.randrange(5)
        if way == 0:
            holder[key] = chance.choice(JUNK)
        elif way == 1:
            holder[key] = json.loads(json.dumps(other[at]))
        elif way == 2:
            del holder[key]
        elif isinstance(holder[key], int):
            holder[key] += chance.choice((-1, 1))
        elif isinstance(holder[key], list):
            chance.shuffle(holder[key])
        elif isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
    return mangled


def is_one_line(done: Done, file: str) -> bool:
    return done.err.startswith(f"primepar: error: {file}: ") and done.err.count("\n") == 1


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), which=st.sampled_from(RIGHT), command=st.sampled_from(COMMANDS))
def test_a_mangled_program_ends_in_a_verdict_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, seed: int, which: Json, command: tuple[str, ...]
) -> None:
    folder = tmp_path_factory.mktemp("mangled")
    file = folder / "p.json"
    file.write_text(json.dumps(mangle(which, random.Random(seed))))
    name, *options = (str(folder / word) if word.endswith(".svg") else word for word in command)
    done = run(name, str(file), *options)
    assert done.code in (0, 1, 2, 3)
    assert "\x1b" not in done.err
    assert done.code != 2 or is_one_line(done, str(file)), done.err


HEAD = '{"format": "primepar-program", "version": 1, "ranks": '
FILES: dict[str, tuple[str | bytes, str]] = {
    "nan": (HEAD + 'NaN, "programs": []}', "expected JSON, got broken text: JSON is malformed: "
            f"invalid character (byte {len(HEAD)})"),
    "many": (HEAD + '1000000, "programs": [[], []]}',
             "expected programs to have one list for each of 1000000 ranks, got 2"),
    "none": (HEAD + '0, "programs": []}', "Expected `int` >= 1 - at `$.ranks`"),
    "huge": (HEAD + "9" * 100 + ', "programs": []}',
             "Expected `int` <= 9223372036854775807 - at `$.ranks`"),
    "twice": (HEAD + '1, "programs": [[{"op": "barrier", "group": [0, 0]}]]}',
              "expected every rank of a group once, got [0, 0] - at `$.programs[0][0]`"),
    "empty": (HEAD + '1, "programs": [[{"op": "barrier", "group": []}]]}',
              "Expected `array` of length >= 1 - at `$.programs[0][0].group`"),
    "cuts": (HEAD + '1, "programs": [[{"op": "free", "block": "a[1]"}]], "tensors": {"a": '
             '{"cuts": [[0, 2]]}}}', "expected blocks of a below [1], got a[1] in programs[0][0]: "
             "cut it finer, or name another"),
    "reads": (HEAD + '1, "programs": [[]], "grid": {"f": {"X": 2}}, "phases": {"f": {"reads": '
              '["a[X]"], "writes": "b[X]"}}, "tensors": {"a": {"cuts": [[0, 2]]}}}',
              "expected blocks of a below [1], got a[1] in phases.f at the end of its grid: "
              "cut it finer, or name another"),
    "long": (HEAD + '1, "programs": [[{"op": "free", "block": "' + "x" * 10**6 + '"}]]}',
             "Expected `str` of length <= 1000 - at `$.programs[0][0].block`"),
    "escape": (HEAD + '1, "programs": [[]], "\\u001b[31m": 1}',
               "Object contains unknown field `\\x1b[31m`"),
}  # fmt: skip


@few
@pytest.mark.parametrize("command", ["show", "check", "verify"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_program_is_refused_in_one_line(tmp_path: Path, command: str, name: str) -> None:
    content, message = FILES[name]
    file = tmp_path / f"{name}.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert run(command, str(file)) == (2, "", f"primepar: error: {file}: {message}\n")


def test_a_rank_that_sends_to_itself_gets_a_verdict(tmp_path: Path) -> None:
    file = tmp_path / "self.json"
    nodes = '[{"op": "send", "peer": 0, "block": "A"}, {"op": "recv", "peer": 0, "block": "B"}]'
    file.write_text(HEAD + f'1, "programs": [{nodes}]}}')
    assert run("verify", str(file)).code == 1
    assert run("check", str(file)).code == 1
