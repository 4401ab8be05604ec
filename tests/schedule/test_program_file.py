"""Programs survive their file, people can read them, and the shipped schema is current.

And every instruction touches what the table of effects has, as the explorer has its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from conftest import Golden
from oracle.machine import Machine

import primepar.schedule
from primepar.errors import ProgramError
from primepar.partition import parse_sequence
from primepar.schedule import Linear, Program, load_program, lower, program_text, save_program
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Wait,
)
from primepar.schedule.program_file import _OPS, program_json, schema

SCHEMA = Path(primepar.schedule.__file__).with_name("program.schema.json")
EVERY_INSTRUCTION: tuple[Instruction, ...] = (
    Compute(("I[0]", "W[0]"), "O[0]", "forward", {"M": 0}),
    Compute(("A", "B"), "C"),
    Compute(("A", "B"), "C", scale="1/4"),
    Compute(("I[0]", "W[0]"), "O[0]", "forward", {"M": 0}, scale="3"),
    Compute(("I[0]", "W[0]"), "O[0]", "forward", {"M": 0}, again=True),
    Send(1, "A", tag=3),
    Recv(1, "A", communicator="rows"),
    ISend(1, "A", request="a"),
    IRecv(1, "B", request="b"),
    Wait("a"),
    Group((Send(1, "A"), Recv(1, "B"))),
    AllReduce((0, 1), block="A"),
    Reduce((0, 1), block="A", root=1, reduction="max"),
    Broadcast((0, 1), block="A", root=0),
    Broadcast((0, 1), block="A", root=0, request="c"),
    AllGather((0, 1), block="A", blocks=("A", "B")),
    ReduceScatter((0, 1), blocks=("A", "B"), block="C"),
    ReduceScatter((0, 1), blocks=("A", "B"), block="C", scale="1/2"),
    AllToAll((0, 1), blocks=("A", "B"), into=("C", "D")),
    Barrier((0, 1)),
    Gather((0, 1), block="A", root=0, blocks=("A", "B"), count=2),
    Scatter((0, 1), block="A", root=0, blocks=("A", "B")),
    Gather((0, 1), block="A", root=1),
    Group((Send(1, "A"), Recv(1, "B")), request="g"),
    Alloc("A"),
    Free("A"),
    Fetch("A"),
    Evict("A"),
    Cut("A", ("B", "C")),
    Join(("B", "C"), "A"),
)
OTHERWISE: tuple[Instruction, ...] = (
    AllReduce((0, 1), block="A", also=("B",)),
    Reduce((0, 1), block="A", root=0),
    Broadcast((0, 1), block="A", root=1),
    Scatter((0, 1), block="A", root=1),
    Compute(("A", "B"), "A"),
    Cut("A", ("B", "C"), in_place=True),
    Join(("B", "C"), "A", in_place=True),
)
"""Some of them where another rank is the root, with more blocks, or in place."""


def every_instruction() -> Program:
    return Program("primepar-program", 1, 2, (EVERY_INSTRUCTION, ()))


@pytest.mark.parametrize("text", ["P2x2", "K,P3x3", "B,M", "", "S3x3"])
def test_a_lowered_program_survives_its_file(tmp_path: Path, text: str) -> None:
    program = lower(parse_sequence(text), Linear(12, 12, 12, B=2 if "B" in text else 1))
    save_program(program, tmp_path / "p.json")
    assert load_program(tmp_path / "p.json") == program


def test_every_instruction_survives_its_file(tmp_path: Path) -> None:
    save_program(every_instruction(), tmp_path / "p.json")
    assert load_program(tmp_path / "p.json") == every_instruction()


def test_a_file_has_one_instruction_in_a_line() -> None:
    lines = program_json(every_instruction()).splitlines()
    assert sum('"op"' in line for line in lines) == len(EVERY_INSTRUCTION)


def test_the_text_shows_every_instruction(golden: Golden) -> None:
    golden("program/every_instruction", program_text(every_instruction()))


def test_the_text_of_a_program_shows_what_is_where(golden: Golden) -> None:
    golden("program/P2x2", program_text(lower(parse_sequence("P2x2"))))


def test_saving_replaces_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")
    save_program(every_instruction(), path)
    assert load_program(path) == every_instruction()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_saved_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")

    def full(source: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ProgramError) as caught:
        save_program(every_instruction(), path)
    assert str(caught.value) == f"{path}: expected a place to write to, got no space left on device"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def node(instruction: dict[str, object], ranks: int = 2) -> str:
    fields = {"format": "primepar-program", "version": 1, "ranks": ranks}
    return json.dumps({**fields, "programs": [[instruction], *[[]] * (ranks - 1)]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "Expected `object`, got `array`"),
        ('{"format": "program"}', "Invalid enum value 'program' - at `$.format`"),
        ('{"steps": 1}', 'expected a file with "format": "primepar-program" or "primepar-plan", '
         "got an object without a format: a config.json goes with --model"),
        ('{"format": "primepar-program", "steps": 1}', "Object contains unknown field `steps`"),
        (node({"op": "wait"}), "Object missing required field `request` - at `$.programs[0][0]`"),
        (node({"op": "wait", "request": 1}), "Expected `str`, got `int` - at "
         "`$.programs[0][0].request`"),
        (node({"op": "free", "block": ""}), "Expected `str` of length >= 1 - at "
         "`$.programs[0][0].block`"),
        (node({"op": "recv", "peer": -1, "block": "A"}), "Expected `int` >= 0 - at "
         "`$.programs[0][0].peer`"),
        (node({"op": "recv", "peer": 1, "block": "A", "tag": -1}), "Expected `int` >= 0 - at "
         "`$.programs[0][0].tag`"),
        (node({"op": "send", "peer": 1, "block": "A", "mode": "ready"}), "Object contains unknown "
         "field `mode` - at `$.programs[0][0]`"),
        (node({"op": "scan", "group": [0, 1], "block": "A"}), f"Invalid value 'scan' - at "
         f"`$.programs[0][0].op`: write one of {_OPS}"),
        (node({"op": "split", "group": [0, 1]}), f"Invalid value 'split' - at "
         f"`$.programs[0][0].op`: write one of {_OPS}"),
        ('{"format": "primepar-program", "version": 1, "ranks": 1, "programs": [[]], "rules": '
         '"mpi"}', "Object contains unknown field `rules`"),
        (node({"op": "gather", "group": [0, 1], "block": "A", "root": 0}), "expected 2 blocks on "
         "rank 0, got 0: the root lists one for each rank of the group, and others none in "
         "programs[0][0]"),
        (node({"op": "all_gather", "group": [0, 1], "block": "A", "blocks": ["B", "C"],
               "counts": [1, 2]}), "Object contains unknown field `counts` - at "
         "`$.programs[0][0]`"),
        (node({"op": "send", "peer": 2, "block": "A"}), "expected ranks below 2, got 2 in "
         "programs[0][0]"),
        (node({"op": "barrier", "group": [0, 0]}), "expected every rank of a group once, got "
         "[0, 0] - at `$.programs[0][0]`"),
        (node({"op": "broadcast", "group": [0], "block": "A", "root": 1}), "expected a root out of "
         "the group [0], got 1 - at `$.programs[0][0]`"),
        (node({"op": "all_gather", "group": [0, 1], "block": "A", "blocks": ["B", "B"]}),
         "expected every name of blocks once, got B 2 times: give each member's data a name of its "
         "own - at `$.programs[0][0]`"),
        (node({"op": "all_to_all", "group": [0, 1], "blocks": ["A", "A"], "into": ["B", "B"]}),
         "expected every name of into once, got B 2 times: give each member's data a name of its "
         "own - at `$.programs[0][0]`"),
        (node({"op": "compute", "reads": ["A"], "accumulates": "B", "phase": "forward"}),
         "expected phase and sub_operator together, or neither for an addition - at "
         "`$.programs[0][0]`"),
        (node({"op": "group", "body": [{"op": "wait", "request": "a"}]}), "Invalid value 'wait' - "
         "at `$.programs[0][0].body[0].op`: write one of send, recv"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused_with_its_json_path(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProgramError) as caught:
        load_program(path)
    assert str(caught.value) == f"{path}: {message}"


def test_the_shipped_schema_is_current() -> None:
    advice = "write it again: python -m primepar.schedule > primepar/schedule/program.schema.json"
    assert json.loads(SCHEMA.read_text()) == schema(), advice


def test_the_schema_knows_every_instruction() -> None:
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    known = {tag for definition in definitions.values()
             for tag in definition["properties"].get("op", {}).get("enum", ())}  # fmt: skip
    assert known == {str(node.__struct_config__.tag) for node in EVERY_INSTRUCTION}


def test_every_class_of_instruction_is_here() -> None:
    assert {type(node) for node in EVERY_INSTRUCTION} == set(get_args(Instruction))


@pytest.mark.parametrize(
    "node",
    [node for node in (*EVERY_INSTRUCTION, *OTHERWISE) if not getattr(node, "again", False)],
    ids=str,
)
def test_the_explorer_touches_what_the_table_has(
    node: Instruction, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, changes = set[str](), set[str]()

    def touch(_: Machine, rank: int, read: tuple[str, ...], written: tuple[str, ...]) -> None:
        reads.update(read)
        changes.update(written)

    monkeypatch.setattr(Machine, "_touch", touch)
    Machine.of(Program("primepar-program", 1, 2, ((node,), ())), buffered=False).advance(0)
    of = effects(node, 0)
    # A sum reads the block that it is added to, and whatever is freed has to be there: the table
    # lists both once, among what changes.
    assert changes == {*of.writes, *of.frees}
    assert reads - changes == {*of.reads} - changes
