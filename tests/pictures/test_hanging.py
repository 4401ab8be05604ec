"""Pictures of programs that hang show who waits for whom, and nothing that does not arrive."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from mutants import mutant
from oracle.explore import explore

from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import Hang, grid_text, hangs, space_time
from primepar.schedule import Program
from primepar.schedule.program import Recv, Send, Wait

WRONG = sorted((Path(__file__).parents[1] / "wrong").glob("*.json"))
HEAD_ON = Program(
    "primepar-program", 1, 2, ((Send(1, "a"), Recv(1, "b")), (Send(0, "b"), Recv(0, "a")))
)


def places(program: Program) -> tuple[tuple[int, int], ...]:
    return tuple((rank, hang.instruction) for rank, hang in sorted(hangs(program).items()))


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_ranks_hang_where_the_explorer_finds_them(path: Path) -> None:
    program = msgspec.json.decode(path.read_bytes(), type=Program)
    assert places(program) == explore(program).stuck


def test_so_they_do_in_generated_programs() -> None:
    programs = [mutant(seed) for seed in range(200)]
    stuck = [explore(program).stuck for program in programs]
    assert [places(program) for program in programs] == stuck
    assert 20 < sum(map(bool, stuck)) < 180


def test_a_wait_for_what_nobody_posted_waits_for_nobody() -> None:
    assert hangs(Program("primepar-program", 1, 1, ((Wait("a"),),))) == {0: Hang(0, ())}


def test_head_on_nothing_is_delivered_and_each_waits_for_the_other() -> None:
    grid = space_time(HEAD_ON, "head-on")
    assert grid_text(grid) == (
        "head-on\n\n"
        "deadlock\n"
        "device   nothing goes on\n"
        "-----------------------------\n"
        "0        hangs in send a -> 1\n"
        "         waits for device 1\n"
        "         never reaches 1 more\n"
        "1        hangs in send b -> 0\n"
        "         waits for device 0\n"
        "         never reaches 1 more\n"
    )
    picture = grid_svg(grid)
    assert "from device" not in picture
    assert "<title>device 0 waits for device 1</title>" in picture
    assert "<title>device 1 waits for device 0</title>" in picture
    assert "deadlock: nothing goes on" in picture


def test_what_came_before_is_drawn_and_a_rank_at_its_end_is_marked() -> None:
    late = Program("primepar-program", 1, 2, ((Send(1, "a"), Send(1, "b")), (Recv(0, "a"),)))
    picture = grid_svg(space_time(late, "late"))
    assert picture.count("a from device 0 to device 1") == 1
    assert "b from device 0" not in picture
    assert "hangs in send b -&gt; 1" in picture
    assert "at its end" in picture
