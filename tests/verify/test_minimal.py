"""The smallest wrong programs: refuted in the same way, and nothing more can be left out."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import pytest
from command import run

from primepar.partition import PrimePar
from primepar.preflight.cases import CASES, PublicCase
from primepar.reference.check import check_program
from primepar.schedule import Program, Sequence, lower
from primepar.schedule.program import AllReduce, Barrier, Broadcast, Group, Recv, Send
from primepar.schedule.program_file import load_program
from primepar.verify.counterexample.minimal import Minimal, minimal, smaller
from primepar.verify.counterexample.removals import without_ranks
from primepar.verify.program import first_violation, verify_program

FOLDER = Path(__file__).parents[1] / "wrong"


def refuted(program: Program) -> list[str]:
    report = verify_program(program)
    return [result.name for result in report.properties if result.verdict == "refuted"]


def way(program: Program, name: str) -> Hashable | None:
    violation = first_violation(program, name)
    return None if violation is None else violation.key()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_nothing_more_can_be_left_out_and_the_emulator_meets_it(path: Path) -> None:
    program = load_program(path)
    for name in refuted(program):
        reduced = minimal(program, name)
        assert reduced is not None
        assert reduced.is_smallest
        expected = way(program, name)
        assert way(reduced.program, name) == expected is not None
        assert [rest for rest in smaller(reduced.program) if way(rest, name) == expected] == []
        assert not check_program(reduced.program).equal


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_public_case_has_a_smallest_program(case: PublicCase) -> None:
    for name in refuted(case.wrong):
        reduced = minimal(case.wrong, name)
        assert reduced is not None
        assert way(reduced.program, name) == way(case.wrong, name)


def smallest(program: Program, name: str) -> Minimal:
    reduced = minimal(program, name)
    assert reduced is not None
    return reduced


def test_what_is_right_has_none() -> None:
    assert minimal(load_program(FOLDER / "send-send-deadlock.json"), "races") is None


def test_a_deadlock_in_a_large_program_is_cut_out_of_it() -> None:
    """Of 64 ranks two send head-on, between barriers of all; the others go their ways."""
    everybody = tuple(range(64))
    lists = []
    for rank in everybody:
        partner = rank ^ 1
        exchange = (
            (Send(peer=partner, block="x"), Recv(peer=partner, block="y"))
            if rank in (40, 41)
            else (Group((Send(peer=partner, block="x"), Recv(peer=partner, block="y"))),)
        )
        lists.append((Barrier(everybody), *exchange * 2, AllReduce(everybody, block="y")))
    reduced = smallest(Program("primepar-program", 1, 64, tuple(lists)), "deadlock-freedom")
    assert reduced.is_smallest
    assert reduced.program.programs == (
        (Send(peer=1, block="x"), Recv(peer=1, block="y")),
        (Send(peer=0, block="x"), Recv(peer=0, block="y")),
    )


def test_a_lost_message_of_a_lowered_method_is_cut_out_of_it() -> None:
    program = lower(Sequence.of(PrimePar(), 2))
    first = next(node for node in program.programs[0] if type(node).__name__ == "IRecv")
    lists = (tuple(node for node in program.programs[0] if node != first), *program.programs[1:])
    broken = Program("primepar-program", 1, 4, lists, grid=program.grid, initial=program.initial)
    reduced = smallest(broken, "deadlock-freedom")
    assert reduced.counterexample.kind in ("no-partner", "no-request")
    assert sum(map(len, reduced.program.programs)) <= 2


def test_without_time_it_stops_where_it_is() -> None:
    program = load_program(FOLDER / "duplicated-product.json")
    reduced = minimal(program, "coverage", seconds=0.0)
    assert reduced is not None
    assert not reduced.is_smallest


def test_ranks_are_left_out_of_collectives_and_numbered_anew() -> None:
    nodes = (Barrier((2, 0, 1)), Broadcast((2, 0, 1), block="b", root=2))
    program = Program("primepar-program", 1, 3, (nodes,) * 3)
    assert without_ranks(program, {0}).programs == (
        ((Barrier((1, 0)), Broadcast((1, 0), block="b", root=1)),) * 2
    )
    assert without_ranks(program, {2}).programs == ((Barrier((0, 1)),),) * 2
    with pytest.raises(ValueError, match="a program needs a rank"):
        without_ranks(program, {0, 1, 2})


def test_one_rank_is_left_of_a_program_that_misses_a_sub_operator() -> None:
    program = Program("primepar-program", 1, 4, ((),) * 4, grid={"forward": {"M": 1}})
    reduced = minimal(program, "coverage")
    assert reduced is not None
    assert (reduced.program.ranks, reduced.is_smallest) == (1, True)


def test_the_command_writes_it_and_reports_its_size(tmp_path: Path) -> None:
    path = tmp_path / "smallest.json"
    done = run("verify", f"{FOLDER}/missing-wait.json", "--minimal", str(path))
    assert done.code == 1
    lines = done.err.splitlines()
    assert lines[0] == (
        f"wrote {path}: races is refuted with 2 ranks, 4 instructions; nothing more can be left out"
    )
    assert lines[2] == f"  replay: primepar check {path}"
    assert run("check", str(path)).code == 1


def test_a_primitive_is_lowered_to_the_smallest_mesh_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "smallest.json"
    done = run("verify", f"{FOLDER}/twins.py:Twins", "--minimal", str(path))
    assert done.err.startswith(f"wrote {path}: coverage is refuted with 2 ranks, 2 instructions; ")
    assert run("check", str(path)).code == 1


def test_another_ending_is_refused() -> None:
    done = run("verify", "by-output", "--minimal", "program.txt")
    assert (done.code, done.err) == (
        2,
        "primepar: error: --minimal: expected a name that ends with .json (the program), "
        "got program.txt\n",
    )


def test_nothing_is_written_where_nothing_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    done = run("verify", "by-output", "--side", "2", "--minimal", str(path))
    assert (done.code, done.err) == (0, f"nothing is refuted: {path} is not written\n")
    assert not path.exists()
