"""`primepar redundancy`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import run

from primepar.plan import cluster as cluster_module
from primepar.plan import load_plan

MODEL = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json")
LEAST = ("redundancy", MODEL, "--cluster", "v100-8x4", "--devices", "4")


def test_both_solvers_find_the_same_and_print_other_plans_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = run(*LEAST, "-o", str(path))
    assert done.code == 0
    end = (
        r"\nno plan of the space within the bounds has less redundant memory: proved by the "
        r"integer program, [\d,]+ variables, gap 0\nwrote .*\n$"
    )
    assert re.search(end, done.out)
    programmed, searched = (json.loads(run(*LEAST, "--solver", solver, "--json").out)
                            for solver in ("ilp", "dp"))  # fmt: skip
    report, other = programmed["redundancy"], searched["redundancy"]
    assert [entry["plan"] for entry in report["plans"]] == [
        "this plan",
        "fastest plan",
        "M2,megatron",
    ]
    least, *others = report["plans"]
    assert least["redundant"] == report["bound"] == other["bound"]
    assert all(least["redundant"] < entry["redundant"] for entry in others)
    assert (report["proved"], report["gap"], other["variables"]) == (True, 0, 0)
    assert least["seconds"] == programmed["seconds"]
    assert other["plans"][1:] == others
    plan = load_plan(path)
    sequences = {entry["operator"]: entry["sequence"] for entry in programmed["choices"]}
    assert plan.sequences["head"] == sequences["head"]
    assert run("show", str(path)).code == 0


def test_the_dynamic_program_is_named() -> None:
    done = run(*LEAST, "--solver", "dp")
    end = "\nno plan of the space has less redundant memory, by the dynamic program\n"
    assert (done.code, done.out.endswith(end)) == (0, True)


def test_the_least_within_a_bound_is_no_less() -> None:
    two = ("redundancy", MODEL, "--cluster", "v100-8x4", "--devices", "2")
    free = json.loads(run(*two, "--json").out)
    within = json.loads(run(*two, "--within", "0.0008", "--json").out)
    assert within["seconds"] <= 0.0008 < free["seconds"]
    assert within["redundancy"]["bound"] > free["redundancy"]["bound"]


def test_what_was_stopped_is_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(*LEAST, "--timeout", "0.0001")
    assert (done.code, done.out, done.err) == (
        3, "", "primepar: error: expected a plan within the 0.0001 seconds of --timeout, got none "
        "yet: give it more, or write --solver dp\n",
    )  # fmt: skip
    from primepar.plan.redundancy import least_redundancy as module
    from primepar.plan.redundancy.integer_program import SolverResult, solve

    def stopped(*arguments: object) -> SolverResult:
        """The solver's result where a plan is known, with a lower bound of half of it."""
        result: SolverResult = solve(*arguments)  # type: ignore[arg-type]
        return SolverResult(result.choices, result.cost, result.cost / 2, proved=False, columns=9)

    monkeypatch.setattr(module, "solve", stopped)
    done = run(*LEAST)
    assert done.code == 3
    assert re.search(r"\nnot proved to have the least redundant memory: stopped by --timeout, when "
                     r"none had less than 0.4 MiB \(gap 50.00%\)\n$", done.out)  # fmt: skip


def test_a_program_that_is_too_large_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    from primepar.plan.redundancy import integer_program as program

    monkeypatch.setattr(program, "MOST_COLUMNS", 100)
    done = run(*LEAST)
    assert (done.code, done.out, done.err) == (
        3, "", "primepar: error: expected an integer program of at most 100 variables, got 1,179: "
        "plan fewer devices or layers, or leave the bounds out and write --solver dp\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((*LEAST, "--solver", "dp", "--within", "1"),
         "--within: expected none together with --solver dp, as only the integer program keeps to "
         "bounds, or to a time: leave it out"),
        ((*LEAST, "--solver", "dp", "--timeout", "1"),
         "--timeout: expected none together with --solver dp, as only the integer program keeps to "
         "bounds, or to a time: leave it out"),
        ((*LEAST, "--timeout", "-1"), "--timeout: expected more than 0 seconds, got -1"),
        ((*LEAST, "--alpha", "1"),
         "--alpha: expected an option of primepar redundancy, got no such one: primepar "
         "redundancy --help lists them"),
        ((*LEAST, "--within", "0.0001"),
         "expected a plan with a step within the 0.0001 seconds of --within, got none: the "
         "shortest takes 0.000787644 seconds, 0.00069 too many"),
        ((*LEAST, "--memory", "1e6"),
         "expected a plan within the 1,000,000 bytes of --memory, got none: the smallest takes "
         "2,245,888 bytes, 1,245,888 too many: take --devices 16"),
        ((*LEAST, "--memory", "2300000", "--within", "0.0015"),
         "expected a plan with a step within the 0.0015 seconds of --within and within the memory "
         "of a device, got none: the fastest within the memory takes 0.00179716 seconds: give more "
         "of one"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(
    options: tuple[str, ...], error: str
) -> None:
    done = run(*options)
    assert (done.code, done.err) == (2, f"primepar: error: {error}\n")


def test_the_plan_fits_the_devices(tmp_path: Path) -> None:
    shipped = Path(cluster_module.__file__).parent / "clusters" / "v100-8x4.toml"
    small = tmp_path / "small.toml"
    small.write_text(re.sub(r"(?m)^memory = .*$", "memory = 2.3e6", shipped.read_text()))
    where = ("redundancy", MODEL, "--cluster", str(small), "--devices", "4")
    assert json.loads(run(*where, "--json").out)["memory"] <= 2.3e6
    assert (done := run(*where, "--solver", "dp")).code == 2
    assert done.err == (
        "primepar: error: expected a plan within the 2,300,000 bytes of a device of the cluster 8 "
        "x 4 V100, as in the PrimePar paper, got one that takes 2,516,224: leave --solver dp out, "
        "as only the integer program keeps to bounds\n"
    )
