"""What the emulator runs to its end is proved, and what it refuses is refuted.

That it refuses what is wrong, and nothing else, is asked of every mutant in `test_mutants`.
"""

from __future__ import annotations

import pytest
from agreement import refuted
from oracle.explore import explore
from phase_programs import RIGHT, Json, built

from primepar.errors import EmulationError
from primepar.reference import check_program, emulate
from primepar.reference.check import memories
from primepar.schedule import Program
from primepar.verify import verify_program


def runs(asked: Program) -> bool:
    try:
        emulate(asked, memories(asked))
    except EmulationError:
        return False
    return True


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_run_and_proved(name: str) -> None:
    asked = built(RIGHT[name]())
    assert runs(asked)
    assert verify_program(asked).verdict == "proved"


def test_a_wrong_sum_that_nobody_reads_is_wrong_for_nobody() -> None:
    asked = RIGHT["between"]()
    again = {"op": "all_reduce", "group": [1], "block": "O[0,0]"}
    double = {"op": "compute", "reads": ["O[0,0]"], "accumulates": "O[0,0]"}
    asked["programs"][1] += [again, double, {"op": "free", "block": "O[0,0]"}]
    asked["final"] = [["a[0,0]"], ["a[0,0]"]]
    assert verify_program(built(asked)).verdict == "proved"
    assert explore(built(asked)).overall == "proved"
    assert runs(built(asked))


def test_blocks_of_other_sizes_are_not_added_even_where_nobody_reads_the_sum() -> None:
    """A run of it breaks off: `y` is cut into blocks of 2 elements, and `v` into blocks of 4."""
    asked: Json = {
        "format": "primepar-program", "version": 1, "ranks": 1, "grid": {"p": {"M": 1}},
        "phases": {"p": {"reads": ["x[M]"], "writes": "y[M]"}},
        "tensors": {"y": {"cuts": [[0, 2]]}, "v": {"cuts": [[0, 4]]}},
        "initial": [["x[0]", "v[0]"]], "final": [["y[0]"]],
    }  # fmt: skip
    product: Json = {"op": "compute", "reads": ["x[0]"], "phase": "p", "sub_operator": {"M": 0}}
    addition: Json = {"op": "compute", "reads": ["y[0]", "v[0]"], "accumulates": "u"}
    again = product | {"again": True, "accumulates": "v[0]"}
    for last, blocks in ((addition, "y[0] and v[0]"), (again, "v[0] and y[0]")):
        wrong = built(asked | {"programs": [[product | {"accumulates": "y[0]"}, last]]})
        report = verify_program(wrong)
        assert refuted(report) == set(explore(wrong).failed) == {"placement"}
        message = report["placement"].counterexample or ""
        assert f"expected blocks of one size in a sum, got {blocks}: cut or join one" in message
        assert not runs(wrong)


def test_a_sum_has_what_any_rank_held_before_also_for_ranks_that_read_it_earlier() -> None:
    """Without `initial`. Rank 0 reads its sum before rank 1 adds a block that it never computed."""
    gradient: Json = {"op": "compute", "accumulates": "g[0]", "phase": "gradient"}
    gradients = [gradient | {"reads": [f"x[{m}]"], "sub_operator": {"M": m}} for m in range(2)]
    update: Json = {"op": "compute", "reads": ["g[0]"], "accumulates": "w[0]", "phase": "update"}
    updates = [update | {"sub_operator": {"R": rank}} for rank in range(2)]
    reduce: Json = {"op": "all_reduce", "group": [0, 1], "block": "g[0]"}
    early = built({
        "format": "primepar-program", "version": 1, "ranks": 2,
        "phases": {"gradient": {"reads": ["x[M]"], "writes": "g[0]"},
                   "update": {"reads": ["g[0]"], "writes": "w[0]"}},
        "grid": {"gradient": {"M": 2}, "update": {"R": 2}},
        "programs": [[*gradients, updates[0], reduce], [reduce, updates[1]]],
    })  # fmt: skip
    report = verify_program(early)
    assert report["completion"].verdict == explore(early).verdict("completion") == "refuted"
    assert "g[0] from before" in (report["completion"].counterexample or "")
    assert "g[0] from before" in (check_program(early).message or "")
