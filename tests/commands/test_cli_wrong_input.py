"""Every wrong input ends in one line that names the place and the fix, with exit code 2."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from command import run
from profiles import few

from primepar.plan.cluster import shipped_clusters

OPS = (
    "compute, send, recv, isend, irecv, wait, group, all_reduce, reduce, broadcast, all_gather, "
    "reduce_scatter, all_to_all, gather, scatter, barrier, alloc, free, fetch, evict, cut, join"
)
FILES = {
    "raises.py": 'x = 1\nraise ValueError("no\\nway")\n',
    "exits.py": "import sys\nsys.exit(0)\n",
    "syntax.py": "def f(:\n",
    "maps.py": """
from primepar import Primitive

class Dim(Primitive):
    axes = ("r",)
    def forward(self, r, t, s): return dict(Q=r)

class Raises(Primitive):
    axes = ("r",)
    def forward(self, r, t, s): return dict(M=r // 0)

class Two(Primitive):
    axes = {"r": "q", "e": "d"}
    def steps(self, q, d): return 1
    def forward(self, r, e, t, q, d): return dict(M=r, K=e)

class Sideless(Primitive):
    def steps(self): return 1
    def forward(self, t): return {}

class Steps(Primitive):
    axes = ("r",)
    def steps(self, s): return 1 // 0
    def forward(self, r, t, s): return dict(M=r)

class Large(Primitive):
    axes = ("r",)
    def forward(self, r, t, s): return dict(M=r * 10**9)
""",
    "cut.json": '{"format": "primepar-program", "version": 1, "ranks": 1',
    "unknown.json": '{"format": "primepar-program", "version": 1, "ranks": 1, '
    '"programs": [[{"op": "barrier", "group": [0]}, {"op": "sned"}]]}',
    "version.json": '{"format": "primepar-program", "version": 2, "ranks": 1, "programs": [[]]}',
    "ranks.json": '{"format": "primepar-program", "version": 1, "ranks": 2, "programs": [[]]}',
    "peer.json": '{"format": "primepar-program", "version": 1, "ranks": 1, '
    '"programs": [[{"op": "send", "peer": 1, "block": "A"}]]}',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TARGETS = [
    (
        "nothing",
        "expected the name of a primitive, file.py:Class, program.json, or a sequence like K,P2x2, "
        "got 'nothing': primepar list prints the names",
    ),
    ("none.py:Rows", "none.py: expected a Python file, found none: check the path"),
    (
        "raises.py:Rows",
        "raises.py:2: expected a file that can be imported, got ValueError: no way",
    ),
    ("exits.py:Rows", "exits.py:2: expected a file that can be imported, got SystemExit: 0"),
    (
        "syntax.py:Rows",
        "syntax.py:1: expected a file that can be imported, got SyntaxError: invalid syntax "
        "(syntax.py, line 1)",
    ),
    ("none.json", "none.json: expected a program file, got no such file or directory"),
    ("pipe.json", "pipe.json: expected a program file, got a pipe or a device"),
    ("folder.json", "folder.json: expected a program file, got is a directory"),
    ("cut.json", "cut.json: expected JSON, got broken text: Input data was truncated"),
    (
        "unknown.json",
        f"unknown.json: Invalid value 'sned' - at `$.programs[0][1].op`: write one of {OPS}",
    ),
    ("version.json", "version.json: Invalid enum value 2 - at `$.version`"),
    (
        "ranks.json",
        "ranks.json: expected programs to have one list for each of 2 ranks, got 1",
    ),
    ("peer.json", "peer.json: expected ranks below 1, got 1 in programs[0][0]"),
]


@few
@pytest.mark.parametrize("command", ["show", "check", "verify"])
@pytest.mark.parametrize(("target", "message"), TARGETS, ids=[target for target, _ in TARGETS])
def test_a_target_that_is_none(folder: Path, command: str, target: str, message: str) -> None:
    assert run(command, target) == (2, "", f"primepar: error: {message}\n")


MESHES = [
    ("primepar", None, "primepar: expected the length of side s, 1 or more, got none: write "
     "--side 2"),
    ("primepar", "0", "--side: expected the length of side s, 1 or more, got '0': write --side 2"),
    ("primepar", "-1", "--side: expected the length of side s, 1 or more, got '-1': write "
     "--side 2"),
    ("primepar", "two", "--side: expected the length of side s, 1 or more, got 'two': write "
     "--side 2"),
    ("primepar", "2,3", "--side: expected the length of side s, 1 or more, got '2,3': write "
     "--side 2"),
    ("maps.py:Two", "2", "--side: expected the lengths of sides q, d, each 1 or more, got '2': "
     "write --side 2,3"),
    ("maps.py:Sideless", "2", "--side: expected no length, as maps.py:Sideless has no side, got "
     "'2': leave --side out"),
    ("K,P2x2", "2", "K,P2x2: expected no --side, as a sequence has its own mesh, got --side 2: "
     "leave it out"),
    ("primepar", "65", "primepar: expected at most 4096 devices to unroll, got 4225: take a "
     "smaller mesh"),
    ("P65x65", None, "P65x65: expected at most 4096 devices to unroll, got 4225: take a smaller "
     "mesh"),
    ("maps.py:Dim", "2", "Dim.forward: expected dims out of B, M, N, K, got 'Q': leave out a dim "
     "that is not split"),
    ("maps.py:Raises", "2", "Raises.forward: expected % and // by 1 or more, got 0: use the length "
     "of a side, sides (2,)"),
    ("maps.py:Steps", "2", "maps.py:23: Steps.steps: expected a method that can be called as "
     "steps(self, s), got ZeroDivisionError: integer division or modulo by zero"),
    ("maps.py:Large", "2", "maps.py:28: Large.forward: expected a slice index of M below "
     "1000000, got 1000000000 at r=1, t=0, sides (2,): wrap it with % of the side"),
]  # fmt: skip


@few
@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(("target", "side", "message"), MESHES)
def test_a_mesh_that_cannot_be_made(
    folder: Path, command: str, target: str, side: str | None, message: str
) -> None:
    options = [] if side is None else ["--side", side]
    assert run(command, target, *options) == (2, "", f"primepar: error: {message}\n")
    if side is not None:
        assert run("verify", target, *options).err == f"primepar: error: {message}\n"


def test_two_sides_are_taken_in_the_order_of_the_primitive(folder: Path) -> None:
    assert run("check", "maps.py:Two", "--side", "2,3").code == 0
    assert run("verify", "maps.py:Two", "--side", "3,2").code == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("5,4,4", "dim M: expected a positive multiple of its 2 slices, got 5: pad M with zeros "
         "to 6"),
        ("4,4,0", "dim K: expected a positive multiple of its 2 slices, got 0: pad K with zeros "
         "to 2"),
        ("3,4,4,4", "dim B: expected 1, as this sequence does not split B, got 3: merge B into M, "
         "M=12"),
        ("4,4", "--shape: expected M,N,K or B,M,N,K, got '4,4': write it like --shape 8,8,8"),
        ("4,4,x", "--shape: expected M,N,K or B,M,N,K, got '4,4,x': write it like --shape 8,8,8"),
        ("1000000000,1000000000,2", "expected a mesh and a shape that fit into memory, got larger "
         "ones: take smaller ones"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit(shape: str, message: str) -> None:
    done = run("check", "primepar", "--side", "2", "--shape", shape)
    assert done == (2, "", f"primepar: error: {message}\n")


def test_a_program_has_its_own_shape_and_phases(folder: Path) -> None:
    run("show", "P2x2", "--program", "-o", "p.json")
    assert run("check", "p.json", "--shape", "4,4,4").err == (
        "primepar: error: p.json: expected no --shape, as a program names its own, got --shape "
        '4,4,4: write it into the file, "shape": {"M": 4, "N": 4, "K": 4}\n'
    )
    assert run("show", "p.json", "--phase", "forward").err == (
        "primepar: error: p.json: expected no --phase, as a program is read as given, got "
        "--phase forward: leave it out\n"
    )


def test_a_solver_or_buffers_are_of_one_program() -> None:
    assert run("verify", "K,P2x2", "--solver", "z4") == (
        2,
        "",
        "primepar: error: --solver: expected z3, got 'z4': leave it out for the linear search\n",
    )
    assert run("verify", "primepar", "--solver", "z3") == (
        2,
        "",
        "primepar: error: primepar: expected no --solver, as Z3 proves every side anyway, got "
        "--solver z3: leave it out\n",
    )
    assert run("verify", "primepar", "--buffered") == (
        2,
        "",
        "primepar: error: primepar: expected no --buffered, as what a map moves is posted at once "
        "and needs no buffer, got --buffered: leave it out\n",
    )


@pytest.mark.parametrize("timeout", ["0", "nan", "inf", "-1", "1e+07"])
def test_a_time_that_z3_cannot_count(timeout: str) -> None:
    assert run("verify", "primepar", f"--timeout={timeout}") == (
        2,
        "",
        f"primepar: error: --timeout: expected seconds from 0.001 to 1000000, got {timeout}\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "grid.png"), "--output: expected a name that ends with .svg (the picture) or .json "
         "(the trace), got grid.png"),
        (("--program", "-o", "p.svg"), "--output: expected a name that ends with .json (the "
         "program), got p.svg"),
        (("-o", "no/grid.svg"), "no/grid.svg: expected a place to write to, got no such file or "
         "directory"),
        (("--program", "-o", "no/p.json"), "no/p.json: expected a place to write to, got no such "
         "file or directory"),
        (("-o", "folder.json"), "folder.json: expected a place to write to, got is a directory"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written_leaves_nothing_behind(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert run("show", "P2x2", *arguments) == (2, "", f"primepar: error: {message}\n")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_full_disk_behind_standard_output_is_reported_in_one_line() -> None:
    with patch(
        "primepar.api.drawings.grid_text", side_effect=OSError(28, "No space left on device")
    ):
        assert run("show", "P2x2") == (
            2,
            "",
            "primepar: error: expected room for what is written, got a full disk\n",
        )


def test_a_refused_schedule_has_no_trace_and_an_old_one_is_kept(folder: Path) -> None:
    (folder / "wrong.py").write_text(
        "from primepar import Primitive\n"
        "class Wrong(Primitive):\n"
        '    axes = ("r",)\n'
        "    def forward(self, r, t, s): return dict(M=r)\n"
    )
    (folder / "run.json").write_text("old")
    done = run("show", "wrong.py:Wrong", "--side", "2", "-o", "run.json")
    assert done == (
        1,
        "",
        "primepar: error: Wrong2, device 0 (r=0), programs[0][1], forward, t=0: expected every "
        "term once in a sum, got forward M=0 N=0 K=0 a second time\n",
    )
    assert (folder / "run.json").read_text() == "old"


COMMANDS = ("list, show, check, verify, search, exercise, preflight, plan, "
            "profile, simulate, train")  # fmt: skip
TARGET = (
    "a name that `primepar list` prints, file.py:Class, program.json, a sequence like K,P2x2, "
    "plan.json, or a preset plan with --model"
)
CLUSTER = f"cluster file (TOML), or a preset: {', '.join(shipped_clusters())}"
USAGE = {
    "draw": f"expected one of {COMMANDS}, got 'draw': write primepar show",
    "simulat": f"expected one of {COMMANDS}, got 'simulat': write primepar simulate",
    "show": f"TARGET: expected a value, got none: write primepar show TARGET ({TARGET})",
    "certify proof.json primepar":
        f"expected one of {COMMANDS}, got 'certify': write primepar verify TARGET --certificate "
        "FILE",
    "tokenize texts -o t.bin":
        f"expected one of {COMMANDS}, got 'tokenize': write primepar train --data TEXT --set "
        "training.tokenizer=tokenizer.json, which makes the tokens",
    "plan opt-6.7b":
        f"--cluster: expected a value, got none: write --cluster FILE ({CLUSTER})",
    "redundancy opt-6.7b":
        f"expected one of {COMMANDS}, got 'redundancy': write primepar plan MODEL --objective "
        "redundancy",
    "simulate K2":
        f"--cluster: expected a value, got none: write --cluster FILE ({CLUSTER})",
    "plan opt-6.7b --cluster":
        "--cluster: expected a value, got none: write --cluster VALUE",
    "verify K2 --json=3": "--json: expected no value, got one: write --json",
    "show K --sides 2":
        "--sides: expected an option of primepar show, got no such one: write --side",
    "show K -q": "-q: expected an option of primepar show, got no such one: write --help",
    "show K 2": "expected no more arguments of primepar show, got 2: write --side 2",
    "check K --seed x": "--seed: expected an integer, got 'x': see primepar check --help",
    "check K --seed=-1":
        "--seed: expected a number greater than or equal to 0, got '-1': see primepar check --help",
    "verify K --timeout long":
        "--timeout: expected a number, got 'long': see primepar verify --help",
    "show K --phase sideways":
        "--phase: expected one of forward, backward, gradient, got 'sideways': see primepar show "
        "--help",
}  # fmt: skip


@pytest.mark.parametrize("arguments", USAGE)
def test_what_is_no_way_to_call_a_command_is_refused_in_one_line(arguments: str) -> None:
    assert run(*arguments.split()) == (2, "", f"primepar: error: {USAGE[arguments]}\n")
