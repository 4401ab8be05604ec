"""Exercises: wrong as given, right by the solutions that come with them, and by nothing less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import Done, run
from msgspec.structs import replace
from profiles import few

from primepar.commands.exercise_blanks import BLANKS
from primepar.commands.exercise_catalog import FOLDER, QUESTIONS, Exercise, exercises, verify
from primepar.schedule import Program, load_program, save_program
from primepar.schedule.signature import Bound, Signature, Tensor
from primepar.verify.report import PROPERTIES

FIXED = FOLDER / "fixed"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
DIAGNOSES = {
    1: "coverage:1,2",
    2: "completion:0",
    3: "alignment:0",
    4: "races:2,10",
    5: "traffic:0",
    6: "placement:0,11",
    7: "alignment",
    8: "deadlock-freedom:0,0",
    9: "deadlock-freedom:3,2",
    10: "memory:1,3",
    11: "alignment:0,16",
    12: "alignment:0,15",
}
EVERY = exercises()
ALL = [exercise for exercise in EVERY if exercise.blank is None]
FILLED = [exercise for exercise in EVERY if exercise.blank is not None]


def asked(exercise: Exercise) -> Exercise:
    """Skip an exercise in a property that this prover does not decide."""
    name = DIAGNOSES[exercise.number].partition(":")[0]
    if name not in PROPERTIES:
        pytest.skip(f"{name} is not among the properties")
    return exercise


def target(exercise: Exercise, folder: Path) -> str:
    return f"{folder / exercise.path.name}" + ":Walk" * (exercise.path.suffix == ".py")


def test_there_are_twelve_with_a_symptom_each_and_they_cover_all_properties() -> None:
    assert [exercise.number for exercise in ALL] == list(range(1, 13)) == list(DIAGNOSES)
    assert [exercise.number for exercise in EVERY] == list(range(1, len(EVERY) + 1))
    assert all(exercise.title and exercise.symptom and exercise.hint for exercise in EVERY)
    assert {path.name for path in FIXED.iterdir()} == {exercise.path.name for exercise in EVERY}
    assert {exercise.path.stem for exercise in FILLED} == {*BLANKS}
    assert {text.partition(":")[0] for text in DIAGNOSES.values()} == {
        "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
        "traffic",
    }  # fmt: skip


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.path.stem)
def test_it_is_refuted_as_diagnosed_and_no_answer_as_it_stands(exercise: Exercise) -> None:
    number, diagnosis = exercise.number, DIAGNOSES[asked(exercise).number]
    done = run("exercise", str(number), "--diagnose", diagnosis)
    assert done == Done(0, f"exercise {number}: diagnosed\n", "")
    done = run("exercise", str(number), target(exercise, exercise.path.parent))
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"exercise {number}: not yet\n  ")
    assert exercise.schedule is not None
    report = verify(exercise.schedule, "broken")
    wrong = report[diagnosis.partition(":")[0]].counterexample
    assert wrong is not None
    assert all(f"      {line}\n" in done.out for line in wrong.splitlines())


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.path.stem)
def test_an_answer_fixes_it(exercise: Exercise) -> None:
    done = run("exercise", str(exercise.number), target(exercise, FIXED))
    assert done == Done(0, f"exercise {exercise.number}: fixed\n", "")


NOT_YET = {
    13: "2 devices, device 1: waits for the rows of device 0 before its first product",
    14: "1 workers, 2 tiles of 1: expected pieces that join to 0 to 2, got [(0, 1)]",
    15: "costs [6, 6], way [[8, 7], [6, 4]], operator [0, 4]: expected [12, 14], the least of all "
    "chains, got [0, 4]",
    16: "M4, slices {'M': 4, 'N': 1, 'K': 1}, sizes {'M': 16, 'N': 8, 'K': 32}: expected 768, got "
    "0",
    17: "2 workers, 4 steps, an average every 2: expected 18057/16384, got 71857/65536",
    18: "2 keys with scores up to 1: expected 0.216571, got 0.016871",
    19: "2 devices, there: device 0 sends what it has not: [(0, 0), (1, 0)]",
    20: "s=2: 4 blocks of W are at home on a second device",
    21: "s=2: device (0, 0) needs I[0, 1] at step 1, and (0, 0) is at home to another block",
    22: "s=2: 1 blocks of I are at home on a second device",
    23: "4 devices, M=1024 N=256 K=64: depth 1 sends 208896 elements, another 24576",
}
OTHERS = {
    (13, "return (rank + step) % 2"): "3 devices, device 0: expected the rows of each device once, "
    "got [0, 1, 0]",
    (13, "return step if rank == 0 else (rank - step) % devices"): "3 devices, step 1: two of them "
    "receive from one: [1, 0, 1]",
    (14, "return worker * tiles * iterations // workers, (worker + 1) * tiles * iterations // "
     "workers\ndef owner(tile, *sizes):\n    return 7"): "1 workers, 1 tiles of 1: worker 7 owns "
    "tile 0, and does nothing of it",
    (19, "return rank, member\ndef back(rank, member):\n    return rank, member"): "2 devices, "
    "back: device 0 sends what it has not: [(0, 0), (0, 1)]",
    (20, "return {'I': dict(M=(i, j), N=l), 'W': dict(N=(l, i), K=j), 'O': dict(M=(i, j), K=l)}"
     "[tensor]"): "s=2: a device sends 1296 elements, and 972 are enough",
    (21, "return None"): "expected what the docstrings ask for, got TypeError: 'NoneType' object "
    "is not iterable",
    (23, "return 3"): "1 devices have no mesh of depth 3",
}  # fmt: skip


@pytest.mark.parametrize("exercise", FILLED, ids=lambda exercise: exercise.path.stem)
def test_functions_are_refused_as_they_stand_and_right_as_in_the_solution(
    exercise: Exercise, tmp_path: Path
) -> None:
    number, known = exercise.number, exercise.path.read_text()
    done = run("exercise", str(number), str(exercise.path))
    assert done == Done(1, f"exercise {number}: not yet\n  {NOT_YET[number]}\n", "")
    done = run("exercise", str(number), str(exercise.solution))
    assert done == Done(0, f"exercise {number}: right\n", "")
    shown = run("exercise", str(number), "--solution").out
    assert shown.rstrip("\n") == exercise.solution.read_text().rstrip("\n")
    assert known in run("exercise", str(number)).out
    mine = tmp_path / "mine.py"
    for (other, body), why in OTHERS.items():
        if other == number:
            heads = [line for line in known.splitlines() if line.startswith("def ")]
            mine.write_text(f"{heads[0]}\n    {body}\n")
            done = run("exercise", str(number), str(mine))
            assert done == Done(1, f"exercise {number}: not yet\n  {why}\n", "")
            mine.unlink()


def test_functions_that_raise_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def rows_of(rank, step, devices):\n    return 1 // 0\n")
    assert refused("13", "mine.py") == (
        "mine.py:2: expected functions that return, got ZeroDivisionError: integer division or "
        "modulo by zero"
    )
    assert refused("14", "mine.py") == (
        "mine.py: expected a function piece, got none: write def piece(...)"
    )
    assert refused("14", "none.py").startswith("none.py: expected a Python file, found none")
    assert refused("13", "--diagnose", "races") == (
        "exercise 13: expected a file with the functions filled in, got --diagnose: primepar "
        "exercise 13 -o FILE writes it"
    )


def test_a_hint_and_a_solution_are_printed() -> None:
    assert run("exercise", "5", "--hint") == Done(
        0, "Each row is needed on one device. Where does an all-reduce put it?\n", ""
    )
    assert run("exercise", "8", "--solution").out.startswith("rank 0\n  ")
    assert run("exercise", "7", "--solution").out == (FIXED / "07_walk.py").read_text()


@few
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.path.stem)
def test_it_is_shown_and_written(exercise: Exercise, tmp_path: Path) -> None:
    shown = run("exercise", str(exercise.number))
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"{exercise.number}. {exercise.title}\n\n{exercise.symptom}\n")
    hangs = DIAGNOSES[exercise.number].startswith("deadlock")
    assert ("devices\n\n" in shown.out) is not hangs  # its picture would be the diagnosis
    copy = tmp_path / f"mine{exercise.path.suffix}"
    done = run("exercise", str(exercise.number), "-o", str(copy))
    assert done == Done(0, f"wrote {copy}\n", "")
    assert copy.read_text() == exercise.path.read_text()


CHANGED = {
    "ranks": 3,
    "grid": None,
    "shape": {"M": 2, "N": 2, "K": 2},
    "initial": None,
    "final": None,
    "host_initial": ((), ()),
    "host_final": ((), ()),
    "phases": {"more": Signature(("a[M]",), "b[M]")},
    "tensors": {"a": Tensor(((0, 2),))},
    "memory": Bound(device=99),
    "traffic": (1, 1),
}


@pytest.mark.parametrize("field", QUESTIONS)
def test_an_answer_that_asks_something_else_is_other_work(field: str, tmp_path: Path) -> None:
    program = load_program(FIXED / "02_rows.json")
    if field == "ranks":
        other = load_program(FIXED / "08_ring.json")
    else:
        other = replace(program, **{field: CHANGED[field]})
    save_program(other, tmp_path / "mine.json")
    done = run("exercise", "2", str(tmp_path / "mine.json"))
    expected = f"expected {field} as in the exercise, got it changed: put it back"
    assert done == Done(1, f"exercise 2: other work\n  {expected}\n", "")


@pytest.mark.parametrize("number", [3, 8, 10, 11, 12])
def test_an_answer_that_does_nothing_fixes_nothing(number: int, tmp_path: Path) -> None:
    schedule = ALL[number - 1].schedule
    assert isinstance(schedule, Program)
    empty = replace(schedule, programs=((),) * schedule.ranks)
    save_program(empty, tmp_path / "mine.json")
    done = run("exercise", str(number), str(tmp_path / "mine.json"))
    assert done.code == 1
    assert done.out.startswith(f"exercise {number}: not yet\n")


PRIMITIVES = {
    "the steps": ("axes = ('r', 'c')", "def steps(self, s):\n        return 1"),
    "the slices of each dim": ("axes = ('r', 'c')", "def gradient(self, r, c, t, s):\n"
                               "        return dict(M=r, N=c, B=t)"),
    "axes": ("axes = {'r': 's', 'c': 'q'}", "def forward(self, r, c, t, s, q):\n"
             "        return dict(M=r, K=c)\n    backward = gradient = forward\n"
             "    def steps(self, s, q):\n        return 1"),
    "the homes of tensors": ("axes = ('r', 'c')", "def home(self, tensor, r, c, s):\n"
                             "        return dict(M=r, N=c, K=c)"),
}  # fmt: skip


@pytest.mark.parametrize("what", PRIMITIVES)
def test_a_primitive_that_cuts_in_another_way_is_other_work(what: str, tmp_path: Path) -> None:
    lines = "\n    ".join(PRIMITIVES[what])
    source = "from primepar.partition import PrimePar\n\n\nclass Walk(PrimePar):\n    "
    (tmp_path / "mine.py").write_text(f"{source}{lines}\n")
    done = run("exercise", "7", f"{tmp_path / 'mine.py'}:Walk")
    expected = f"expected {what} as in the exercise, got it changed: put it back"
    assert done == Done(1, f"exercise 7: other work\n  {expected}\n", "")


@pytest.mark.parametrize(
    ("number", "diagnosis", "answer"),
    [
        (8, "races", "races is proved"),
        (8, "completion", "completion is not asked of this schedule"),
        (8, "alignment", "alignment is not asked"),
        (4, "races:1", "races it is, but its counterexample does not name rank 1"),
        (4, "races:2,3", "races it is, but its counterexample does not name rank 2, instruction 3"),
    ],
)
def test_a_wrong_diagnosis_is_refused_without_the_right_one(
    number: int, diagnosis: str, answer: str
) -> None:
    done = run("exercise", str(number), "--diagnose", diagnosis)
    assert done == Done(1, f"exercise {number}: {answer}\n", "")


def refused(*arguments: str) -> str:
    done = run("exercise", *arguments)
    assert (done.code, done.out) == (2, "")
    return done.err.removeprefix("primepar: error: ").removesuffix("\n")


def test_wrong_input_ends_in_one_line() -> None:
    known = ", ".join(PROPERTIES)
    assert refused("24") == (
        "expected an exercise from 1 to 23, got 24: primepar exercise lists them"
    )
    assert refused("--diagnose", "races") == (
        "expected the number of an exercise, got none: write primepar exercise 1 "
        "--diagnose races:0,3"
    )
    assert refused("1", "K", "-o", "x.json") == (
        "expected one of ANSWER, --diagnose, --hint, --solution and --output, got more: ask one "
        "after another"
    )
    assert refused("1", "--diagnose", "hang:0") == (
        f"--diagnose: expected PROPERTY[:RANK[,INSTRUCTION]] with a property out of {known}, got "
        "'hang:0': write it like races:2,7"
    )
    assert refused("1", "-o", "mine.py") == (
        "--output: expected a name that ends with .json, got mine.py"
    )
    assert refused("1", "primepar") == (
        "exercise 1: expected a program as the answer, got a primitive: start from what primepar "
        "exercise 1 -o FILE writes"
    )
    assert refused("7", str(FIXED / "08_ring.json")) == (
        "exercise 7: expected a primitive as the answer, got a program: start from what "
        "primepar exercise 7 -o FILE writes"
    )


def test_a_file_of_the_user_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    (work,) = re.findall(r"^```python\n(# mine\.py\n.*?)^```", README, re.DOTALL | re.MULTILINE)
    mine.write_text(work)
    assert refused("7", "-o", str(mine)) == (
        f"--output: expected the name of a new file, got the file {mine}: take another name, or "
        "write --force to overwrite it"
    )
    assert mine.read_text() == work
    assert run("exercise", "7", "-o", str(mine), "--force") == Done(0, f"wrote {mine}\n", "")
    assert mine.read_text() == ALL[6].path.read_text()
    (tmp_path / "folder.py").mkdir()
    assert refused("7", "--force", "-o", str(tmp_path / "folder.py")) == (
        f"--output: expected the name of a new file, got the folder {tmp_path / 'folder.py'}: "
        "take another name"
    )
    assert refused("7", "--force") == "--force: expected -o FILE with it, got none: leave it out"
    assert refused("7", "-o", str(tmp_path / "none" / "mine.py")) == (
        f"{tmp_path / 'none' / 'mine.py'}: expected a place to write to, got no such file or "
        "directory"
    )


HEAD = "from primepar import Primitive\n\n\nclass Walk(Primitive):\n"
MAP = '    axes = ("r", "c")\n\n    def forward(self, r, c, t, s):\n        '
ANSWERS = {
    "class Walk(:\n": "mine.py:1: expected a file that can be imported, got SyntaxError: invalid "
    "syntax (mine.py, line 1)",
    f"{HEAD}    @property\n    def axes(self):\n        return 1 / 0\n": "mine.py:Walk: expected "
    "axes that can be read, got ZeroDivisionError: division by zero",
    f"{HEAD}{MAP}raise KeyError('oh')\n": "mine.py:8: Walk.forward: expected a map that can be "
    "called as forward(self, r, c, t, s), got KeyError: 'oh'",
    f"{HEAD}{MAP}return self.forward(r, c, t, s)\n": "mine.py:8: Walk.forward: expected a "
    "map that can be called as forward(self, r, c, t, s), got RecursionError: maximum recursion "
    "depth exceeded",
    f"{HEAD}{MAP}return dict(M=r, N=c, K=t - r)\n": "mine.py:7: Walk.forward: expected a slice "
    "index of K that is 0 or more, got -1 at r=1, c=0, t=0, sides (2,): wrap it with % of the side",
}


@pytest.mark.parametrize(("source", "message"), ANSWERS.items())
def test_no_answer_ends_in_a_traceback(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(source)
    assert refused("7", "mine.py:Walk") == message
    a_map = "a slice index" in message  # which only a mesh refuses, so that it is a primitive
    other = (
        "exercise 1: expected a program as the answer, got a primitive: start from what primepar "
    )
    other += "exercise 1 -o FILE writes"
    assert refused("1", "mine.py:Walk") == (other if a_map else message)


def test_the_list_has_a_line_for_each() -> None:
    done = run("exercise")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"{exercise.number:2}  {exercise.title}" for exercise in EVERY]
