"""The commands do what they are for, and end with the right exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from command import run
from conftest import Golden
from phase_programs import compute, program

from primepar.partition import METHODS, PRIMITIVES, parse_sequence
from primepar.schedule import load_program, lower
from primepar.verify.report import PROPERTIES

WRONG = """
from primepar import Primitive

class Wrong(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c) % s, K=c)
"""
ALONE = """{"format": "primepar-program", "version": 1, "ranks": 2,
 "programs": [[{"op": "send", "peer": 1, "block": "A"}], []]}"""


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    (tmp_path / "wrong.py").write_text(WRONG)
    return f"{tmp_path}/wrong.py:Wrong"


@pytest.fixture
def alone(tmp_path: Path) -> str:
    path = tmp_path / "alone.json"
    path.write_text(ALONE)
    return str(path)


def words(text: str) -> list[str]:
    """What a grid shows after its title, without the places on the mesh and the rules."""
    return re.sub(r"[rc]=\d|---+", "", text.partition("\n")[2]).split()


# list


def test_list_shows_the_maps_axes_and_source_of_every_primitive(golden: Golden) -> None:
    done = run("list")
    assert (done.code, done.err) == (0, "")
    golden("cli/list", done.out)


def test_list_as_json_has_every_registered_name() -> None:
    entries = json.loads(run("list", "--json").out)
    assert [entry["name"] for entry in entries] == [*PRIMITIVES, *METHODS]
    primepar = next(entry for entry in entries if entry["name"] == "primepar")
    assert primepar["maps"]["forward"] == "M=r, N=(r + c + t) % s, K=c"
    assert primepar["axes"] == {"r": "s", "c": "s"}
    assert primepar["source"].startswith("Wang et al., PrimePar, ASPLOS 2024")


# show


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("show_primepar_3_forward", ("primepar", "--side", "3", "--phase", "forward")),
        ("show_K_P2x2", ("K,P2x2",)),
        ("show_summa_2", ("summa", "--side", "2")),
        ("show_by_input_3", ("by-input", "--side", "3")),
        ("show_program_P2x2", ("P2x2", "--program", "--phase", "forward")),
    ],
)
def test_show_draws_the_grid(golden: Golden, name: str, arguments: tuple[str, ...]) -> None:
    done = run("show", *arguments)
    assert (done.code, done.err) == (0, "")
    golden(f"cli/{name}", done.out)


def test_show_draws_what_is_wrong_too(wrong: str) -> None:
    done = run("show", wrong, "--side", "2")
    assert done.code == 0
    assert done.out.count("O[0,0] += I[0,0] * W[0,0]") == 2


def test_show_as_json_has_a_cell_for_every_device_and_step() -> None:
    grid = json.loads(run("show", "primepar", "--side", "2", "--json").out)
    assert [len(column) for column in grid["cells"]] == [4] * 6
    assert grid["cells"][0][0]["products"] == [
        {
            "writes": "O[0,0]",
            "reads": ["I[0,0]", "W[0,0]"],
            "sub_operator": {"M": 0, "N": 0, "K": 0},
        }
    ]
    assert {"op": "isend", "block": "I[0,0]", "peer": 1} in grid["cells"][0][0]["messages"]


def test_a_program_that_show_saves_is_the_lowered_one_and_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    done = run("show", "P2x2", "--program", "-o", str(path))
    assert done == (0, f"wrote {path}\n", "")
    assert load_program(path) == lower(parse_sequence("P2x2"))
    assert run("verify", str(path)).code == 0
    assert words(run("show", str(path)).out) == words(run("show", "P2x2").out.partition("sends")[0])


def test_show_writes_a_picture_and_a_trace(tmp_path: Path) -> None:
    for name in ("grid.svg", "run.json"):
        done = run("show", "P2x2", "-o", str(tmp_path / name))
        assert done == (0, f"wrote {tmp_path / name}\n", "")
    assert (tmp_path / "grid.svg").read_text().startswith("<svg ")
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.svg", "run.json"]


# check


def test_check_states_that_phases_of_their_own_have_stand_ins(tmp_path: Path) -> None:
    path = "docs/examples/norm.json"
    done = run("check", path)
    assert (done.code, done.out.splitlines()[-1]) == (
        0, "  by surrogates of what the phases compute: data is where it belongs, summed once",
    )  # fmt: skip
    assert json.loads(run("check", path, "--json").out)["stand_ins"] is True
    assert run("show", path, "-o", str(tmp_path / "run.json")).code == 0


def test_check_lists_of_many_tensors_those_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    names = [f"t{at}" for at in range(14)]
    phases = {f"to {b}": {"reads": [f"{a}[M]"], "writes": f"{b}[M]"} for a, b in pairwise(names)}
    nodes = [compute(f"to {b}", [f"{a}[0]"], f"{b}[0]", M=0) for a, b in pairwise(names)]
    asked = program([nodes], phases=phases, grid={name: {"M": 1} for name in phases})
    path.write_text(json.dumps(asked))
    assert run("check", str(path)).out.splitlines()[1] == "  13 tensors equal"
    nodes += [
        {"op": "compute", "reads": ["t13[0]"], "accumulates": "copy"},
        {"op": "alloc", "block": "t13[0]"},
        {"op": "alloc", "block": "copy"},
    ]
    path.write_text(json.dumps({**asked, "final": [[]]}))
    done = run("check", str(path))
    assert done.code == 1
    assert done.out.splitlines()[1:3] == ["  12 tensors equal", "  t13  differs"]


def test_check_ends_with_1_and_the_place_where_a_schedule_is_refused(wrong: str) -> None:
    done = run("check", wrong, "--side", "2")
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        "  refused  Wrong2x2, device 0 (r=0, c=0), programs[0][1], forward, t=0: expected every "
        "term once in a sum, got forward M=0 N=0 K=0 a second time"
    )


# verify


def test_verify_json_has_the_agreed_form() -> None:
    report = json.loads(run("verify", "summa", "--json").out)
    assert (report["target"], report["verdict"]) == ("summa", "proved")
    assert report["scope"] == "every s >= 1 (axes r, c)"
    names = [each["name"] for each in report["properties"]]
    assert names == [*PROPERTIES]
    for each in report["properties"]:
        own = {"name", "verdict", "seconds", "counterexample"}
        assert set(each) - {"reason", "certified", "meshes"} == own
        assert each["counterexample"] is None
    assert [each["verdict"] for each in report["properties"]] == ["proved"] * 6 + ["equal"] * 2
    assert [each["certified"] for each in report["properties"][:6]] == [True] * 6
    assert [each.get("meshes") for each in report["properties"]] == [None] * 6 + [6] * 2


@pytest.mark.parametrize("arguments", [("primepar", "--side", "3"), ("K,P2x2",), ("B,M,N",)])
def test_verify_proves_one_mesh(arguments: tuple[str, ...]) -> None:
    done = run("verify", *arguments, "--json")
    assert done.code == 0
    found = [each["name"] for each in json.loads(done.out)["properties"]]
    assert found == [*PROPERTIES[:6], *(PROPERTIES[6:] if arguments[0] == "primepar" else ())]


def test_what_verify_refutes_is_replayed_by_the_command_that_it_prints(wrong: str) -> None:
    done = run("verify", wrong)
    assert done.code == 1
    assert done.out.splitlines()[0] == f"{wrong}: refuted"
    replay = f"primepar check {wrong} --side 2"
    assert done.out.splitlines()[-1] == f"  replay: {replay}"
    assert run(*replay.split()[1:]).code == 1


def test_a_message_without_a_partner_is_refuted(alone: str) -> None:
    done = run("verify", alone)
    assert done.code == 1
    assert re.sub(r"\d\.\d{3} s", "0.000 s", done.out).splitlines()[2:] == [
        "      rank 0, instruction 0 (send A -> 1): expected a recv from rank 0 on rank 1 to "
        "match, got none that is left: add it there, or remove this one",
        "          rank 0                            rank 1",
        "        ! 0 send A -> 1  (never matched)",
        "          '---------- waits for ----------->.",
        "                                            no recv from rank 0 is left  (missing)",
        "  races             proved      0.000 s",
        f"  replay: primepar check {alone}",
    ]
    assert run("check", alone).code == 1


def test_verify_ends_with_3_where_time_is_too_short() -> None:
    done = run("verify", "primepar", "--timeout", "0.001", "--json")
    report = json.loads(done.out)
    assert (done.code, report["verdict"]) == (3, "unknown")
    assert all(each["reason"] for each in report["properties"] if each["verdict"] == "unknown")


# all


def test_no_arguments_show_the_help_and_version_is_the_package_s() -> None:
    import primepar

    assert "Usage: primepar" in run().out
    assert run("--version") == (0, f"primepar {primepar.__version__}\n", "")


def test_an_interrupt_ends_quietly_with_130() -> None:
    with patch("primepar.commands.options.resolve", side_effect=KeyboardInterrupt):
        assert run("show", "primepar", "--side", "2") == (130, "", "")


def test_list_show_and_check_load_neither_torch_nor_z3() -> None:
    script = (
        "import sys; sys.argv = ['primepar', 'check', 'primepar', '--side', '2']\n"
        "from primepar.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print([name for name in ('torch', 'z3', 'mpi4py', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
