"""The runner of benchmarks, and `verify`, `plan` and `pipelines` in their smallest sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command import Done, run
from mutants import mutant
from profiles import long

from benchmarks import programs, verify
from benchmarks.bench import BenchRow, Case, Cells, bench, busy_seconds, load_run
from benchmarks.programs import cannon
from primepar.partition import PrimePar
from primepar.schedule.program import Compute, Group
from primepar.verify import verify_program


def benchmark(name: str, *arguments: str, **options: Any) -> Done:
    """Run `python -m benchmarks NAME` in this process, in one round."""
    module = import_module(f"benchmarks.{name}")
    program = partial(bench, getattr(module, name), **options)
    return run(*arguments, program=program, name="benchmarks")


class Counted(BenchRow, frozen=True):
    """What a case of the tests measures: a number, and seconds that grow with each call."""

    timed = ("seconds",)
    number: int
    seconds: float

    @property
    def cells(self) -> Cells:
        return {"number": self.number, "is": "even" if self.number % 2 == 0 else "odd",
                "s": self.seconds}  # fmt: skip

    @property
    def code(self) -> int:
        return int(self.number > 10)

    @classmethod
    def notes(cls, rows: Sequence[Counted]) -> Iterator[str]:
        yield f"{len(rows)} numbers"


def counting(calls: list[int]) -> Callable[..., Iterable[Case]]:
    """A benchmark that records its calls; each takes a fraction of a second more than the last."""

    def measure(number: int) -> Counted:
        calls.append(number)
        return Counted(number, len(calls) / 100)

    def counted(numbers: tuple[int, ...] = (2, 3), slow: bool = False) -> Iterator[Case]:
        for number in numbers:
            if number < 0:
                raise ValueError(f"--numbers: expected numbers from 0, got {number}")
            case = partial(Counted, number, 2.0) if slow else partial(measure, number)
            yield str(number), case

    return counted


def test_rows_are_one_table_and_the_largest_code_is_the_program_s() -> None:
    done = run(program=partial(bench, counting([])), name="x")
    assert done == (
        0,
        "number  is       s\n2       even  0.01\n3       odd   0.02\n2 numbers\n",
        "",
    )
    assert run("--numbers", "2,11", program=partial(bench, counting([])), name="x").code == 1


def test_cases_are_measured_in_rounds_and_their_median_counts() -> None:
    calls: list[int] = []
    done = run("--json", program=partial(bench, counting(calls), 3), name="x")
    assert calls == [2, 3, 2, 3, 2, 3]
    rounds = json.loads(done.out)["rows"]["2"]
    assert [row["seconds"] for (row,) in rounds] == [0.01, 0.03, 0.05]
    done = run(program=partial(bench, counting([]), 3), name="x")
    assert "2       even  0.03\n" in done.out
    done = run("--slow", "--json", program=partial(bench, counting([]), 3), name="x")
    assert len(json.loads(done.out)["rows"]["2"]) == 1


def test_a_run_goes_on_from_what_is_stored(tmp_path: Path) -> None:
    out, calls = tmp_path / "new" / "run.json", list[int]()
    program = partial(bench, counting(calls), 2)
    first = run("--out", str(out), program=program, name="x")
    assert calls == [2, 3, 2, 3]
    assert run("--out", str(out), program=program, name="x") == first
    assert calls == [2, 3, 2, 3]
    stored = load_run(out, Counted)
    del stored.rows["3"][1]
    out.write_text(json.dumps({**json.loads(out.read_text()), "rows": {
        name: [[{"type": "Counted", "number": row.number, "seconds": row.seconds} for row in rows]
               for rows in rounds] for name, rounds in stored.rows.items()
    }}))  # fmt: skip
    run("--out", str(out), program=program, name="x")
    assert calls == [2, 3, 2, 3, 3]
    assert stored.load is not None
    assert stored.load.cores >= 1
    other = run("--out", str(out), "--numbers", "5", program=program, name="x")
    assert other.code == 2
    assert other.err.splitlines()[-1] == (
        "python -m benchmarks counted: error: --out: expected a run with {'numbers': [5], 'slow': "
        f"False}}, got {{'numbers': [2, 3], 'slow': False}} in {out}: name another file"
    )


def refused(name: str, *arguments: str, **options: Any) -> str:
    """The last line of a refusal, without the name of the program."""
    done = benchmark(name, *arguments, **options)
    assert (done.code, done.out) == (2, "")
    head, _, message = done.err.splitlines()[-1].partition(": error: ")
    assert head == f"python -m benchmarks {name}"
    return message


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        *(("verify", "--ranks", given, "--ranks: expected square numbers from 1 to 4096, got "
           f"{given}: write --ranks 4,16,64") for given in ("5", "-4", "0", "16777216")),
        ("verify", "--timeout", "0", "--timeout: expected seconds from 0.001 to 1000000, got 0"),
        *(("plan", "--devices", given, "--devices: expected some of 4, 8, 16, 32, as in the "
           f"paper, got {given}: write --devices 4,8") for given in ("6", "64")),
        *(("pipelines", "--stages", given, "--stages: expected numbers from 1 to 64, got "
           f"{given}: write --stages 2,4,8") for given in ("0", "65")),
        ("plan", "--ranks", "4", "unrecognized arguments: --ranks=4"),
        ("half_precision", "--size", "24", "--size: expected a multiple of 16, got 24"),
        ("executor", "--problem", "conv:M=1,h=1", "expected mlp, block or gpt with sizes, as in "
         "mlp:M=8192,h=512, got 'conv:M=1,h=1'"),
        ("executor", "--rounds", "0", "--rounds: expected 1 or more, got 0"),
        ("predicted_and_measured", "--rounds", "1", "--rounds: expected 2 or more, got 1"),
        ("predicted_and_measured", "--plans", "1", "--plans: expected 2 or more, got 1"),
        ("predicted_and_measured", "--cluster", "none.toml",
         "[Errno 2] No such file or directory: 'none.toml'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_in_one_line(
    name: str, option: str, value: str, message: str
) -> None:
    assert refused(name, f"{option}={value}") == message


def test_a_folder_of_pictures_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    message = refused("local_sgd", "--pictures", str(folder), pictures=lambda run: {})
    assert message == f"--pictures: expected a folder that is there, got {folder}"


def test_programs_and_primitives_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PRIMITIVES", {"primepar": PrimePar})
    monkeypatch.setattr(programs, "LARGEST_STEP", 4)
    done = benchmark("verify", "--ranks", "4")
    assert (done.code, done.err) == (0, "")
    assert [line.split("  ")[0] for line in done.out.splitlines()] == [
        "program", "Cannon, 2 x 2 x 2", "forward of P2x2", "training step of 2 layers", "",
        "primitive, every side", "primepar",
    ]  # fmt: skip
    row = done.out.splitlines()[3]
    assert re.fullmatch(r"training .* 4 +3,262  proved +\d+\.\d{3} +\d+ +\d+\.\d{3} s", row)


def test_an_answer_that_came_too_late_is_none() -> None:
    row = verify.measure_program(programs.BenchProgram("a", cannon(8)), 0.001)
    assert (row.verdict, row.instructions, row.plain_seconds) == ("proved", 960, None)
    assert row.cells["plain Z3"] == "> 0.001 s"


@pytest.mark.parametrize("side", [1, 2, 3, 5])
def test_cannon_computes_every_sub_operator_once_and_is_proved(side: int) -> None:
    program = cannon(side)
    nodes = [node for rank in program.programs for node in rank]
    assert sum(isinstance(node, Compute) for node in nodes) == side**3
    assert sum(isinstance(node, Group) for node in nodes) == side**2 * (side - 1)
    assert verify_program(program).verdict == "proved"


def test_the_programs_of_1024_ranks_are_those_that_the_pages_name() -> None:
    known = [(case.name, case.program.ranks, case.instructions) for case in programs.programs(1024)]
    assert known == [
        ("Cannon, 32 x 32 x 32", 1024, 64512),
        ("forward of M16,P8x8", 1024, 79872),
    ]


@long
@pytest.mark.parametrize("buffered", [False, True])
def test_the_plain_encoding_agrees_with_the_proof(buffered: bool) -> None:
    """On 1,000 programs, with both ways of sending: coverage and deadlock-freedom."""
    ends, asked = 0, ("coverage", "deadlock-freedom")
    for seed in range(500):
        program = mutant(seed)
        reports = [
            verify_program(program, buffered=buffered, solver=solver)
            for solver in ("search", "z3")
        ]  # fmt: skip
        verdicts = [
            {one.name: one.verdict for one in report.properties if one.name in asked}
            for report in reports
        ]
        assert verdicts[0] == verdicts[1], seed
        ends += reports[0]["deadlock-freedom"].verdict == "proved"
    assert 50 < ends < 450


def test_the_search_is_printed_next_to_the_paper_s_times() -> None:
    done = benchmark("plan", "--devices", "4")
    assert (done.code, done.err) == (0, "")
    assert re.sub(r"(?<= 4  ) +\d+\.\d{3}", "  0.000", done.out) == (
        "block        devices  seconds  the paper's  step, ms\n"
        "opt-175b           4    0.000       0.0853   3,261.4\n"
        "llama-2-70b        4    0.000       0.0865   3,248.1\n"
        "bloom-176b         4    0.000       0.0854   4,397.9\n"
    )


def test_busy_seconds_of_a_machine_leave_out_idle_time_and_guests() -> None:
    ticks = "cpu 300 0 100 9000 500 0 50 50 77 0\ncpu0 1 1 1 1\n"
    assert busy_seconds(ticks) == pytest.approx(500 / 100)
